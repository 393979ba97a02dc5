"""The messages between a process that serves blocks or batches and the process that takes them.

A worker serves blocks of several streams to the rank. A decode process serves batches to the trainer in the same way:
each batch is a block of stream 0. The states of a stream travel with its blocks; parts that several of them share are
sent once.
"""

from __future__ import annotations

import io
import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.hooks import text_of
from energon_dali.errors import WorkerError
from energon_dali.loader.processes.serialization import dumps
from energon_dali.shards.documents.state_entries import Rest, Snapshot

if TYPE_CHECKING:
    from energon_dali.loader.decode_process.device_memory import DevicePiece
    from energon_dali.loader.processes.tensor_table import Extent, TensorLayout

_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
_MOST_FRAMES = 200
"""The frames of this package above a hook are fewer."""

SentStates = tuple[bytes, dict[int, bytes], list[int]]
"""(pickled states that contain numbers of snapshots, new pickled snapshots by number, numbers that stay known)."""

WHOLE_PROCESS = -1
"""Stream number in the `StreamFailed` of a process that could not rebuild its task."""


@dataclass(slots=True, eq=False)
class StartStream:
    """Start a stream at a state; restart it there if it is running."""

    stream: int
    generation: int
    """How often the stream was started before. Blocks of an earlier start may still be on the way; they are dropped."""
    state: dict[str, Any] | None
    """None is the beginning. With global batches, {"cursor": ...} is where the job begins."""
    credits: int
    """Blocks that may be on the way."""


@dataclass(slots=True, eq=False)
class Credits:
    """What the receiver took, and what it released, since its last message."""

    blocks: dict[int, int] = field(default_factory=dict)
    """By stream, how many more blocks there is room for."""
    next_epoch: list[int] = field(default_factory=list)
    """Streams that continue after the end of their epoch."""
    released_arenas: list[int] = field(default_factory=list)
    """Arenas that nobody sees any more."""
    released_device_arenas: list[int] = field(default_factory=list)
    """The same on GPUs. Work that uses such an arena precedes its event `released`."""
    closed_device_arenas: list[int] = field(default_factory=list)
    """Dropped arenas on GPUs that the receiver has closed, so that their memory can be freed."""
    stop: bool = False
    """Stop the work and send FinalStats; the process ends when the receiver hangs up."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)

    def add(self, other: Credits) -> None:
        """Adds what another message says."""
        for stream, count in other.blocks.items():
            self.blocks[stream] = self.blocks.get(stream, 0) + count
        self.next_epoch += other.next_epoch
        self.released_arenas += other.released_arenas
        self.released_device_arenas += other.released_device_arenas
        self.closed_device_arenas += other.closed_device_arenas
        self.stop |= other.stop


@dataclass(slots=True, eq=False)
class BlockSent:
    """A block, in an arena, or after this message if it is small."""

    stream: int
    generation: int
    arena: int
    """Number of the arena, -1 for a block inside the message."""
    new_capacity: int
    """Size of a new arena in bytes; its descriptor travels with the message. 0 for a known arena."""
    dropped_arenas: list[int]
    """Arenas that the sender unmapped; the receiver does the same."""
    extents: list[Extent]
    """See `serialization.deserialize`."""
    tensors: TensorLayout | None
    """See `serialization.deserialize`."""
    stats: dict[str, Any] | None
    """What the process counted since its last message."""
    device_pieces: list[DevicePiece] | None
    """The parts of the block on GPUs, one per GPU."""
    dropped_device_arenas: list[int] | None
    """Arenas on GPUs that the receiver has to close."""


@dataclass(slots=True, eq=False)
class StillWorking:
    """No block is finished yet, but samples were tried."""

    stats: dict[str, Any] | None
    """What became of them."""


@dataclass(slots=True, eq=False)
class EpochEnded:
    """The epoch of a decode process is over; the next begins when the receiver asks for it."""

    state: dict[str, Any]
    stats: dict[str, Any] | None


@dataclass(slots=True, eq=False)
class FinalStats:
    """The last message of a process that was asked to stop."""

    stats: dict[str, Any] | None


@dataclass(slots=True, eq=False)
class StreamFailed:
    """An exception ended a stream."""

    stream: int
    generation: int
    exception: bytes | None
    """The pickled exception; None if it cannot be pickled."""
    summary: str
    """Type and text of the exception."""
    traceback: str
    """Its traceback in the process."""
    stats: dict[str, Any] | None


Message = StartStream | Credits | BlockSent | StillWorking | EpochEnded | FinalStats | StreamFailed

# Both sides know the classes by number: pickling them by name would take half of the time of a message.
_KINDS: tuple[Any, ...] = (StartStream, Credits, BlockSent, StillWorking, EpochEnded, FinalStats, StreamFailed)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
_LENGTH_BYTES = 4


def encode(message: Message, payload: bytes | bytearray = b"") -> bytes:
    """Returns a message, followed by its payload, as bytes."""
    values = tuple(getattr(message, name) for name in message.__slots__)
    head = pickle.dumps((_NUMBERS[type(message)], values), protocol=5)
    return b"".join((len(head).to_bytes(_LENGTH_BYTES, "little"), head, payload))


def decode(data: bytes) -> tuple[Message, memoryview]:
    """Returns (message, payload); the payload is a writable copy."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    kind, values = pickle.loads(memoryview(data)[_LENGTH_BYTES:end])
    payload = memoryview(bytearray(memoryview(data)[end:])) if len(data) > end else memoryview(b"")
    return _KINDS[kind](*values), payload


