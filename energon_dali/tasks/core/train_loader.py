"""The loader that a trainer sees: endless data in epochs of a length, and the position of what was trained on."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.loader.savable_loader import SavableDataLoader, SavableLoaderIterator
from energon_dali.tasks.core.position.followed_steps import FetchedBatch, FollowedSteps

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State

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
        return self._state or RankIterator(self._tree).state_dict()


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
