"""The rank, workers and streams of this process."""

from __future__ import annotations

import json
import logging
import operator
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from energon_dali.calls import explain_call
from energon_dali.error_handlers import log_exception, reraise_exception
from energon_dali.errors import ConfigError
from energon_dali.host_cores import cores_per_rank as cores_per_rank
from energon_dali.plan.layout import Layout as Layout
from energon_dali.plan.layout import divisors
from energon_dali.plan.rng import mix
from energon_dali.samples.delivery import Delivery, Role
from energon_dali.share_group import Axes, axes_of_groups, axes_of_mesh, check_sharing, groups_of_megatron, meet

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from energon_dali.samples.context_parallel import ContextCut
    from energon_dali.share_group import ShareGroup

AUTO_STREAMS_PER_RANK = 8
"""Streams per rank with num_workers="auto", where num_streams is not given: for 1, 2, 4 or 8 workers."""

ErrorHandler = Callable[[Exception, Any, "list[Any] | None"], None]

_DEBUG_LOG = logging.getLogger("energon_dali.debug")


class _ActiveConfig(type):
    """Gives WorkerConfig a class attribute that each thread has for itself: hooks may run in another one."""

    @property
    def active_worker_config(cls) -> WorkerConfig | None:
        """The configuration in hooks, while a user's dataset runs, and after `worker_activate`; None otherwise."""
        return RUNNING.config

    @active_worker_config.setter
    def active_worker_config(cls, config: WorkerConfig | None) -> None:
        RUNNING.config = config


