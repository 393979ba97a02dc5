"""The loaders that a trainer sees.

That of training has endless data in epochs of a length, and the position of what was trained on. In that of validation
and test, every iteration begins at the beginning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from energon_dali.loader.basic_loader import BasicDataLoader
from energon_dali.loader.savable_loader import SavableDataLoader, SavableLoaderIterator

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State
    from energon_dali.loader.statistics import LoaderStatistics


@dataclass(slots=True)
class FetchedBatch:
    """A batch that the trainer fetched, and that the saved position does not contain yet."""

    batch: Any
    """Kept until the trainer takes it into a step; None afterwards."""
    position: Any
    """The loader's position after this batch."""


class FollowedSteps(ABC):
    """The part of a loader that follows a trainer which fetches batches before it trains on them.

    After `follow` the position is the one after the last batch that `trained` reported as part of an optimizer step.
    """

    def __init__(self) -> None:
        self._fetched: deque[FetchedBatch] = deque()
        self._taken = 0
        self._trained = 0
        self._blind = False
        self._position: Any = None

    @abstractmethod
    def delivered_position(self) -> Any:
        """Returns the position after the last batch that was handed out."""

    def follow(self) -> None:
        """From now on only those batches count as trained on that `trained` confirms."""
        if self._position is None:
            self._position = self.delivered_position()

    def take(self) -> None:
        """The trainer begins a step with the oldest batch that it fetched."""
        # A training_step that takes the iterator itself begins before anything was fetched.
        self._blind = self._taken == len(self._fetched)
        if not self._blind:
            self._fetched[self._taken].batch = None
            self._taken += 1

    def trained(self, *, stepped: bool) -> None:
        """The step that `take` began is done.

        Args:
            stepped: Whether the weights were changed; False while gradients are accumulated.
        """
        if self._blind:
            self._taken = len(self._fetched)
        self._trained = self._taken
        if stepped:
            for _ in range(self._trained):
                self._position = self._fetched.popleft().position
            self._taken = self._trained = 0

    @property
    def unsettled(self) -> int:
        """Batches trained on since the last step of the optimizer, which the position does not contain."""
        return self._trained

    def _untaken(self) -> list[FetchedBatch]:
        """Removes and returns the batches that were fetched and never taken, in their order."""
        untaken = [self._fetched.pop() for _ in range(len(self._fetched) - self._taken)]
        return untaken[::-1]


T = TypeVar("T")


class TrainLoader(FollowedSteps, SavableDataLoader[T]):
    """A savable loader for trainers that fetch batches before they train on them.

    Without `follow` it is a SavableDataLoader with epochs. With it, the state is the one after the last batch that
    `trained` reported as part of an optimizer step, and a batch that was fetched and never taken is handed out again.

    Args:
        dataset: Endless, as `get_train_dataset` gives it.
        length: Batches of an epoch of this rank; None never ends. Epochs are counted from each `iter` on: the data
            continues where it was.
        **options: As for SavableDataLoader.

    Raises:
        ConfigError: An option cannot work.
    """

    def __init__(self, dataset: SavableDataset[T], *, length: int | None = None, **options: Any) -> None:
        FollowedSteps.__init__(self)
        SavableDataLoader.__init__(self, dataset, **options)
        self.length = length
        self._again: deque[FetchedBatch] = deque()

    # --- iteration -------------------------------------------------------------------------------------------------

    def __iter__(self) -> TrainLoaderIterator[T]:
        return TrainLoaderIterator(self)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("This loader never ends, so it has no length: set virtual_epoch_length to end epochs.")
        return self.length

    def begin(self) -> None:
        """Lets what was fetched and never taken come again, as a new iteration begins."""
        self._again.extendleft(reversed(self._untaken()))

    def _next(self, epoch: int) -> T:
        if self._again:
            fetched = self._again.popleft()
        else:
            batch = super()._next(epoch)
            if self._position is None:
                return batch
            fetched = FetchedBatch(batch, self.delivered_position())
        self._fetched.append(fetched)
        result: T = fetched.batch
        return result

    # --- state -----------------------------------------------------------------------------------------------------

    def save_state_rank(self) -> State:
        """Returns the state of this rank: after the last batch that was trained on, if `follow` was called."""
        return super().save_state_rank() if self._position is None else self._make_state(self._position)

    def state_dict(self) -> State:
        """Returns the state of this rank; nothing once `follow` was called.

        Lightning would put that of rank 0 into checkpoints, and load it on all ranks, but only in the middle of an
        epoch; the data module saves the states of all ranks.
        """
        return super().state_dict() if self._position is None else {}

    def load_state_dict(self, state: State) -> None:
        """Does the same as restore_state_rank; nothing with what `state_dict` returned once `follow` was called.

        Raises:
            StateError: Iteration has begun, or the state is of another dataset.
            LayoutError: The state does not fit this layout of ranks and workers.
        """
        if state:
            super().load_state_dict(state)

    def delivered_position(self) -> State:
        """Returns the position of this rank after the last batch that was handed out."""
        return self._plain_position()


class TrainLoaderIterator(SavableLoaderIterator[T]):
    """One epoch of a TrainLoader.

    Args:
        loader: The loader.
    """

    def __init__(self, loader: TrainLoader[T]) -> None:
        super().__init__(loader)
        self._train_loader = loader
        self._count = 0

    def __next__(self) -> T:
        length = self._train_loader.length
        if self.exhausted or (length is not None and self._count >= length):
            self.exhausted = True
            raise StopIteration
        if self._count == 0:
            self._train_loader.begin()
        batch = super().__next__()
        self._count += 1
        return batch


class EvalLoader(Generic[T]):
    """Gives the same batches in every iteration, also after one that was left in the middle.

    Workers are kept from one iteration to the next, except after one that was left in the middle.

    Args:
        dataset: What `get_val_dataset` returned.
        **options: As for BasicDataLoader.

    Raises:
        ConfigError: An option cannot work.
    """

    def __init__(self, dataset: SavableDataset[T], **options: Any) -> None:
        self.dataset = dataset
        self._options = options
        self._loader: BasicDataLoader[T] = BasicDataLoader(dataset, **options)
        self._batches: Iterator[T] = iter(self._loader)
        self._given = 0

    def __iter__(self) -> Iterator[T]:
        # A generator: nothing happens before the first batch is asked for.
        for batch in self._begin():
            self._given += 1
            yield batch
        self._given = 0

    def __len__(self) -> int:
        return self.dataset.len_rank()

    def _begin(self) -> Iterator[T]:
        """Returns an iteration from the beginning."""
        if self._given:
            # A caller that uses the length does not ask for the end, so it is looked for now.
            at_end = self._given >= len(self) and next(self._batches, None) is None
            self._given = 0
            if not at_end:
                self.close()
        self._batches = iter(self._loader)
        return self._batches

    def stats(self) -> LoaderStatistics:
        """Returns what happened since the workers started; see BasicDataLoader.stats."""
        return self._loader.stats()

    def close(self) -> None:
        """Ends workers and threads; may be called again."""
        self._loader.close()
        self._loader, self._given = BasicDataLoader(self.dataset, **self._options), 0

    def __str__(self) -> str:
        return f"EvalLoader\n{self._loader}"
