"""A trained task out of a checkpoint, with nothing but the file."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

import torch

from energon_dali.errors import ConfigError
from energon_dali.tasks.core.instantiator import HydraInstantiator, Instantiator

if TYPE_CHECKING:
    from energon_dali.tasks.core.task import TaskTransformer


def load_task(
    checkpoint: str | Path, *, device: str | torch.device = "cpu", instantiator: Instantiator | None = None
) -> TaskTransformer:
    """Returns the task of a checkpoint that the train command wrote, with its weights, ready for use.

    The file holds the run's config as plain values and is read as data, not as code. But what its config names is
    imported and called with what the config says, whatever that is: load only checkpoints whose origin you trust.

    Args:
        checkpoint: Path of the file.
        device: Where the weights go.
        instantiator: Makes the parts; None is HydraInstantiator().

    Raises:
        ConfigError: There is no such file, it is no checkpoint of the train command, or a part cannot be made.
    """
    instantiator = instantiator or HydraInstantiator()
    if not Path(checkpoint).is_file():
        raise ConfigError(f"There is no checkpoint {checkpoint}. They lie in the folder checkpoints of a run's output.")
    try:
        content = torch.load(checkpoint, map_location=device, weights_only=True)
        config, data = content["hyper_parameters"]["config"], content["hyper_parameters"]["data"]
    except (KeyError, TypeError, UnpicklingError, RuntimeError) as error:
        raise ConfigError(
            f"{checkpoint} is no checkpoint of energon_dali.tasks.train: {error!r}. Give a .ckpt file that it wrote."
        ) from error
    backbone = instantiator.backbone(config["backbone"], **data)
    parts = {"optimizer": config["optimizer"], "scheduler": config["scheduler"], "instantiator": instantiator}
    task = instantiator.task(config["task"], backbone=backbone, **parts, **data)
    task.load_state_dict(content["state_dict"])
    return task.to(device).eval()
