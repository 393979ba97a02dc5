"""What every dataset is: a recipe that opens one iterator per stream, whose position can be saved."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from typing_extensions import Self

from energon_dali.datasets.recorder import Recorder
from energon_dali.datasets.resharding import refuse_indexing, refuse_resharding
from energon_dali.datasets.restore_key import Key, attempt, get_restore_key
from energon_dali.errors import ConfigError, StateError
from energon_dali.plan import mix
from energon_dali.shards.documents.state_entries import DAMAGED

if TYPE_CHECKING:
    from energon_dali.datasets.hand_over import BlockFeed
    from energon_dali.datasets.rank_iterator import RankIterator, RankLimit
    from energon_dali.datasets.sources.share_feedback import ShareFeedback
    from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")
State = dict[str, Any]
"""Plain ints, strings, bools, None, lists, and dicts with string keys."""


@dataclass(slots=True, eq=False)
class StreamContext:
    """What the iterators of one stream share in one process."""

    stream: int
    """Number of the stream, 0 <= stream < number of streams of the job."""
    recorder: Recorder = field(default_factory=Recorder)
    """Takes counts, times and failures."""
    feed: BlockFeed | None = None
    """Delivers the blocks of worker processes; None runs the part before the hand-over in this process."""
    in_worker: bool = False
    """Whether this process is a worker, which does nothing else."""
    feedback: ShareFeedback | None = None
    """Tells a blend below what its samples measured, where its weights hold in a unit other than samples."""


class StreamIterator(Iterator[T], ABC, Generic[T]):
    """The elements of one stream, in order, from a position that can be saved and restored."""

    @abstractmethod
    def __next__(self) -> T:
        """Returns the next element.

        Raises:
            StopIteration: The epoch of this stream is over; the next call begins the next epoch.
        """

    @abstractmethod
    def state_dict(self) -> State:
        """Returns the position after the last returned element, in plain values that survive JSON."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Continues at `state`; to be called before the first element is taken."""

    def last_key(self, element: T) -> Key:
        """Returns the restore key of the element that `__next__` gave last, also where the element has no place for it.

        Args:
            element: That element; not read where the iterator knows the key.
        """
        return get_restore_key(element)

    def read_ahead(self, count: int) -> None:
        """Reads what the next elements need, if there is anything to read; it changes no state.

        Args:
            count: How many elements will be taken soon; those that were read already count.
        """

    def close(self) -> None:
        """Lets go of files and buffers; the iterator is not used afterwards."""


