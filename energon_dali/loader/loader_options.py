"""The options of a loader: checked once, and carried as one value to everything that the loader starts.

With them are the attributes of a torch `DataLoader`, for programs that read them from a loader.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict, TypeVar

from energon_dali.cache import CachePool
from energon_dali.cache.file_cache_pool import check_cache_pool
from energon_dali.cache.shard_cache import ShardCache, check_shard_cache
from energon_dali.calls import check_switches
from energon_dali.errors import ConfigError, DeviceError
from energon_dali.loader.processes.launch import StartMethod, check_start_method
from energon_dali.shards import RetryPolicy
from energon_dali.shards.storage.request_pool import MOST_THREADS
from energon_dali.shards.storage.store import ReadScope
from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """What the user asked of a loader.

    Raises:
        ConfigError: An option cannot work.
    """

    prefetch_factor: int = 2
    """Blocks per stream that workers make ahead, and batches that wait for the trainer; at least 1. Cost: for each, the
    memory of a block per stream and of a batch."""
    cache_pool: CachePool | None = None
    """Fetches files ahead for cookers and hooks, such as FileStoreCachePool(); its limits hold for all processes
    together. The user closes it, after the loader. None fetches nothing ahead."""
    shard_cache: ShardCache | Literal["auto"] | None = "auto"
    """Keeps shards of remote datasets on local disk, such as ShardCache("/scratch", max_bytes="500GB"); "auto" is the
    one that the environment variable ENERGON_DALI_SHARD_CACHE describes, if it is set. None keeps none."""
    watchdog_timeout_seconds: float | None = 60
    """Longest normal wait for a batch; None never complains."""
    watchdog_initial_timeout_seconds: float | None = None
    """The same for the first batch; None uses `watchdog_timeout_seconds`."""
    fail_on_timeout: bool = False
    """Raise WatchdogTimeoutError where the watchdog would warn."""
    start_method: StartMethod = "auto"
    """How processes start: "auto" forks where that is safe and spawns otherwise."""
    pin_memory: bool | str = "auto"
    """Whether CPU batches are put into page-locked memory; "auto" if CUDA is available."""
    retry_policy: RetryPolicy | None = None
    """How reading is repeated after transient errors, and when a store counts as down; None is RetryPolicy()."""
    read_ahead_bytes: int | None = None
    """Bytes that each process may request before they are wanted, at least 1 MiB; 0 reads nothing ahead. None is
    256 MiB for remote storage and slow disks, and 0 for fast ones. Not part of the state."""
    requests_in_flight: int | None = None
    """Requests for data that each process makes at the same time, at least 1; None adapts the number to the latency: 8
    below 2.5 ms, up to 64 from 20 ms on. Not part of the state."""
    decode_process: bool | str = False
    """Whether the rank's pipeline runs in a process of its own; "auto" if the rank decodes or runs hooks, and there are
    workers."""
    check_plan: bool = True
    """Whether the ranks of a job with global batches compare, before their first batch, what decides who takes which
    samples. A collective call over the data-parallel group."""

    def __post_init__(self) -> None:
        if not isinstance(self.prefetch_factor, int) or self.prefetch_factor < 1:
            raise ConfigError(
                f"prefetch_factor={self.prefetch_factor!r} is invalid: give a whole number of at least 1."
            )
        check_cache_pool(self.cache_pool)
        object.__setattr__(self, "shard_cache", check_shard_cache(self.shard_cache))
        for name in ("watchdog_timeout_seconds", "watchdog_initial_timeout_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not (isinstance(seconds, (int, float)) and seconds > 0):
                raise ConfigError(f"{name}={seconds!r} is not a duration: give a positive number of seconds, or None.")
        check_start_method(self.start_method)
        ahead, requests = self.read_ahead_bytes, self.requests_in_flight
        if ahead is not None and not (type(ahead) is int and (ahead == 0 or ahead >= 1 << 20)):
            raise ConfigError(
                f"read_ahead_bytes={ahead!r} is invalid: give a number of bytes of at least {1 << 20} (1 MiB), 0 to "
                "read nothing ahead, or None for the default."
            )
        if requests is not None and not (type(requests) is int and 1 <= requests <= MOST_THREADS):
            raise ConfigError(
                f"requests_in_flight={requests!r} is invalid: give a whole number from 1 to {MOST_THREADS}, or None to "
                "adapt it to the latency of the storage."
            )
        for name in ("pin_memory", "decode_process"):
            value = getattr(self, name)
            if not isinstance(value, bool) and value != "auto":
                raise ConfigError(f'{name}={value!r} is unknown: give True, False or "auto".')
        check_switches(check_plan=self.check_plan, fail_on_timeout=self.fail_on_timeout)
        if not isinstance(self.retry_policy, (RetryPolicy, type(None))):
            raise ConfigError(
                f"retry_policy={self.retry_policy!r} is not a RetryPolicy. Give RetryPolicy(attempts=..., "
                "request_seconds=..., store_seconds=...), or None for its defaults."
            )

    @property
    def found_shard_cache(self) -> ShardCache | None:
        """The cache of shards, after "auto" was resolved."""
        return self.shard_cache if isinstance(self.shard_cache, ShardCache) else None

    def read_scope(self, count: Callable[[str, int], None], *, outlasts_stores: bool = True) -> ReadScope:
        """Returns how one process of the loader reads.

        Args:
            count: Adds to a counter of the process.
            outlasts_stores: Wait for a store that is down.
        """
        return ReadScope(
            self.retry_policy,
            count,
            outlasts_stores=outlasts_stores,
            shard_cache=self.found_shard_cache,
            read_ahead_bytes=self.read_ahead_bytes,
            requests_in_flight=self.requests_in_flight,
            cache_pool=self.cache_pool,
        )

    def resolved(self, *, rank_has_work: bool, num_workers: int) -> LoaderOptions:
        """Returns a copy in which `decode_process` and `pin_memory` are True or False.

        Args:
            rank_has_work: Whether the rank decodes or runs hooks.
            num_workers: Worker processes of the rank.

        Raises:
            DeviceError: pin_memory=True without CUDA.
        """
        decode_process = self.decode_process is True or (
            self.decode_process == "auto" and num_workers > 0 and rank_has_work
        )
        forks = decode_process and self.start_method == "fork"
        return replace(
            self, decode_process=decode_process, pin_memory=wants_pinning(self.pin_memory, before_fork=forks)
        )


def wants_pinning(pin_memory: bool | str, *, before_fork: bool = False) -> bool:
    """Returns whether batches are pinned; "auto" means if CUDA is available.

    Args:
        pin_memory: True, False or "auto".
        before_fork: Whether a process that may use CUDA will be forked from this one. GPUs are then counted by NVML:
            after a question to CUDA, CUDA does not work in forked processes.

    Raises:
        DeviceError: It is True, and there is no CUDA device.
    """
    if pin_memory is False:
        return False
    import torch

    available = torch.cuda.device_count() > 0 if before_fork else torch.cuda.is_available()
    if pin_memory is True and not available:
        raise DeviceError('pin_memory=True needs a CUDA device, and torch finds none. Give False or "auto".')
    return available


class LoaderArguments(TypedDict, total=False):
    """The options of a loader as keyword arguments; see LoaderOptions for what they mean."""

    prefetch_factor: int
    cache_pool: CachePool | None
    shard_cache: ShardCache | Literal["auto"] | None
    watchdog_timeout_seconds: float | None
    watchdog_initial_timeout_seconds: float | None
    fail_on_timeout: bool
    start_method: str
    pin_memory: bool | str
    retry_policy: RetryPolicy | None
    read_ahead_bytes: int | None
    requests_in_flight: int | None
    decode_process: bool | str
    check_plan: bool


def show_loader_options(function: FunctionT) -> FunctionT:
    """Returns a function whose signature shows the fields of LoaderOptions in place of `**options`."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=LoaderArguments.__annotations__[option.name],
        )
        for option in fields(LoaderOptions)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function