@explain_call
@dataclass(slots=True, kw_only=True, eq=False)
class WorkerConfig(metaclass=_ActiveConfig):
    """The rank of this process in the job, and the options that all processes must share.

    Two configurations are equal when their rank, world size, workers and streams are.
    """

    rank: int
    """Data-parallel rank of this process, 0 <= rank < world_size."""
    world_size: int
    """Number of data-parallel ranks."""
    num_workers: int
    """Worker processes of this rank; 0 runs everything in this process. "auto" starts with a number that fits the
    cores, and changes it while the run goes on (docs/workers.md); it fixes the number of streams, so no batch changes.
    This field then holds the number at the start. Cost: a process each, with memory of its own and its share of the
    cores (docs/capacity.md)."""
    data_parallel_group: ProcessGroup | None = None
    """Group over which global states are gathered; None is the default group. Never created here."""
    seed_offset: int = 0
    """Seed of every order and every random draw of the job."""
    num_streams: int | None = None
    """Logical streams of the job; None is world_size x max(1, num_workers), or world_size x 8 with num_workers="auto".
    Fixed for the life of a job."""
    worker_debug_path: str | None = None
    """File for the debug log, a line of JSON per delivered element; may contain {worker_id} and {pid}. With
    {worker_id}, rank r has the file r x (num_workers + 1) for what it delivers, and its worker w the file w + 1 after
    it for the elements of its streams, as in Energon. None logs to `energon_dali.debug`."""
    worker_log_level: int = 0
    """0 logs nothing; 1 and more log the keys of each delivered element. Cost: a line of JSON for each delivered
    element."""
    trace_path: str | os.PathLike[str] | None = None
    """File for a trace that Perfetto opens: what each process of this rank does, and when the trainer waits
    (docs/observing.md). May contain {rank} and {pid}, and must contain one of them if there are several ranks. None
    traces nothing. Cost: some microseconds per sample and stage, and the file."""
    trace_max_bytes: int = 2**30
    """Size at which the trace ends; training goes on. Cost: as much disk."""
    global_error_handler: ErrorHandler = field(default=log_exception)
    """Called with (exception, sample, sources) for every sample that failed."""
    restore_error_handler: ErrorHandler = field(default=reraise_exception)
    """Called with (exception, sample, sources) when a sample of a restored buffer fails."""
    share_group: ShareGroup | None = None
    """The ranks that need the same batches as this one; `from_mesh` and `from_groups` find them. Cost: shared memory
    for the batches on their way (docs/parallelism.md)."""
    delivery: Delivery | None = None
    """What this rank gets of each batch; None is all of it."""
    _derived: bool = field(default=False, init=False, repr=False)
    """Whether rank and world size are those of the whole job, as they were known then."""
    is_auto: bool = field(default=False, init=False, repr=False)
    """Whether num_workers="auto" was given."""
    chose_streams: bool = field(default=False, init=False, repr=False)
    """Whether num_workers="auto" chose num_streams, which was not given."""

    if TYPE_CHECKING:  # dataclass makes it; written down because num_workers takes more than the field holds

        def __init__(
            self,
            *,
            rank: int,
            world_size: int,
            num_workers: int | Literal["auto"],
            data_parallel_group: ProcessGroup | None = None,
            seed_offset: int = 0,
            num_streams: int | None = None,
            worker_debug_path: str | None = None,
            worker_log_level: int = 0,
            trace_path: str | os.PathLike[str] | None = None,
            trace_max_bytes: int = 2**30,
            global_error_handler: ErrorHandler = log_exception,
            restore_error_handler: ErrorHandler = reraise_exception,
            share_group: ShareGroup | None = None,
            delivery: Delivery | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        given: object = self.num_workers
        if given == "auto":
            self.is_auto, self.num_workers = True, 0
        for name in (
            "rank",
            "world_size",
            "num_workers",
            "seed_offset",
            "num_streams",
            "worker_log_level",
            "trace_max_bytes",
        ):
            value = getattr(self, name)
            if value is None and name == "num_streams":
                continue
            try:
                setattr(self, name, operator.index(value))
            except TypeError as error:
                or_auto = ' or "auto"' if name == "num_workers" else ""
                raise ConfigError(f"{name}={value!r} is not a whole number: give an int{or_auto}.") from error
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank={self.rank} of world_size={self.world_size} is invalid: world_size must be at least 1 "
                "and 0 <= rank < world_size. Take both from torch.distributed or from torchrun's environment, as "
                "WorkerConfig.default_worker_config() does."
            )
        if self.num_workers < 0:
            raise ConfigError(
                f"num_workers={self.num_workers} is negative: give 0 (in this process) or a positive number."
            )
        for name in ("global_error_handler", "restore_error_handler"):
            if not callable(getattr(self, name)):
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is not a function: give one that takes an exception, a sample and "
                    "a list of sources, such as energon_dali.log_exception."
                )
        check_sharing(self.share_group, self.delivery)
        if self.worker_debug_path is not None:
            self.worker_debug_path = _checked_path(
                "worker_debug_path", self.worker_debug_path, worker_id=self.rank, pid=os.getpid()
            )
        if self.trace_path is not None:
            self._check_trace_path()
        if self.is_auto:
            self._choose_workers()
        _ = self.layout  # raises LayoutError if the number of streams does not fit

    def _choose_workers(self) -> None:
        """Fixes the number of streams, and chooses a number of workers for the start that divides a rank's."""
        if self.num_streams is None:
            self.num_streams = AUTO_STREAMS_PER_RANK * self.world_size
            self.chose_streams = True
        streams = Layout(self.world_size, 1, self.num_streams).num_streams // self.world_size
        self.num_workers = max(count for count in divisors(streams) if count <= min(4, cores_per_rank()))

    def _check_trace_path(self) -> None:
        path = self.trace_path = _checked_path("trace_path", self.trace_path, rank=self.rank, pid=os.getpid())
        own, other = (path.format(rank=self.rank + n, pid=os.getpid() + n) for n in range(2))
        if own == other and self.world_size > 1:
            raise ConfigError(
                f"trace_path={path!r} is the same file for all {self.world_size} ranks. Put {{rank}} into it, as in "
                "'trace-{rank}.json'."
            )

    @property
    def layout(self) -> Layout:
        """The streams of each rank and worker; raises LayoutError if the streams cannot be divided."""
        workers = max(1, self.num_workers)
        streams = self.world_size * workers if self.num_streams is None else self.num_streams
        return Layout(world_size=self.world_size, num_workers=workers, num_streams=streams)

    @property
    def streams(self) -> list[int]:
        """The streams of this rank, in the order in which their batches are delivered."""
        return self.layout.rank_streams(self.rank)

    @classmethod
    def default_worker_config(
        cls, num_workers: int | Literal["auto"] = 4, data_parallel_group: ProcessGroup | None = None, **kwargs: Any
    ) -> WorkerConfig:
        """Returns the configuration of this process, from torch.distributed or torchrun's environment.

        Args:
            num_workers: Worker processes per rank; "auto" adapts their number while the run goes on.
            data_parallel_group: Data-parallel group, if it is not the whole world.
            **kwargs: Further fields of WorkerConfig.

        Raises:
            ConfigError: RANK or WORLD_SIZE in the environment is invalid.
        """
        rank, world_size = _rank_and_world_size(data_parallel_group)
        config = cls(
            rank=rank, world_size=world_size, num_workers=num_workers, data_parallel_group=data_parallel_group, **kwargs
        )
        config._derived = data_parallel_group is None
        return config

    @classmethod
    def from_mesh(
        cls,
        device_mesh: DeviceMesh,
        *,
        data: str | Sequence[str],
        shared: str | Sequence[str] = (),
        num_workers: int | Literal["auto"] = 4,
        deliver: Mapping[str, Role] | Literal["megatron"] | None = None,
        cut: ContextCut | None = None,
        across_nodes: bool = False,
        **kwargs: Any,
    ) -> WorkerConfig:
        """Returns the configuration of this process in a mesh. A collective call: every rank of the mesh makes it.

        Ranks that differ only along shared dimensions, such as tensor-parallel ones, get the same batches: on each
        node one of them reads, and the others take its batches (docs/parallelism.md).

        Args:
            device_mesh: A mesh whose dimensions have names.
            data: Names of the dimensions over which the samples are divided, such as ("dp_replicate", "dp_shard").
            shared: Names of the dimensions whose ranks need the same batches, such as ("tp", "cp", "pp").
            num_workers: Worker processes of each rank that reads; "auto" adapts their number.
            deliver: Which ranks get which fields of a batch, such as {"pixel_values": "first_stage"}: "all",
                "first_stage", "last_stage" or "ends" of the dimension "pp". "megatron" delivers what Megatron's models
                read. None delivers all fields.
            cut: How the ranks of the dimension "cp" divide a batch; None leaves that to the model.
            across_nodes: Whether one rank reads for all nodes of a group that spans several, and the first rank of each
                other node takes batches over the network. By default one rank on each node reads.
            **kwargs: Further fields of WorkerConfig.

        Raises:
            ConfigError: A name is not in the mesh, a dimension with more than one rank is in neither list, or a role is
                unknown.
        """
        return cls._from_axes(axes_of_mesh(device_mesh, data, shared), num_workers, deliver, cut, across_nodes, kwargs)

    @classmethod
    def from_groups(
        cls,
        data_parallel_group: ProcessGroup | None = None,
        *,
        shared: Mapping[str, ProcessGroup | None],
        num_workers: int | Literal["auto"] = 4,
        deliver: Mapping[str, Role] | Literal["megatron"] | None = None,
        cut: ContextCut | None = None,
        across_nodes: bool = False,
        **kwargs: Any,
    ) -> WorkerConfig:
        """Returns the configuration of this process from process groups. A collective call over the shared ones.

        Args:
            data_parallel_group: The ranks that read different samples; None is the whole world.
            shared: Groups of ranks that need the same batches, by name, such as {"tp": ..., "cp": ..., "pp": ...}, or
                one group of all of them under any name. None stands for a group of one.
            num_workers: As in `from_mesh`.
            deliver: As in `from_mesh`.
            cut: As in `from_mesh`.
            across_nodes: As in `from_mesh`.
            **kwargs: Further fields of WorkerConfig.

        Raises:
            StateError: torch.distributed is not initialised.
            ConfigError: A role is unknown.
        """
        axes = axes_of_groups(data_parallel_group, shared)
        return cls._from_axes(axes, num_workers, deliver, cut, across_nodes, kwargs)

    @classmethod
    def from_megatron(
        cls,
        groups: Any = None,
        *,
        shared: str | Sequence[str] = ("tp", "cp", "pp"),
        num_workers: int | Literal["auto"] = 4,
        deliver: Mapping[str, Role] | Literal["megatron"] | None = None,
        cut: ContextCut | None = None,
        across_nodes: bool = False,
        **kwargs: Any,
    ) -> WorkerConfig:
        """Returns the configuration of this process in a job of Megatron-Core. A collective call.

        Args:
            groups: `megatron.core.parallel_state`, a ProcessGroupCollection, or None, which imports the former.
            shared: Names of the groups whose ranks need the same batches: "tp", "cp", "pp". Leave "pp" out where
                only some stages take batches.
            num_workers: As in `from_mesh`.
            deliver: As in `from_mesh`.
            cut: As in `from_mesh`.
            across_nodes: As in `from_mesh`.
            **kwargs: Further fields of WorkerConfig.

        Raises:
            StateError: torch.distributed is not initialised.
            ConfigError: Megatron-Core is not installed, or a role is unknown.
        """
        found = groups_of_megatron(groups)
        names = (shared,) if isinstance(shared, str) else shared
        axes = axes_of_groups(found["dp"], {name: found[name] for name in names})
        return cls._from_axes(axes, num_workers, deliver, cut, across_nodes, kwargs)

    @classmethod
    def _from_axes(
        cls,
        axes: Axes,
        num_workers: int | Literal["auto"],
        deliver: Mapping[str, Role] | Literal["megatron"] | None,
        cut: ContextCut | None,
        across_nodes: bool,
        kwargs: dict[str, Any],
    ) -> WorkerConfig:
        delivery = Delivery(axes.place, deliver, cut)
        return cls(
            rank=axes.rank,
            world_size=axes.world_size,
            data_parallel_group=axes.data_parallel_group,
            num_workers=num_workers,
            share_group=meet(axes.shared, across_nodes=across_nodes),
            delivery=None if delivery.changes_nothing else delivery,
            **kwargs,
        )

    def with_workers(self, num_workers: int) -> WorkerConfig:
        """Returns a copy for another number of workers and the same streams.

        Raises:
            ConfigError: It is not a whole number of at least 0.
            LayoutError: It does not divide the streams of the rank.
        """
        return self._with(num_workers=num_workers, num_streams=self.layout.num_streams)

    def with_layout(self, *, rank: int, world_size: int, num_workers: int) -> WorkerConfig:
        """Returns a copy for other ranks and workers, of a job with global batches: it has no fixed streams.

        Raises:
            ConfigError: A number is out of its range.
        """
        return self._with(rank=rank, world_size=world_size, num_workers=num_workers, num_streams=None)

    def _with(self, **changes: Any) -> WorkerConfig:
        twin = replace(self, **changes)
        twin._derived, twin.is_auto = self._derived, self.is_auto
        return twin

    def check_derived_rank(self) -> None:
        """Checks that `default_worker_config` was not called before the processes of the job knew each other.

        Raises:
            ConfigError: torch.distributed has another rank or world size by now.
        """
        dist: Any = sys.modules.get("torch.distributed")
        if not self._derived or dist is None or not (dist.is_available() and dist.is_initialized()):
            return
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if (rank, world_size) != (self.rank, self.world_size):
            raise ConfigError(
                f"WorkerConfig.default_worker_config() found rank {self.rank} of {self.world_size}, and "
                f"torch.distributed has rank {rank} of {world_size}: it was called too early, and ranks would read the "
                "same samples. Call it after the process group is initialised (after fabric.launch(), Accelerator(), "
                "init_process_group()), or give rank and world_size to WorkerConfig yourself."
            )

    def global_rank(self) -> int:
        """Returns the rank of this process in the whole world, of which the data-parallel group may be a part."""
        import torch.distributed as dist

        if self.data_parallel_group is None or not (dist.is_available() and dist.is_initialized()):
            return self.rank
        return dist.get_global_rank(self.data_parallel_group, self.rank)

    def rank_worker_id(self) -> int:
        """Returns the number of the running stream among the streams of this rank: what Energon calls a worker.

        Raises:
            ConfigError: Neither a hook nor a user's dataset runs in this thread.
        """
        if RUNNING.stream is None:
            raise ConfigError(
                "The worker is known only in hooks and while a dataset with its own __iter__ runs. Read it there. "
                "For random numbers in hooks, @stateless(restore_seeds=True) seeds the generators."
            )
        return self.streams.index(RUNNING.stream)

    def global_worker_id(self, override_local_worker_id: int | None = None) -> int:
        """Returns the number of the running stream in the job.

        Args:
            override_local_worker_id: Number of another stream of this rank.

        Raises:
            ConfigError: Neither a hook nor a user's dataset runs in this thread, and no number was given.
        """
        return self.streams[self.rank_worker_id() if override_local_worker_id is None else override_local_worker_id]

    def worker_seed(self, override_local_worker_id: int | None = None) -> int:
        """Returns the seed of the running stream, 0 <= seed < 2**32.

        Args:
            override_local_worker_id: Number of another stream of this rank.

        Raises:
            ConfigError: Neither a hook nor a user's dataset runs in this thread, and no number was given.
        """
        return mix(self.seed_offset, self.global_worker_id(override_local_worker_id)) % 2**32

    def assert_worker(self) -> None:
        """Checks that a user's dataset runs in this thread.

        Raises:
            ConfigError: None does.
        """
        self.rank_worker_id()

    if TYPE_CHECKING:
        active_worker_config: ClassVar[WorkerConfig | None]
    else:

        @property
        def active_worker_config(self) -> WorkerConfig | None:
            """That of the class: instances do not have the attributes of a metaclass."""
            return RUNNING.config

    def worker_activate(
        self, sample_index: int, override_global_rank: int | None = None, cache_pool: Any = None
    ) -> None:
        """Makes the numbers of the worker and of the sample answer in this thread, until `worker_deactivate`.

        Programs that call hooks themselves do this. Iterating a dataset does not need it.

        Args:
            sample_index: Number of the sample among those of the worker.
            override_global_rank: Number of the stream in the job; None is that of this torch worker process, or the
                first of this rank.
            cache_pool: Has no effect: give it to the loader.

        Raises:
            ConfigError: A configuration is active already, or there is no such stream in this rank.
        """
        if WorkerConfig.active_worker_config is not None:
            raise ConfigError(
                "A WorkerConfig is active in this process already. Call worker_deactivate() on it first, and call "
                "worker_activate() outside of hooks: there, the one of the loader is active."
            )
        data: Any = sys.modules.get("torch.utils.data")
        info = None if data is None else data.get_worker_info()
        stream = self.streams[0 if info is None else info.id] if override_global_rank is None else override_global_rank
        if stream not in self.streams:
            raise ConfigError(
                f"override_global_rank={stream} is not a stream of rank {self.rank}: give one of {self.streams}."
            )
        RUNNING.stream, RUNNING.samples = stream, [sample_index]
        WorkerConfig.active_worker_config = self

    def worker_deactivate(self) -> None:
        """Ends what `worker_activate` began; may be called again."""
        RUNNING.stream, RUNNING.samples = None, []
        WorkerConfig.active_worker_config = None

    def worker_push_sample_index(self, sample_index: int) -> None:
        """Makes the sample of an inner stage current, until `worker_pop_sample_index`.

        Args:
            sample_index: Number of the sample among those of the worker.

        Raises:
            ConfigError: `worker_activate` was not called.
        """
        self._activated_samples().append(sample_index)

    def worker_pop_sample_index(self) -> int:
        """Returns the number that was pushed last, and makes the one before it current.

        Raises:
            ConfigError: `worker_activate` was not called.
        """
        return self._activated_samples().pop()

    @property
    def active_worker_sample_index(self) -> int:
        """Number of the current sample over all workers of this rank."""
        return self._activated_samples()[-1] * self.layout.num_workers + self.rank_worker_id()

    @property
    def active_worker_batch_index(self) -> int:
        """Number of the current batch over all workers of this rank."""
        return self._activated_samples()[0] * self.layout.num_workers + self.rank_worker_id()

    def _activated_samples(self) -> list[int]:
        if not RUNNING.samples:
            raise ConfigError(
                "The number of the sample is held by a WorkerConfig only between worker_activate(sample_index) and "
                "worker_deactivate(). In hooks use self.current_sample_index."
            )
        return RUNNING.samples

    def should_log(self, level: int) -> bool:
        """Returns whether entries of a level are written to the debug log."""
        return self.worker_log_level >= level

    def worker_log(self, data: Mapping[str, Any]) -> None:
        """Writes a line of JSON to the debug log of the running worker, in hooks, or else to that of the rank.

        Programs ask `should_log` before. If the file cannot be written, the line is lost, with a warning.

        Args:
            data: What the line holds.
        """
        line = json.dumps(data, default=str)
        if self.worker_debug_path is None:
            _DEBUG_LOG.info("%s", line)
            return
        stream = RUNNING.stream
        worker = 0 if stream is None or not self.num_workers else 1 + self.layout.worker_of_stream(stream)[1]
        number = self.rank * (self.num_workers + 1) + worker
        path = self.worker_debug_path.format(worker_id=number, pid=os.getpid())
        try:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:  # training is more important than its log
            _DEBUG_LOG.warning("The debug log lacks a line: could not write %s: %s", path, error)

    def config(self) -> dict[str, Any]:
        """Returns the values that the order of a job depends on."""
        return {
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "seed_offset": self.seed_offset,
            "num_streams": self.layout.num_streams,
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerConfig):
            return NotImplemented
        return (self.rank, self.layout) == (other.rank, other.layout) and self.num_workers == other.num_workers

    def __hash__(self) -> int:
        return hash((self.rank, self.world_size, self.num_workers))

    def __getstate__(self) -> dict[str, Any]:
        # Process groups and sockets cannot be pickled, and workers do not need them.
        state = {name: getattr(self, name) for name in self.__slots__}
        state["data_parallel_group"] = state["share_group"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def _checked_path(option: str, given: object, **names: int) -> str:
    """Returns the path of a log, in which names in braces may occur.

    Args:
        option: Name of the option.
        given: Its value.
        **names: What may be in braces.

    Raises:
        ConfigError: It is not a path, or has other braces.
    """
    path = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigError(f"{option}={given!r} is not a path. Give the path of a file, or None.")
    try:
        path.format(**names)
    except (LookupError, AttributeError, ValueError) as error:
        allowed = " and ".join(f"{{{name}}}" for name in names)
        raise ConfigError(
            f"{option}={path!r} has braces with another content than {allowed}. Give a path such as "
            f"'log-{{{next(iter(names))}}}.json'; a brace of the name itself is written twice."
        ) from error
    return path


class IdleCores:
    """Cores of a worker process that nobody else needs yet: those of its rank, while all workers make a first block."""

    count = 1
    """Threads that a decoder may use; 1 in other processes and later, when the workers keep all cores busy."""


class _Running(threading.local):
    """The stream that runs in this thread, and what a program set by `WorkerConfig.worker_activate`."""

    stream: int | None = None
    config: WorkerConfig | None = None

    def __init__(self) -> None:
        self.samples: list[int] = []
        """Numbers of the samples that a program works on by itself, outermost stage first."""


RUNNING = _Running()


def _rank_and_world_size(group: ProcessGroup | None) -> tuple[int, int]:
    """Returns (rank, world size) from torch.distributed if it is set up, else from torchrun's environment."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(group), dist.get_world_size(group)
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError as error:
        raise ConfigError(
            f"RANK={os.environ.get('RANK')!r} and WORLD_SIZE={os.environ.get('WORLD_SIZE')!r} must both be whole "
            "numbers. Start with torchrun, or unset both."
        ) from error
