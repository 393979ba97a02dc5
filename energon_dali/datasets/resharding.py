"""Refuses wrappers that divide the batches of one rank among all ranks: each rank already has its own data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.worker_config import WorkerConfig

_SHARDERS = {"accelerate.data_loader": "Accelerate", "transformers.trainer_pt_utils": "transformers"}
"""Modules whose classes iterate a dataset in one process for all ranks, or keep only a part of what they iterate."""
_CLASSES = ("DataLoaderDispatcher", "IterableDatasetShard")


def refuse_resharding(config: WorkerConfig) -> None:
    """Checks that the caller does not divide the samples of a rank again.

    Args:
        config: Of the dataset that is iterated.

    Raises:
        ConfigError: The dataset yields the samples of one of several ranks, and a wrapper around it would divide them
            among all ranks, so that the samples of the other ranks, or most of this one's, were never used.
    """
    if config.world_size == 1 or not _SHARDERS.keys() & sys.modules.keys():
        return
    frame = sys._getframe(1)
    while frame is not None:
        library = _SHARDERS.get(frame.f_globals.get("__name__", ""))
        if library is not None:
            kind = type(frame.f_locals.get("self")).__name__
            if kind in _CLASSES:
                raise ConfigError(
                    f"{library}'s {kind} iterates a dataset that yields the samples of rank {config.rank} of "
                    f"{config.world_size}, and would divide these among all ranks again: the samples of the other "
                    "ranks would be lost. Give the loader itself to accelerator.prepare(), which leaves it alone, and "
                    "not a torch DataLoader around it (docs/accelerate.md)."
                )
        frame = frame.f_back  # type: ignore[assignment]


def refuse_indexing(owner: object) -> ConfigError:
    """Returns the error for access to an element by its index, as a torch DataLoader does it.

    Args:
        owner: The dataset or loader.
    """
    return ConfigError(
        f"A {type(owner).__name__} yields its elements in the order of its plan; they have no index. Do not put it "
        "into a torch DataLoader: iterate get_loader(dataset) or get_savable_loader(dataset), which has its own worker "
        "processes (WorkerConfig(num_workers=...)), batches (get_train_dataset(batch_size=...)) and prefetching."
    )