class TorchAttributes:
    """Gives a loader the attributes of a torch `DataLoader`, with the values that describe it; all are read-only.

    The dataset makes the batches and their order, so there is no sampler, no batch size and nothing to collate.
    """

    worker_config: WorkerConfig
    _options: LoaderOptions

    batch_size: None = None
    """The dataset yields batches; their size is an option of `get_train_dataset`."""
    sampler: None = None
    """The plan of the dataset decides the order."""
    batch_sampler: None = None
    """Likewise."""
    drop_last = False
    """The dataset decides it (`batch_drop_last`)."""
    timeout = 0.0
    """A watchdog reports waits instead (`watchdog_timeout_seconds`)."""
    worker_init_fn: None = None
    """Workers seed the random generators themselves."""
    multiprocessing_context: None = None
    """`start_method` chooses how workers start."""
    generator: None = None
    """Seeds follow from `WorkerConfig.seed_offset`."""
    pin_memory_device = ""
    """Deprecated in torch."""
    in_order = True
    """Batches have a fixed order, whichever worker makes them first."""

    @property
    def num_workers(self) -> int:
        """Worker processes of this rank."""
        return self.worker_config.num_workers

    @property
    def prefetch_factor(self) -> int:
        """Blocks per stream that workers make ahead."""
        return self._options.prefetch_factor

    @property
    def pin_memory(self) -> bool:
        """Whether CPU batches are put into page-locked memory."""
        return self._options.pin_memory is True

    @property
    def persistent_workers(self) -> bool:
        """Whether workers outlive an epoch: True if there are any."""
        return self.worker_config.num_workers > 0

    @staticmethod
    def collate_fn(batch: T) -> T:
        """Returns a batch as it is: the dataset has made it."""
        return batch
