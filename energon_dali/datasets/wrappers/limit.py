"""Ends epochs after a number of elements and starts again from the beginning: limits a validation."""

from __future__ import annotations

from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.wrappers.epochize import EpochizeDataset
from energon_dali.worker_config import WorkerConfig


class LimitDataset(EpochizeDataset):
    """Ends an epoch after at most `length` elements of each rank; the next epoch starts from the beginning.

    It counts like `EpochizeDataset`: the elements of all streams of a rank if it is the outermost dataset, else those
    of the job.

    Args:
        dataset: The dataset below.
        length: Elements per epoch, at least 1: of each rank, or of the job inside another dataset.
        reset_after_epoch: Accepted for compatibility with Energon, where every epoch starts from the beginning as well.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: length is less than 1.
    """

    restart = True

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
