"""Ends epochs after a number of elements: virtual epochs for training, and limits for validation."""

from __future__ import annotations

from typing import Any

from typing_extensions import Self

from energon_dali.calls import check_count, explain_call
from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.rank_iterator import RankLimit
from energon_dali.datasets.stream import Move, PassingWrapperIterator, State, StreamContext, StreamIterator
from energon_dali.plan.global_step import Cursor
from energon_dali.shards.documents.state_entries import count_of, state_of
from energon_dali.worker_config import WorkerConfig


class EpochizeDataset(PassThroughDataset[Any]):
    """Ends an epoch after `length` elements of each rank; the next epoch continues where it ended.

    If the data below ends within an epoch, that epoch is shorter, and the next one starts the data again. The outermost
    dataset counts the elements of all streams of the rank together. Inside another dataset, `length` counts the
    elements of the whole job: each stream yields its part of it, and what does not divide goes to the streams in turn.
    So a state of such a tree restores onto any number of ranks that divides the streams.

    Args:
        dataset: The dataset below, usually endless.
        length: Elements per epoch, at least 1: of each rank, or of the job inside another dataset.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: length is not a whole number of at least 1.
    """

    holds_elements = False
    keeps_steps = True
    plan_obstacle = None
    restart = False
    steps: int | None = None
    """Steps of the job per epoch, where global batches decide how many elements these are; see `of_steps`."""
    shortest = 1
    """The shortest length of an epoch."""

    @explain_call
    def __init__(self, dataset: SavableDataset[Any], length: int, worker_config: WorkerConfig | None = None) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.length = check_count("length", length, "it counts the elements of an epoch", least=self.shortest)

    @classmethod
    def of_steps(cls, dataset: SavableDataset[Any], steps: int) -> Self:
        """Returns one whose epochs have a number of steps of the job; of elements without global batches."""
        batches = dataset.global_batches
        if batches is None:
            return cls(dataset, steps)
        twin = cls(dataset, steps * batches.micro_batches_per_step)
        twin.steps = steps
        return twin

    def continued(self, start: Cursor, config: WorkerConfig) -> Self:
        twin = super().continued(start, config)
        if twin.steps is not None and (batches := twin.global_batches) is not None:
            twin.length = twin.steps * batches.micro_batches_per_step
        return twin

    def describe(self) -> str:
        return f"{type(self).__name__}(length={self.length})"

    @property
    def rank_limit(self) -> RankLimit:  # type: ignore[override]
        """The length of an epoch, and whether the next one starts from the beginning."""
        return RankLimit(self.length, self.restart)

    def stream_length(self, stream: int, epoch: int = 0) -> int:
        """Returns how many elements of an epoch one stream yields, where this dataset is inside another."""
        layout = self.worker_config.layout
        total = self.length
        # Element k of the job comes from stream k % num_streams; epoch e has those from e * total on.
        start, stop = (
            -(-(number * total - stream) // layout.num_streams)
            for number in ((0, 1) if self.restart else (epoch, epoch + 1))
        )
        return stop - start

    def len_stream(self, stream: int) -> int:
        return self.stream_length(stream) if self.dataset.len_stream(stream) else 0

    def len_rank(self) -> int:
        return self.length

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _EpochizeIterator(self, context)


class LimitDataset(EpochizeDataset):
    """Ends an epoch after at most `length` elements of each rank; the next epoch starts from the beginning.

    It counts like `EpochizeDataset`: the elements of all streams of a rank if it is the outermost dataset, else those
    of the job.

    Args:
        dataset: The dataset below.
        length: Elements per epoch: of each rank, or of the job inside another dataset. 0 yields nothing.
        reset_after_epoch: Accepted for compatibility with Energon, where every epoch starts from the beginning as well.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: length is not a whole number of at least 0.
    """

    restart = True
    shortest = 0

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        length: int,
        *,
        reset_after_epoch: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, length, worker_config)

    def len_stream(self, stream: int) -> int:
        return min(self.stream_length(stream), self.dataset.len_stream(stream))

    def len_rank(self) -> int:
        return min(self.length, self.dataset.len_rank())


class _EpochizeIterator(PassingWrapperIterator):
    """The part of one stream."""

    def __init__(self, dataset: EpochizeDataset, context: StreamContext) -> None:
        super().__init__(dataset.dataset.open(context))
        self._dataset = dataset
        self._context = context
        self._epoch = 0
        self._given = 0

    def _pass(self, count: int, move: Move) -> int:
        moved = 0
        is_again = False
        while moved < count:
            left = self._dataset.stream_length(self._context.stream, self._epoch) - self._given
            if left <= 0:
                self._end()
                break
            wanted = min(count - moved, left)
            taken = move(0, wanted)
            moved += taken
            self._given += taken
            if taken == wanted:
                continue
            if self._given or self._dataset.restart:
                self._end()
                break
            if is_again:
                break  # empty data
            is_again = True  # the data ended exactly with the last epoch: it starts again
        return moved

    def _end(self) -> None:
        self._given = 0
        self._epoch += 1
        if self._dataset.restart:
            self._inner.close()
            self._inner = self._dataset.dataset.open(self._context)

    def state_dict(self) -> State:
        return {"epoch": self._epoch, "given": self._given, "inner": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._epoch, self._given = count_of(state, "epoch"), count_of(state, "given")
        self._inner.load_state_dict(state_of(state))
