"""Refuses wrappers that lose or repeat batches, or the position, of a loader that has data of its own on each rank.

`datasets/torch_workers.py` calls these functions where a dataset or loader is used, if one of the libraries is loaded.
"""

from __future__ import annotations

from itertools import islice

from energon_dali.calls import callers
from energon_dali.errors import ConfigError
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
_NEAR_CALLERS = 14
"""How many callers are searched for a module that writes states."""


def refuse_resharding(config: WorkerConfig) -> None:
    """Checks that the caller neither divides the samples of a rank again nor repeats them.

    Args:
        config: Of the dataset that is iterated.

    Raises:
        ConfigError: The dataset yields the samples of one of several ranks, and a wrapper around it would divide them
            among all ranks, so that the samples of the other ranks, or most of this one's, were never used.
    """
    for frame in callers():
        library = _SHARDERS.get(frame.f_globals.get("__name__", ""))
        kind = type(frame.f_locals.get("self")).__name__
        if library is not None and kind in _CLASSES:
            raise ConfigError(
                f"{library}'s {kind} iterates a dataset that yields the samples of rank {config.rank} of "
                f"{config.world_size}, and would divide these among all ranks again: the samples of the other ranks "
                "would be lost. Give the loader itself to accelerator.prepare(), which leaves it alone, and not a "
                "torch DataLoader around it (docs/trainers.md)."
            )


def refuse_single_writer(config: WorkerConfig) -> None:
    """Checks that the caller does not save the state of one rank for all ranks.

    Args:
        config: Of the loader.

    Raises:
        ConfigError: The caller would write the position of one of several ranks alone.
    """
    for frame in islice(callers(), _NEAR_CALLERS):
        name = frame.f_globals.get("__name__", "")
        for module, library in _SINGLE_WRITERS.items():
            if name == module or name.startswith(f"{module}."):
                raise ConfigError(
                    f"{library} writes the state of one rank alone, and this loader is that of rank {config.rank} of "
                    f"{config.world_size}: the positions of the others would be lost. Give it "
                    "GlobalLoaderState(loader), which has the positions of all ranks (docs/trainers.md)."
                )


def refuse_trainer(owner: object) -> None:
    """Checks that transformers' `Trainer` was not given a dataset or loader as it is.

    Args:
        owner: The dataset or loader, of which elements are asked for.

    Raises:
        ConfigError: It was: the `Trainer` would batch what it yields again, and would not save its position.
    """
    names = [str(frame.f_globals.get("__name__")) for frame in callers()]
    # The fetcher of a torch DataLoader asks what the DataLoader was given, and not a dataset inside of it.
    asking = next((name for name in names if not name.startswith("energon_dali.")), "")
    if asking == "torch.utils.data._utils.fetch" and "transformers.trainer" in names:
        raise ConfigError(
            f"transformers.Trainer was given a {type(owner).__name__}, which has batches and a position of its own. "
            "Derive your trainer from energon_dali.integrations.transformers.LoaderTrainerMixin and Trainer, and give "
            "it the dataset that get_train_dataset returns (docs/trainers.md)."
        )
