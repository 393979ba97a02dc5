"""Ends epochs after a number of elements and begins again: the limit of a validation."""

from __future__ import annotations

from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.wrappers.epochize import EpochizeDataset
from energon_dali.worker_config import WorkerConfig


class LimitDataset(EpochizeDataset):
    """Ends an epoch after at most `length` elements of each rank; the next begins at the very beginning.

    What it counts as the outermost dataset and what inside another is said at EpochizeDataset.

    Args:
        dataset: The dataset below.
        length: Elements per epoch and rank, at least 1.
        reset_after_epoch: Accepted for compatibility with Energon, where every epoch begins at the beginning as well.
        worker_config: Left out, the inner dataset's.

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
