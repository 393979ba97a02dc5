"""What the trainer and its decode process tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from energon_dali.loader.decode_process.batch import Extent
from energon_dali.loader.workers.messages import Codec, StillAtWork, StreamFailed

if TYPE_CHECKING:
    from energon_dali.cache import CachePool
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State
    from energon_dali.loader.decode_process.device_memory import DevicePiece
    from energon_dali.loader.workers.launch import StartMethod
    from energon_dali.shards import RetryPolicy


@dataclass(slots=True, eq=False)
class DecodeTask:
    """The first thing a decode process gets, by cloudpickle: what it runs."""

    dataset: SavableDataset[Any]
    """The tree, with its cut."""
    state: State | None
    """Where to begin; None is the beginning."""
    prefetch: int
    """As `prefetch_factor` of the loader."""
    start_method: StartMethod
    """How its workers start."""
    cache_pool: CachePool | None
    """What the hooks see as `TaskEncoder.cache`, here and in the workers."""
    retry_policy: RetryPolicy
    """How reading is repeated after errors, here and in the workers."""
    device: int | None
    """The trainer's GPU; None where it has not begun to use one."""


@dataclass(slots=True, eq=False)
class Wanted:
    """What the trainer wants, and what it has let go, since it last said so."""

    batches: int = 0
    """Batches for which there is room now."""
    next_epoch: bool = False
    """Run on behind the end of the epoch."""
    unseen_arenas: list[int] = field(default_factory=list)
    """Arenas that nobody sees any more."""
    unseen_device_arenas: list[int] = field(default_factory=list)
    """Likewise those on GPUs; what was begun with them comes before the event that each has for it."""
    closed_device_arenas: list[int] = field(default_factory=list)
    """Arenas on GPUs that were let go and are closed here, so that their memory can be freed."""
    stop: bool = False
    """End the work, with a Farewell; the process itself ends when the trainer hangs up."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)

    def add(self, other: Wanted) -> None:
        """Takes in what another one says."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True, eq=False)
class BatchSent:
    """A batch: in an arena, or behind this message if it is small."""

    arena: int
    """Number of the arena, -1 for a batch that follows inside the message."""
    new_capacity: int
    """Bytes of the arena if it is new (its descriptor comes with the message), else 0."""
    dropped_arenas: list[int]
    contents: Extent
    """Where the pickled Contents lie."""
    state: Extent
    """Where the pickled state behind this batch lies."""
    record: Extent
    """Where lies, pickled, what the metrics drained."""
    device_pieces: list[DevicePiece]
    """Where what lies on GPUs lies."""
    dropped_device_arenas: list[int]


@dataclass(slots=True, eq=False)
class EpochEnded:
    """The epoch is over; the next begins when it is wanted."""

    state: State
    record: dict[str, Any] | None


@dataclass(slots=True, eq=False)
class Farewell:
    """The last message."""

    record: dict[str, Any] | None


CODEC = Codec((Wanted, BatchSent, EpochEnded, StreamFailed, Farewell, StillAtWork))
