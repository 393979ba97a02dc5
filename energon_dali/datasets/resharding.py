"""Refuses wrappers that share one rank's batches out among all ranks: each rank has its own data already."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.worker_config import WorkerConfig

_SHARDERS = {"accelerate.data_loader": "Accelerate", "transformers.trainer_pt_utils": "transformers"}
"""Modules whose classes below iterate a dataset in one process for all, or keep only a part of what they iterate."""
_CLASSES = ("DataLoaderDispatcher", "IterableDatasetShard")


def refuse_resharding(config: WorkerConfig) -> None:
    """Looks at who begins to iterate.

    Args:
        config: Of the dataset that is iterated.

    Raises:
        ConfigError: The dataset gives the share of one of several ranks, and a wrapper around it would share that out
            again, so that the shares of the other ranks, or most of this one, were never trained on.
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
                    f"{library}'s {kind} iterates a dataset that gives rank {config.rank} of {config.world_size} its "
                    "own samples, and would share these out among all ranks again: the samples of the other ranks "
                    "would be lost. Give the loader itself to accelerator.prepare(), which leaves it alone, and not a "
                    "torch DataLoader around it (docs/accelerate.md)."
                )
        frame = frame.f_back  # type: ignore[assignment]


def refuse_indexing(owner: object) -> ConfigError:
    """Returns the error for whoever takes an element by its number, such as a torch DataLoader.

    Args:
        owner: The dataset or loader.
    """
    return ConfigError(
        f"A {type(owner).__name__} gives its elements in the order of its plan, and has none by number. Do not put it "
        "into a torch DataLoader: iterate get_loader(dataset) or get_savable_loader(dataset), which has worker "
        "processes of its own (WorkerConfig(num_workers=...)), batches (get_train_dataset(batch_size=...)) and "
        "prefetching."
    )
