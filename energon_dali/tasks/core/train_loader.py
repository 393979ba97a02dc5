"""The loader that a trainer sees: endless data in epochs of a length, and the position of what was trained on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.loader.loader_state import make_state
from energon_dali.loader.savable_loader import SavableDataLoader, SavableLoaderIterator

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State

T = TypeVar("T")


@dataclass(slots=True)
class _Fetched:
    """A batch that the trainer fetched, and that the saved position does not contain yet."""

    batch: Any
    """Kept until the trainer takes it into a step; None afterwards."""
    position: State
    """Of the rank, behind this batch."""


class TrainLoader(SavableDataLoader[T]):
    """A savable loader for trainers that fetch batches before they train on them.

    Without `follow` it is a SavableDataLoader with epochs. After it the state is that behind the last batch of which
    `trained` said that it went into an optimizer step, and a batch that was fetched and never taken comes again.

    Args:
        dataset: Endless, as `get_train_dataset` gives it.
        length: Batches of an epoch of this rank; None never ends. Epochs are counted from each `iter` on: the data
            goes on where it was.
        **options: As for SavableDataLoader.

    Raises:
        ConfigError: An option cannot work.
    """

    def __init__(self, dataset: SavableDataset[T], *, length: int | None = None, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.length = length
        self._fetched: deque[_Fetched] = deque()
        self._taken = 0
        self._trained = 0
        self._again: deque[_Fetched] = deque()
        self._position: State | None = None
        self._blind = False

    # --- what the trainer does -------------------------------------------------------------------------------------

    def follow(self) -> None:
        """From now on only those batches count as given that `trained` confirms."""
        if self._position is None:
            self._position = self._delivered()

    def take(self) -> None:
        """The trainer begins a step with the oldest batch that it fetched."""
        # A training_step that takes the iterator itself begins with nothing in hand.
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
        """Batches that were trained on since the last step of the optimizer, which the state does not contain."""
        return self._trained

    # --- iteration -------------------------------------------------------------------------------------------------

    def __iter__(self) -> TrainLoaderIterator[T]:
        return TrainLoaderIterator(self)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("This loader never ends, so it has no length: set virtual_epoch_length to end epochs.")
        return self.length

    def begin(self) -> None:
        """Lets what was fetched and never taken come again, as a new iteration begins."""
        while len(self._fetched) > self._taken:
            self._again.appendleft(self._fetched.pop())

    def _next(self, epoch: int) -> T:
        if self._again:
            fetched = self._again.popleft()
        else:
            batch = super()._next(epoch)
            if self._position is None:
                return batch
            fetched = _Fetched(batch, self._delivered())
        self._fetched.append(fetched)
        result: T = fetched.batch
        return result

    # --- state -----------------------------------------------------------------------------------------------------

    def save_state_rank(self) -> State:
        """Returns the state of this rank: behind the last batch that was trained on, if `follow` was called."""
        return super().save_state_rank() if self._position is None else make_state(self._position, self._tree)

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

    def _delivered(self) -> State:
        if self._delivery is not None:
            return self._delivery.state()
        return self._state if self._state is not None else RankIterator(self._tree).state_dict()


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
