"""Refuses wrappers that lose or repeat batches, or the position, of a loader that has data of its own on each rank."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING

from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.worker_config import WorkerConfig

_SHARDERS = {"accelerate.data_loader": "Accelerate", "transformers.trainer_pt_utils": "transformers"}
"""Modules whose classes iterate a dataset in one process for all ranks, or keep only a part of what they iterate."""
_CLASSES = ("DataLoaderDispatcher", "IterableDatasetShard")


_SINGLE_WRITERS = {
    "accelerate.checkpointing": "Accelerate's register_for_checkpointing",
    "lightning.fabric.strategies": "Lightning Fabric's save",
    "lightning_fabric.strategies": "Lightning Fabric's save",
    "torch.distributed.checkpoint": "torch.distributed.checkpoint",
}
"""Modules that write the state of one rank for all, by the beginning of their names."""


def refuse_resharding(config: WorkerConfig) -> None:
    """Checks that the caller neither divides the samples of a rank again nor repeats them.

    Args:
        config: Of the dataset that is iterated.

    Raises:
        ConfigError: The dataset yields the samples of one of several ranks, and a wrapper around it would divide them
            among all ranks, so that the samples of the other ranks, or most of this one's, were never used. Or its rank
            was taken from the environment before the processes of the job were started.
    """
    config.check_derived_rank()
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
                    "not a torch DataLoader around it (docs/trainers.md)."
                )
        frame = frame.f_back  # type: ignore[assignment]


def refuse_single_writer(config: WorkerConfig) -> None:
    """Checks that the caller does not save the state of one rank for all ranks.

    Args:
        config: Of the loader.

    Raises:
        ConfigError: There are several ranks, and the caller would write the position of one of them alone.
    """
    if config.world_size == 1:
        return
    frame = sys._getframe(1)
    for _ in range(12):
        name = frame.f_globals.get("__name__", "")
        for module, library in _SINGLE_WRITERS.items():
            if name == module or name.startswith(f"{module}."):
                raise ConfigError(
                    f"{library} writes the state of one rank alone, and this loader is that of rank {config.rank} of "
                    f"{config.world_size}: the positions of the others would be lost. Give it "
                    "GlobalLoaderState(loader), which has the positions of all ranks (docs/trainers.md)."
                )
        if frame.f_back is None:
            return
        frame = frame.f_back


def refuse_trainer(owner: object) -> None:
    """Checks that transformers' `Trainer` was not given a dataset as it is. Call it where the dataset is iterated.

    Args:
        owner: The dataset.

    Raises:
        ConfigError: It was: the `Trainer` would batch what it yields again, and would not save its position.
    """
    # The fetcher of a torch DataLoader iterates what the DataLoader was given, and not a dataset inside of it.
    caller = sys._getframe(2).f_globals.get("__name__")
    if caller == "torch.utils.data._utils.fetch" and within("transformers.trainer"):
        raise _given_to_trainer(owner)


def refuse_indexing(owner: object) -> ConfigError:
    """Returns the error for access to an element by its index, as a torch DataLoader does it.

    Args:
        owner: The dataset or loader.
    """
    if within("transformers.trainer"):
        return _given_to_trainer(owner)
    is_dataset = hasattr(owner, "len_stream")
    # A dataset is named by what its user built: the outermost class is often one that nobody has seen.
    what = "A dataset" if is_dataset else f"A {type(owner).__name__}"
    instead = ", or a torch DataLoader(dataset, batch_size=None) with as many workers as its WorkerConfig"
    return ConfigError(
        f"{what} yields its elements in the order of its plan; they have no index. Iterate get_loader(dataset) or "
        "get_savable_loader(dataset), which has its own worker processes (WorkerConfig(num_workers=...)), batches "
        f"(get_train_dataset(batch_size=...)) and prefetching{instead if is_dataset else ''}."
    )


def _given_to_trainer(owner: object) -> ConfigError:
    return ConfigError(
        f"transformers.Trainer was given a {type(owner).__name__}, which has batches and a position of its own. Derive "
        "your trainer from energon_dali.integrations.transformers.LoaderTrainerMixin and Trainer, and give it the "
        "dataset that get_train_dataset returns (docs/trainers.md)."
    )


def within(*modules: str) -> bool:
    """Returns whether a function of one of some modules is among the callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in modules:
            return True
        frame = frame.f_back
    return False
