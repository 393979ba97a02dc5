"""Chooses how batches reach the trainer, and starts what brings them there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.errors import ConfigError
from energon_dali.loader.decode_process.delivery import ProcessDelivery
from energon_dali.loader.decode_process.messages import DecodeTask
from energon_dali.loader.decode_process.process import DecodeProcess
from energon_dali.loader.delivery import Delivery, DirectDelivery, ThreadedDelivery
from energon_dali.loader.pinning import pin
from energon_dali.loader.rank_part import RankPart
from energon_dali.loader.tree import rank_has_work
from energon_dali.loader.watchdog import Watchdog

if TYPE_CHECKING:
    from energon_dali.cache import CachePool
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.datasets.stream import State
    from energon_dali.loader.workers.launch import StartMethod
    from energon_dali.shards import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySetup:
    """What a loader was told, and where it stands."""

    dataset: SavableDataset[Any]
    """The tree, with its cut."""
    metrics: Metrics
    """Takes counts and times."""
    watchdog: Watchdog
    """Judges how long a wait may take."""
    state: State | None
    """Where to begin; None is the beginning."""
    prefetch_factor: int
    """Blocks per stream that workers make ahead, and batches that wait for the trainer."""
    start_method: StartMethod
    """How processes start."""
    cache_pool: CachePool | None
    """What the hooks see as `TaskEncoder.cache`."""
    pins: bool
    """Put CPU batches into page-locked memory."""
    retry_policy: RetryPolicy
    """How reading is repeated after errors."""
    decode_process: bool
    """Run the rank's part in a process of its own."""


def wants_decode_process(decode_process: bool | str, dataset: SavableDataset[Any]) -> bool:
    """Returns whether the rank's part runs in a process of its own.

    Args:
        decode_process: True, False, or "auto": where the rank decodes or runs hooks, beside workers.
        dataset: The tree, with its cut.

    Raises:
        ConfigError: It is none of these.
    """
    if decode_process == "auto":
        return dataset.worker_config.num_workers > 0 and rank_has_work(dataset)
    if not isinstance(decode_process, bool):
        raise ConfigError(f'decode_process={decode_process!r} is unknown: give True, False or "auto".')
    return decode_process


def open_delivery(setup: DeliverySetup) -> Delivery:
    """Returns what brings the batches of a rank to the trainer; its workers, processes and threads run.

    Raises:
        WorkerError: What they need cannot be pickled.
        ConfigError: The start method cannot work here.
        StateError: The state is not one of this dataset.
    """
    return _open_process(setup) if setup.decode_process else _open_here(setup)


def _open_here(setup: DeliverySetup) -> Delivery:
    watchdog = setup.watchdog
    part = RankPart(
        setup.dataset,
        setup.metrics,
        state=setup.state,
        prefetch_factor=setup.prefetch_factor,
        start_method=setup.start_method,
        cache_pool=setup.cache_pool,
        retry_policy=setup.retry_policy,
    )
    rank, pool = part.iterator, part.pool
    if pool is not None:
        watchdog.show_workers = pool.show_stacks
    change = pin if setup.pins else None
    # The native feed has no workers; num_workers > 0 then says that reading shall run ahead of the trainer.
    ahead = pool is not None or setup.dataset.worker_config.num_workers > 0
    try:
        if ahead and (setup.pins or rank_has_work(setup.dataset)):
            return ThreadedDelivery(rank, pool, watchdog, change, setup.prefetch_factor)
        if pool is not None:
            pool.on_wait = watchdog.check
        return DirectDelivery(rank, pool, watchdog, change)
    except BaseException:
        part.close()
        raise


def _open_process(setup: DeliverySetup) -> Delivery:
    import torch

    cuda: Any = torch.cuda
    task = DecodeTask(
        dataset=setup.dataset,
        state=setup.state,
        prefetch=setup.prefetch_factor,
        start_method=setup.start_method,
        cache_pool=setup.cache_pool,
        retry_policy=setup.retry_policy,
        device=cuda.current_device() if cuda.is_initialized() else None,
    )
    process = DecodeProcess(task, setup.metrics)
    setup.watchdog.show_workers = process.show_stacks

    def first_state() -> State:
        return setup.state if setup.state is not None else RankIterator(setup.dataset).state_dict()

    try:
        return ProcessDelivery(process, setup.watchdog, pin if setup.pins else None, first_state)
    except BaseException:
        process.close()
        raise
