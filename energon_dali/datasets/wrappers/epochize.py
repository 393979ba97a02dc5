"""Ends the epochs of a rank after a number of elements: virtual epochs for training, a limit for validation."""

from __future__ import annotations

from typing import Any

from energon_dali.datasets.base import SavableDataset, StreamContext, StreamIterator, WrapperDataset
from energon_dali.datasets.rank_iterator import RankLimit
from energon_dali.errors import ConfigError
from energon_dali.worker_config import WorkerConfig


class EpochizeDataset(WrapperDataset[Any]):
    """Ends an epoch after `length` elements of each rank; the next goes on where it ended. The outermost dataset.

    Args:
        dataset: The dataset below; usually endless.
        length: Elements per epoch and rank, at least 1.
        worker_config: Left out, the inner dataset's.

    Raises:
        ConfigError: length is less than 1.
    """

    restart = False

    def __init__(self, dataset: SavableDataset[Any], length: int, *, worker_config: WorkerConfig | None = None) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if length < 1:
            raise ConfigError(
                f"{type(self).__name__} was given length={length}; it must be at least 1 element per rank."
            )
        self.length = length

    def describe(self) -> str:
        return f"{type(self).__name__}(length={self.length})"

    def config(self) -> dict[str, Any]:
        # Without the length: it says where epochs end, not what comes when, and may change from run to run.
        return super().config()

    def rank_limit(self) -> RankLimit:
        return RankLimit(self.length, self.restart)

    def len_rank(self) -> int:
        return self.length

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return self.dataset.open(context)

    def restore_sample(self, restore_key: tuple[Any, ...]) -> Any:
        return self.dataset.restore_sample(restore_key)
