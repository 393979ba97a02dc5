"""What the rank and its workers tell each other."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.cache import CachePool
    from energon_dali.datasets.worker_border import WorkerBorder
    from energon_dali.shards import RetryPolicy

Extents = list[tuple[int, int]]


@dataclass(slots=True, eq=False)
class WorkerTask:
    """The first thing a worker gets, by cloudpickle: what it runs."""

    borders: list[WorkerBorder]
    """The borders by number, each with everything below it."""
    rank: int
    """Rank it works for."""
    worker: int
    """Its number inside the rank."""
    seed_offset: int
    """The job's."""
    spare_arenas: int
    """Free arenas that it keeps."""
    cache_pool: CachePool | None = None
    """What its hooks see as `TaskEncoder.cache`."""
    retry_policy: RetryPolicy | None = None
    """How it repeats reading after errors; None is the default."""


@dataclass(slots=True, eq=False)
class StartStream:
    """Begin a stream at a state, or anew if it is running."""

    stream: int
    generation: int
    """Counts the starts of a stream: blocks of an earlier start are on the way and not wanted any more."""
    state: dict[str, Any] | None
    credits: int
    """Blocks that may be on the way."""


@dataclass(slots=True, eq=False)
class Progress:
    """What the rank took since it last said so."""

    credits: dict[int, int] = field(default_factory=dict)
    """Stream to number of blocks taken."""
    next_epoch: list[int] = field(default_factory=list)
    """Streams that shall run on behind the end of their epoch."""
    unseen_arenas: list[int] = field(default_factory=list)
    """Arenas that nobody sees any more."""

    def __bool__(self) -> bool:
        return bool(self.credits or self.next_epoch or self.unseen_arenas)


@dataclass(slots=True, eq=False)
class BlockSent:
    """A block: in an arena, or behind this message if it is small."""

    stream: int
    generation: int
    arena: int
    """Number of the arena, -1 for a block that follows inside the message."""
    new_capacity: int
    """Bytes of the arena if it is new (its descriptor comes with the message), else 0."""
    dropped_arenas: list[int]
    extents: Extents
    record: dict[str, Any] | None
    """What the worker's metrics drained."""


@dataclass(slots=True, eq=False)
class StillAtWork:
    """No block or batch is done yet, but samples were tried: what became of them."""

    record: dict[str, Any] | None
    """What the metrics drained."""


@dataclass(slots=True, eq=False)
class StreamFailed:
    """A stream ended with an exception."""

    stream: int
    generation: int
    exception: bytes | None
    """The pickled exception; None if it cannot be pickled."""
    summary: str
    """Type and text of the exception."""
    traceback: str
    """Its traceback in the worker."""
    record: dict[str, Any] | None


Message = StartStream | Progress | BlockSent | StreamFailed | StillAtWork

_LENGTH_BYTES = 4


class Codec:
    """Turns messages into bytes and back.

    Args:
        kinds: The classes of all messages: dataclasses with slots. Both sides know them by their numbers: pickling them
            by name would take half of the time of a message.
    """

    def __init__(self, kinds: tuple[type[Any], ...]) -> None:
        self._kinds = kinds
        self._numbers = {kind: number for number, kind in enumerate(kinds)}

    def encode(self, message: Any, payload: bytes | bytearray = b"") -> bytes:
        """Returns a message and the payload behind it as bytes."""
        values = tuple(getattr(message, name) for name in message.__slots__)
        head = pickle.dumps((self._numbers[type(message)], values), protocol=5)
        return b"".join((len(head).to_bytes(_LENGTH_BYTES, "little"), head, payload))

    def decode(self, data: bytes) -> tuple[Any, memoryview]:
        """Returns the message and its payload, writable bytes of their own if there are any."""
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        kind, values = pickle.loads(memoryview(data)[_LENGTH_BYTES:end])
        payload = memoryview(bytearray(memoryview(data)[end:])) if len(data) > end else memoryview(b"")
        return self._kinds[kind](*values), payload


_CODEC = Codec((StartStream, Progress, BlockSent, StreamFailed, StillAtWork))


def encode(message: Message, payload: bytes | bytearray = b"") -> bytes:
    """Returns a message and the payload behind it as bytes."""
    return _CODEC.encode(message, payload)


def decode(data: bytes) -> tuple[Message, memoryview]:
    """Returns the message and its payload, writable bytes of their own if there are any."""
    return _CODEC.decode(data)
