"""One stream of a dataset: its iterators, its states, and the blocks in which its elements cross processes."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.planned import Planned
from energon_dali.datasets.restore_key import Key, get_restore_key
from energon_dali.errors import ConfigError, StateError
from energon_dali.shards.documents.state_entries import DAMAGED

if TYPE_CHECKING:
    from energon_dali.datasets.mixing.share_feedback import ShareFeedback

T = TypeVar("T")
State = dict[str, Any]
"""Plain ints, strings, bools, None, lists, and dicts with string keys."""


@dataclass(slots=True, eq=False)
class Block:
    """A run of consecutive elements of one stream, with the state of the stream after each of them."""

    stream: int
    """The stream they belong to, as the source of blocks knows it."""
    elements: list[Any] = field(default_factory=list)
    """Samples with media handles, or finished batches."""
    states: list[State] = field(default_factory=list)
    """State of the part below the worker border after each element; as many as elements."""
    keys: dict[int, Key] = field(default_factory=dict)
    """By index, the restore keys of those elements that cannot hold one themselves."""
    end_state: State | None = None
    """Set where the stream's epoch ends after the last element: the state from which the next epoch starts."""


class BlockSource(Protocol):
    """Delivers blocks of streams that run elsewhere; streams have the numbers of `WorkerBorder.block_stream`."""

    def start(self, stream: int, state: State | None) -> None:
        """Starts a stream at a state, or at its beginning; returns at once."""

    def start_all(self, streams: Iterable[int]) -> None:
        """Starts streams at their beginning below every border of the tree, so that all workers begin at once.

        Args:
            streams: Numbers of streams of the job.
        """

    def next_block(self, stream: int) -> Block:
        """Returns the next block of a stream, in order; waits for it. A block with an end_state ends an epoch, and the
        next block belongs to the next epoch.

        Raises:
            WorkerError: The process that runs the stream is gone.
            Exception: Whatever error ended the stream there.
        """

    def ready(self, stream: int) -> bool:
        """Returns whether `next_block` would return without waiting for the process that runs the stream."""


@dataclass(slots=True, eq=False)
class StreamContext:
    """What the iterators of one stream share in one process."""

    stream: int
    """Number of the stream, 0 <= stream < number of streams of the job."""
    metrics: Metrics = field(default_factory=Metrics)
    """Takes counts, times and failures."""
    blocks: BlockSource | None = None
    """Delivers the blocks of worker processes; None runs the part below the worker border in this process."""
    in_worker: bool = False
    """Whether this process is a worker, which does nothing else."""
    fresh_process: bool = False
    """Whether it is a new Python, without what the trainer's program set after its imports."""
    feedback: ShareFeedback | None = None
    """Tells a blend below what its samples measured, where its weights hold in a unit other than samples."""


class StreamIterator(Iterator[T], ABC, Generic[T]):
    """The elements of one stream, in order, from a position that can be saved and restored."""

    @abstractmethod
    def __next__(self) -> T:
        """Returns the next element.

        Raises:
            StopIteration: The epoch of this stream is over; the next call starts the next epoch.
        """

    @abstractmethod
    def state_dict(self) -> State:
        """Returns the position after the last element, in values that `plain` turns into JSON."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Continues at `state`. Call it before the first element is taken."""

    def last_key(self, element: T) -> Key:
        """Returns the restore key of the last element, even if the element has no field for it.

        Args:
            element: That element; not read if the iterator knows the key.
        """
        return get_restore_key(element)

    def skip(self, count: int) -> int:
        """Skips elements, without reading where their number alone decides the position after them.

        Where a hook makes one element of each, it does not run: it is taken to drop none. What decides at run time
        which elements it yields is run.

        Args:
            count: Number of elements.

        Returns:
            How many were skipped. Fewer than `count` if the epoch ended; the next element is of the next epoch then.
        """
        for number in range(count):
            try:
                next(self)
            except StopIteration:
                return number
        return count

    def plan(self, count: int) -> Planned:
        """Returns which samples the next elements hold, and skips these elements; reads nothing.

        Args:
            count: Number of elements. There are fewer if the epoch ends before; the end is taken then.

        Raises:
            ConfigError: What the elements are made of is decided at run time.
        """
        raise ConfigError(
            f"{type(self).__name__.strip('_')} decides at run time which elements it yields, so no plan can tell what "
            "they hold."
        )

    def read_ahead(self, count: int) -> None:
        """Reads what the next elements need, without changing the state.

        Args:
            count: Number of elements that will be taken soon, including those that were already read.
        """

    def close(self) -> None:
        """Releases files and buffers. The iterator is not used afterwards."""


