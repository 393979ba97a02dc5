"""One stream of a dataset: its iterators, its states, and the blocks in which its elements cross processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.planned import Planned, joined
from energon_dali.errors import ConfigError
from energon_dali.samples.base import Key, get_restore_key

if TYPE_CHECKING:
    from energon_dali.datasets.mixing.share_feedback import ShareFeedback

T = TypeVar("T")
State = dict[str, Any]
"""Plain ints, strings, bools, None, lists, and dicts with string keys."""


@dataclass(slots=True, eq=False)
class Block:
    """A run of consecutive elements of one stream, with the state of the stream after each of them."""

    stream: int
    """The stream they belong to, by its number in the source of blocks."""
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

    def start_all(self, streams: Iterable[int], cursor: State | None) -> None:
        """Starts streams at their beginning below every border of the tree, so that all workers begin at once.

        Args:
            streams: Numbers of streams of the job.
            cursor: With global batches, where they begin, as {"cursor": ...}; else None.
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
    """Reports to a blend below what its samples measured, where its weights hold in a unit other than samples."""


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
            element: That element; not read if the iterator has the key.
        """
        return get_restore_key(element)

    def skip(self, count: int, planned: list[Planned] | None = None) -> int:
        """Skips elements, without reading where their number alone decides the position after them.

        Where a hook makes one element of each, it does not run: it is taken to drop none. What decides at run time
        which elements it yields is run, unless the elements are to be planned.

        Args:
            count: Number of elements.
            planned: Takes plans of the elements, in their order; None plans nothing.

        Returns:
            How many were skipped. Fewer than `count` if the epoch ended; the next element is of the next epoch then.

        Raises:
            ConfigError: The elements are to be planned, and what they are made of is decided at run time.
        """
        if planned is not None:
            raise ConfigError(
                f"{type(self).__name__.strip('_')} decides at run time which elements it yields, so no plan can say "
                "what they hold."
            )
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
        planned: list[Planned] = []
        self.skip(count, planned)
        return joined(planned)

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


Move = Callable[[int, int], int]
"""Moves (a member, by a number of its elements), and returns by how many; fewer if the member's epoch ended."""


class PassingIterator(StreamIterator[Any]):
    """The elements of one or several iterators, its members, as they are, in an order that numbers alone decide.

    `_pass` is the one place where a subclass decides on that order: elements are taken, skipped and planned by it.
    """

    _element: Any = None

    @abstractmethod
    def _pass(self, count: int, move: Move) -> int:
        """Moves members by elements, in order; returns by how many, fewer if the epoch ended.

        Args:
            count: Number of elements, at least 0.
            move: Takes or skips elements of a member.
        """

    @abstractmethod
    def _member(self, number: int) -> StreamIterator[Any]:
        """Returns a member, which is about to move."""

    def _take(self, number: int, _: int = 1) -> int:
        """Takes the next element of a member; returns 1, or 0 if its epoch ended."""
        try:
            self._element = next(self._member(number))
        except StopIteration:
            return 0
        return 1

    def __next__(self) -> Any:
        if not self._pass(1, self._take):
            raise StopIteration
        element, self._element = self._element, None
        return element

    def skip(self, count: int, planned: list[Planned] | None = None) -> int:
        return self._pass(count, lambda number, wanted: self._member(number).skip(wanted, planned))


class PassingWrapperIterator(PassingIterator, WrapperIterator[Any]):
    """The elements of the iterator below; its only member has the number 0."""

    def _member(self, number: int) -> StreamIterator[Any]:
        return self._inner
