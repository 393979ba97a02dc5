"""The dataset of a rank for which another one reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from energon_dali.datasets.base import SavableDataset
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.datasets.stream import StreamContext
    from energon_dali.worker_config import WorkerConfig


class FollowedDataset(SavableDataset[Any]):
    """Stands for a dataset that this rank does not open: `get_savable_loader` takes its batches from another rank.

    Args:
        worker_config: Its `share_group` says which rank reads.
        asked_as: How the program asked for the dataset, for comparison with that rank.
    """

    runs_in_rank = True

    def __init__(self, worker_config: WorkerConfig, asked_as: str) -> None:
        super().__init__(worker_config)
        self.asked_as = asked_as

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return ()

    def open(self, context: StreamContext) -> NoReturn:
        raise self._is_not_here()

    def len_stream(self, stream: int) -> NoReturn:
        raise self._is_not_here()

    def _is_not_here(self) -> ConfigError:
        group = self.worker_config.share_group
        reader = "another rank" if group is None else f"rank {group.reader.rank}"
        return ConfigError(
            f"This rank does not open the dataset, because {reader} reads it for both. Give the dataset to "
            "get_savable_loader or get_loader, and ask the loader for batches, lengths and states."
        )

    plan_obstacle = None  # another rank plans

    def describe(self) -> str:
        return f"FollowedDataset({self.asked_as})"


def asked_as(dataset: SavableDataset[Any]) -> str:
    """Returns how a program asked for the dataset inside a tree; "" if it was not a function of this package."""
    own: str = getattr(dataset, "asked_as", "")
    return own or next(filter(None, map(asked_as, dataset.children)), "")