class WorkerTraceback(Exception):  # noqa: N818 - not an error: it shows where one was raised
    """The cause of an exception from another process: the traceback there, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def failed_stream(stream: int, generation: int, error: BaseException, stats: dict[str, Any] | None) -> StreamFailed:
    """Returns the message about an exception; one that does not survive pickling travels as text.

    SystemExit, KeyboardInterrupt, GeneratorExit and the like, which a hook raised, travel as a WorkerError: in the
    trainer they would mean something else.

    Args:
        stream: The stream that it ended, or WHOLE_PROCESS.
        generation: How often that stream was started before.
        error: The exception.
        stats: What the process counted since its last message.
    """
    sent: BaseException = error
    if not isinstance(error, Exception):
        sent = WorkerError(
            f"{_find_hook(error)} raised {text_of(error)} outside the trainer's process. It does not derive "
            "from Exception, so it is not counted as the failure of a sample: it ends the run. To drop a sample, raise "
            "SkipSample; to end the run, raise FatalSampleError."
        )
    pickled: bytes | None
    try:
        pickled = dumps(sent)
        pickle.loads(pickled)
    except Exception:
        pickled = None
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return StreamFailed(stream, generation, pickled, summary, text, stats)


def _find_hook(error: BaseException) -> str:
    """Returns the name and the line of the user's function that an exception left; "A hook" if it is not known."""
    for frame in traceback.extract_tb(error.__traceback__, limit=_MOST_FRAMES):
        if not frame.filename.startswith(_PACKAGE):
            return f"{frame.name} ({frame.filename}:{frame.lineno})"
    return "A hook"


def rebuild_error(message: StreamFailed, where: str) -> Exception:
    """Returns the exception of a message, caused by its traceback in the other process.

    Args:
        message: What `failed_stream` returned.
        where: The process, for the text, such as "worker 1, stream 3".
    """
    subject = f"{where[:1].upper()}{where[1:]}"
    error: Exception | None
    if message.stream == WHOLE_PROCESS:
        error = WorkerError(
            f"{subject} could not rebuild the dataset: {message.summary}. What the dataset holds must be importable in "
            "a new process, or be defined in the script itself."
        )
    else:
        error = _unpickled(message) or WorkerError(
            f"{subject} failed with an exception that cannot travel between processes: {message.summary}. Give it "
            "attributes that can be pickled, and it is raised here as what it is."
        )
    error.__cause__ = WorkerTraceback(f"In {where}:\n{message.traceback}")
    return error


def _unpickled(message: StreamFailed) -> Exception | None:
    if message.exception is None:
        return None
    try:
        error = pickle.loads(message.exception)
    except Exception:
        return None
    return error if isinstance(error, Exception) else None


class StateSender:
    """Pickles the states of one stream for another process, each snapshot once while states refer to it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Snapshot]] = {}
        """By id, (number, snapshot) of what the last sent states refer to; kept alive, so that the ids stay valid."""
        self._count = 0

    def send(self, states: Any) -> SentStates:
        """Returns states, in any nesting, in the form that a StateReceiver takes, in this order."""
        live: dict[int, tuple[int, Snapshot]] = {}
        new: dict[int, bytes] = {}

        def number_of(snapshot: Snapshot) -> int:
            known = live.get(id(snapshot)) or self._known.get(id(snapshot))
            if known is None:
                self._count += 1
                known = (self._count, snapshot)
                new[self._count] = snapshot.data
            live[id(snapshot)] = known
            return known[0]

        file = io.BytesIO()
        _StatePickler(file, number_of).dump(states)
        self._known = live
        return file.getvalue(), new, [number for number, _ in live.values()]


class StateReceiver:
    """Takes the states of one stream, in the order in which they were sent."""

    def __init__(self) -> None:
        self._known: dict[int, Snapshot] = {}

    def take(self, sent: SentStates) -> Any:
        """Returns the states."""
        data, new, live = sent
        self._known = {number: Snapshot(data=new[number]) if number in new else self._known[number] for number in live}
        return _StateUnpickler(io.BytesIO(data), self._known).load()


class _StatePickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, number_of: Callable[[Snapshot], int]) -> None:
        super().__init__(file, protocol=5)
        self._number_of = number_of

    def reducer_override(self, obj: Any) -> Any:
        # Called for instances of classes alone, so plain values cost nothing.
        return (_known_rest, (self._number_of(obj.snapshot), obj.start)) if type(obj) is Rest else NotImplemented


class _StateUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, known: dict[int, Snapshot]) -> None:
        super().__init__(file)
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        return self._rest if name == _known_rest.__name__ else super().find_class(module, name)

    def _rest(self, number: int, start: int) -> Rest:
        return Rest(self._known[number], start)


def _known_rest(number: int, start: int) -> Rest:
    """Represents a rest of a snapshot, which the receiver finds by its number, in pickled states."""
    raise AssertionError(f"the rest of snapshot {number} from row {start} was unpickled without its table")
