"""The checkpoints of the train command: read as data, with messages for what is none; and a task out of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, cast
from zipfile import is_zipfile

import torch

from energon_dali.errors import ConfigError
from energon_dali.tasks.core.instantiator import HydraInstantiator, Instantiator

if TYPE_CHECKING:
    from energon_dali.tasks.core.task import TaskTransformer

_WHERE = "They are in the folder checkpoints of a run's output"


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
    content = read_checkpoint(checkpoint, device=device)
    known = described_run(content)
    try:
        config, data = known["config"], known["data"]
    except KeyError as error:
        raise _none(checkpoint, repr(error)) from error
    backbone = {**config["backbone"], **known.get("backbone", {})}
    task = instantiator.task(
        config["task"], backbone=backbone, optimizer=config["optimizer"], scheduler=config["scheduler"], **data
    )
    task.load_state_dict(content["state_dict"])
    return cast("TaskTransformer", task.to(device).eval())


def described_run(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what the run that wrote a checkpoint said of itself: `config`, `data` and `backbone`; empty if nothing.

    Args:
        content: What `read_checkpoint` returned. Earlier checkpoints hold the three next to each other.
    """
    known = content.get("hyper_parameters")
    run = known.get("run", known) if isinstance(known, Mapping) else None
    return run if isinstance(run, Mapping) and isinstance(run.get("config"), Mapping) else {}


def read_checkpoint(path: str | Path, *, device: str | torch.device = "cpu", map_file: bool = False) -> dict[str, Any]:
    """Returns what a checkpoint of a Lightning trainer holds. It is read as data: nothing in it is run.

    Args:
        path: Of the file.
        device: Where tensors go.
        map_file: Read tensors of the file when they are looked at, not now; device is "cpu".

    Raises:
        ConfigError: There is no such file, or it is no such checkpoint.
    """
    if not Path(path).is_file():
        found = "is a folder, and no file" if Path(path).is_dir() else "does not exist"
        raise ConfigError(f"There is no checkpoint {path}: it {found}. {_WHERE}, as last.ckpt and others.")
    if not is_zipfile(path):
        raise _none(path, "it is not a file of torch.save, or was cut off")
    try:
        content = torch.load(path, map_location=device, weights_only=True, mmap=map_file or None)
    except UnpicklingError as error:
        raise _none(path, "it holds objects, which could run code, and not only values and tensors") from error
    except (OSError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise _none(path, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(content, dict) or not {"state_dict", "pytorch-lightning_version"} <= content.keys():
        held = sorted(map(str, content))[:9] if isinstance(content, dict) else f"a {type(content).__name__}"
        raise _none(path, f"it holds {held}")
    return content


def _none(path: str | Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is not a checkpoint of energon_dali.tasks.train ({why}). Give a .ckpt file that it wrote. {_WHERE}."
    )