def restore_stream(iterator: StreamIterator[Any], state: State, stream: int) -> None:
    """Continues an iterator at a state that may come from anywhere.

    Args:
        iterator: At its beginning.
        state: Of such an iterator.
        stream: Its number, for the message.

    Raises:
        StateError: The state is not one of such an iterator.
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


class SavableDataset(ABC, Generic[T]):
    """A dataset: an immutable, picklable recipe. `open` gives the iterator over one stream of it.

    Iterating the dataset itself runs the streams of this rank in this process, round robin, and its state is that of
    the live iteration; a loader does the same with worker processes.
    """

    runs_in_rank = False
    """Whether this dataset itself has to run in the rank's process, because it uses the device or ends its epochs."""

    def __init__(self, worker_config: WorkerConfig) -> None:
        self.worker_config = worker_config

    @abstractmethod
    def open(self, context: StreamContext) -> StreamIterator[T]:
        """Returns a new iterator over the elements of `context.stream`, at its very beginning."""

    @property
    @abstractmethod
    def children(self) -> tuple[SavableDataset[Any], ...]:
        """The datasets that this one reads from."""

    @abstractmethod
    def len_stream(self, stream: int) -> int:
        """Returns the number of elements of one epoch of a stream, as far as it is known before hooks run."""

    def with_children(self, *children: SavableDataset[Any]) -> Self:
        """Returns a copy that reads from other datasets; itself where it reads from none.

        Args:
            *children: As many as `children`.

        Raises:
            TypeError: This class has children and does not say how to replace them.
        """
        if self.children:
            raise TypeError(f"{type(self).__name__} must override with_children, since it has children.")
        return self

    place = 0
    """Number of the place among several datasets; what is drawn here depends on it."""

    def placed(self, number: int) -> Self:
        """Returns a copy for a place of its own among several datasets: the same data has another order there.

        Args:
            number: Number of the place; a copy at place 2 of place 1 differs from one at place 1 of place 2.
        """
        twin = self.with_children(*(child.placed(number) for child in self.children))
        if twin is not self:
            twin.place = mix(self.place, number)
        return twin

    @property
    def place_seed(self) -> int:
        """Seed of what hooks of this dataset draw: the job's, and another at each place among several datasets."""
        seed = self.worker_config.seed_offset
        return mix(seed, self.place) if self.place else seed

    def with_old_shares(self) -> Self:
        """Returns a copy that shares out validation samples as earlier releases did, for states that they saved.

        It is this dataset itself where that makes no difference.
        """
        old = [child.with_old_shares() for child in self.children]
        if all(one is other for one, other in zip(old, self.children, strict=True)):
            return self
        try:
            return self.with_children(*old)
        except TypeError:  # a dataset of the user's own that cannot be copied with others below
            return self

    def rank_limit(self) -> RankLimit | None:
        """Returns after how many elements an epoch of a rank ends; None where the streams themselves end it.

        The rank then runs the dataset below in its place, and counts the elements of all its streams together.
        """
        return None

    def describe(self) -> str:
        """Returns one line about this dataset alone, for `str()`."""
        return type(self).__name__

    def config(self) -> dict[str, Any]:
        """Returns what this dataset does, as plain values; two datasets with equal configs give equal orders."""
        inner = [child.inner_config() for child in self.children]
        return {"type": type(self).__name__, **({"inner": inner[0] if len(inner) == 1 else inner} if inner else {})}

    def inner_config(self) -> dict[str, Any]:
        """Returns `config` for a dataset that stands inside another."""
        return self.config()

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Returns the number of elements per epoch in one worker (default 0) of this rank."""
        config = self.worker_config
        return sum(self.len_stream(s) for s in config.layout.worker_streams(config.rank, worker_idx or 0))

    def len_rank(self) -> int:
        """Returns the number of elements per epoch in this rank."""
        return sum(self.len_stream(stream) for stream in self.worker_config.streams)

    def __len__(self) -> int:
        return self.len_rank()

    def worker_has_samples(self) -> bool:
        """Returns whether any stream of this rank has an element."""
        return any(self.len_stream(stream) for stream in self.worker_config.streams)

    def can_restore_sample(self) -> bool:
        """Returns whether `restore_sample` works: whether every hook below is marked stateless."""
        return all(child.can_restore_sample() for child in self.children)

    def assert_can_restore(self) -> None:
        """Raises StateError if `restore_sample` cannot work, naming the dataset in the way."""
        if not self.can_restore_sample():
            raise StateError(
                f"{self.describe()} cannot restore single samples, because a hook below is not marked "
                f"@stateless:\n{self}\n"
                "Mark the hook with @stateless (or @stateless(restore_seeds=True) if it draws random numbers)."
            )

    def restore_sample(self, restore_key: tuple[Any, ...]) -> T:
        """Returns the element of a `__restore_key__`, made anew.

        Args:
            restore_key: The `__restore_key__` of an element of this dataset; lists in place of tuples will do.

        Raises:
            StateError: The key is not of this dataset, or a hook is not stateless.
        """
        raise StateError(f"{self.describe()} cannot restore single samples.")

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        """Returns the elements of several keys, read together where that is cheaper; errors in place of lost ones.

        Raises:
            StateError: A key is not of this dataset, or a hook is not stateless.
        """
        return [attempt(self.restore_sample, key) for key in keys]

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def __str__(self) -> str:
        lines = [self.describe()]
        for child in self.children:
            lines += ["  " + line for line in str(child).splitlines()]
        return "\n".join(lines)

    # --- iteration in this process ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[T]:
        refuse_resharding(self.worker_config)
        return iter(self._live())

    def __getitem__(self, index: object) -> NoReturn:
        raise refuse_indexing(self)

    def state_dict(self) -> State:
        """Returns the state of the live iteration in this process."""
        return self._live().state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continues the iteration in this process at `state`; to be called before iterating.

        Raises:
            StateError: The state is of another dataset, or iteration has begun.
        """
        self._live().load_state_dict(state)

    save_state = state_dict
    restore_state = load_state_dict

    def _live(self) -> RankIterator[T]:
        from energon_dali.datasets.rank_iterator import RankIterator

        live = self.__dict__.get("_live_iteration")
        if live is None:
            live = self.__dict__["_live_iteration"] = RankIterator(self)
        return live

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_live_iteration"}


class WrapperDataset(SavableDataset[T]):
    """A dataset that reads from one other."""

    def __init__(self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig | None = None) -> None:
        if not isinstance(dataset, SavableDataset):
            raise ConfigError(
                f"{type(self).__name__} was given {dataset!r}, which is no dataset of energon_dali. Give what "
                "get_train_dataset or get_val_dataset returns, or another dataset of this package around it."
            )
        super().__init__(worker_config=worker_config or dataset.worker_config)
        if worker_config is not None and worker_config != dataset.worker_config:
            raise ConfigError(
                f"{type(self).__name__} was given {worker_config}, but the dataset below has {dataset.worker_config}. "
                "All datasets of a tree share one WorkerConfig; leave it out to take the inner one's."
            )
        self.dataset = dataset

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return (self.dataset,)

    def with_children(self, *children: SavableDataset[Any]) -> Self:
        twin = copy.copy(self)
        (twin.dataset,) = children
        return twin

    def len_stream(self, stream: int) -> int:
        return self.dataset.len_stream(stream)