class WrapperIterator(StreamIterator[T]):
    """An iterator over another one. What a subclass does not override is that of the inner iterator.

    Args:
        inner: The iterator of the dataset below.
    """

    def __init__(self, inner: StreamIterator[Any]) -> None:
        self._inner = inner

    def last_key(self, element: T) -> Key:
        return self._inner.last_key(element)

    def state_dict(self) -> State:
        return self._inner.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._inner.load_state_dict(state)

    def close(self) -> None:
        self._inner.close()


def restore_stream(iterator: StreamIterator[Any], state: State, stream: int) -> None:
    """Continues an iterator at a state that may be damaged.

    Args:
        iterator: Before its first element.
        state: The saved state of such an iterator.
        stream: Number of the stream, for the message.

    Raises:
        StateError: The state does not fit the iterator.
    """
    try:
        iterator.load_state_dict(state)
    except StateError as error:
        _, of_an_entry, reason = str(error).partition(DAMAGED)
        if not of_an_entry:
            raise
        raise StateError(f"The state of stream {stream} is damaged, or of another release: {reason}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StateError(
            f"The state of stream {stream} is damaged, or of another release: restoring it failed with "
            f"{type(error).__name__}: {str(error)[:300]}. Restore another one."
        ) from error


class Snapshot:
    """Rows that no longer change: keys, such as those of a packing buffer in one round, or states.

    Args:
        rows: Nested lists or tuples of plain values and states, which must not be changed.
        data: The same, pickled, instead of the rows if another process sent them.
    """

    __slots__ = ("_data", "_plain", "_rows")

    def __init__(self, rows: Sequence[Any] | None = None, data: bytes = b"") -> None:
        self._rows = rows
        self._data = data
        self._plain: list[Any] | None = None

    @property
    def rows(self) -> Sequence[Any]:
        """The rows, unpickled on first access."""
        if self._rows is None:
            self._rows = pickle.loads(self._data)
        return self._rows

    @property
    def plain_rows(self) -> list[Any]:
        """The rows as nested lists, converted on first access; the caller must not change them."""
        if self._plain is None:
            self._plain = _plain_rows(self.rows)
        return self._plain

    @property
    def data(self) -> bytes:
        """The rows, pickled."""
        return self._data or pickle.dumps(self._rows, protocol=5)

    def __reduce__(self) -> Any:
        return Snapshot, (None, self.data)


class Rest:
    """The rows of a snapshot from `start` on. A state holds it in place of the list of these rows.

    Making a state with a Rest takes the same time however many rows there are. `plain` replaces it by the list. The
    rows become plain lists once per snapshot: the lists of several states share them.

    Args:
        snapshot: The rows.
        start: Index of the first row that belongs to the state.
    """

    __slots__ = ("snapshot", "start")

    def __init__(self, snapshot: Snapshot, start: int = 0) -> None:
        self.snapshot = snapshot
        self.start = start

    def __reduce__(self) -> Any:
        return Rest, (self.snapshot, self.start)


def plain(state: Any) -> Any:
    """Returns a state in plain values, with lists in place of the parts that it shares with other states.

    The dicts and lists of the state are new. The rows inside these lists belong to all states of a round, so that
    saving after every pack of a buffer of thousands does not copy the keys of the whole buffer each time.
    """
    if isinstance(state, Rest):
        return state.snapshot.plain_rows[state.start :]
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    if isinstance(state, list):
        return [plain(value) for value in state]
    return state


def _plain_rows(rows: Any) -> Any:
    """Returns rows as nested lists, with the states among them in plain values."""
    if isinstance(rows, (list, tuple)):
        return [_plain_rows(row) if isinstance(row, (list, tuple, dict)) else row for row in rows]
    return plain(rows)
