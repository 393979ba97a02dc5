"""The checkpoints of the train command: read as data, a task out of one, and a run that continues from one.

Messages say why a file is not a checkpoint, and where a run differs from the checkpoint that it continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, cast
from zipfile import is_zipfile

import torch
from lightning.pytorch import Callback

from energon_dali.errors import ConfigError, LayoutError, StateError
from energon_dali.tasks.instantiator import HydraInstantiator, Instantiator

if TYPE_CHECKING:
    from lightning import Trainer

    from energon_dali.tasks.task import TaskTransformer

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
        ConfigError: There is no such file, it is not a checkpoint of the train command, or a part cannot be made.
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
        ConfigError: There is no such file, or it is not such a checkpoint.
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


_COMPARED = ("task", "dataset", "backbone", "tokenizer", "decoder", "optimizer", "scheduler", "seed")
"""What of two configs matters where one continues the other."""
_MOST_DIFFERENCES = 8
_OF_OTHER_SHAPE = ("Error(s) in loading state_dict", "loaded state dict")
"""What torch says where weights, or what an optimizer keeps of them, do not fit."""


def read_to_continue(path: str | Path) -> Mapping[str, Any]:
    """Returns what the run that wrote a checkpoint said of itself, once it can be continued from.

    `config` is its config, and `backbone` are arguments that make its backbone without other files; either may miss.

    Folders of checkpoints in several files, as FSDP and DeepSpeed write them, are left to Lightning.

    Raises:
        ConfigError: It does not exist, is not a checkpoint, or holds only weights.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(
            f"ckpt_path={path} does not exist. Give a checkpoint of an earlier run; they are in the folder "
            "checkpoints of its output folder."
        )
    if any((path / name).exists() for name in (".metadata", "meta.pt", "checkpoint")):
        return {}
    try:
        content = read_checkpoint(path, map_file=True)
    except ConfigError as error:
        raise ConfigError(f"ckpt_path cannot be continued from: {error}") from error
    if "loops" not in content or "optimizer_states" not in content:
        raise ConfigError(
            f"ckpt_path={path} cannot be continued from: it holds weights alone, as save_weights_only=true writes "
            "them. Give a checkpoint that was written without it."
        )
    return described_run(content)


@contextmanager
def explained(path: str | Path | None, saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[None]:
    """Adds to errors of a checkpoint that does not fit what the run does otherwise than the one that wrote it.

    Args:
        path: The checkpoint; None does nothing.
        saved: The config of the run that wrote it, as plain values; empty where it is not known.
        now: The config of this run, as plain values.

    Raises:
        ConfigError: The weights or the optimizer do not fit.
        LayoutError: Ranks and workers do not fit.
        StateError: The data is another.
    """
    try:
        yield
    except (LayoutError, StateError) as error:
        different = describe_differences(saved, now) if path is not None else ""
        if not different:
            raise
        kind = LayoutError if isinstance(error, LayoutError) else StateError  # a subclass may take other arguments
        raise kind(f"{error} {different}") from error
    except (RuntimeError, ValueError) as error:
        if path is None or not any(text in str(error) for text in _OF_OTHER_SHAPE):
            raise
        different = describe_differences(saved, now) or str(error)
        raise ConfigError(
            f"ckpt_path={path} is of a run with another model or optimizer and does not fit. {different} "
            "Give what the run that wrote it was given, or begin again without ckpt_path."
        ) from error


class BatchSeen(Callback):
    """Notes whether a trainer trained on any batch."""

    any_batch = False

    def on_train_batch_start(self, *_: Any) -> None:
        """Notes that it did."""
        self.any_batch = True


def explain_end(trainer: Trainer, path: str | Path) -> str:
    """Returns which limit of a trainer is reached where it continued from a checkpoint and trained nothing.

    Args:
        trainer: After its `fit`.
        path: The checkpoint.
    """
    steps, epochs = trainer.global_step, trainer.current_epoch
    begun = f"ckpt_path={path} is at step {steps}, after {epochs} epoch(s), and nothing was trained: "
    if trainer.limit_train_batches == 0:
        return f"{begun}trainer.limit_train_batches is 0. Leave it out."
    if 0 <= trainer.max_steps <= steps:
        return f"{begun}trainer.max_steps={trainer.max_steps} is reached. Set trainer.max_steps above {steps}."
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= epochs:
        or_steps = ", or to -1 to stop by trainer.max_steps alone" if trainer.max_steps > steps else ""
        reached = f"trainer.max_epochs={trainer.max_epochs} is reached"
        return f"{begun}{reached}. Set trainer.max_epochs above {epochs}{or_steps}."
    return f"{begun}a limit of the trainer is reached. Raise trainer.max_time or what else ended the run before."


def describe_differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns a sentence on where a run's config differs from that of the checkpoint it continues; "" if nowhere.

    Args:
        saved: Of the checkpoint, as plain values; empty where it has none.
        now: Of the run, as plain values.
    """
    if not saved:
        return ""
    saved, now = _without_repeats(saved), _without_repeats(now)
    found = [each for name in _COMPARED for each in _differences(name, saved.get(name), now.get(name))]
    more = [f"and {len(found) - _MOST_DIFFERENCES} more"] if len(found) > _MOST_DIFFERENCES else []
    shown = "; ".join([*found[:_MOST_DIFFERENCES], *more])
    return f"What this run sets otherwise: {shown}." if found else ""


def _without_repeats(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a config without the groups that its task repeats, such as task.backbone, which is ${backbone}."""
    task = config.get("task")
    if not isinstance(task, Mapping):
        return config
    own = {key: value for key, value in task.items() if key not in _COMPARED or value != config.get(key)}
    return {**config, "task": own}


def _differences(name: str, saved: Any, now: Any) -> Iterator[str]:
    if isinstance(saved, Mapping) and isinstance(now, Mapping) and saved.get("_target_") == now.get("_target_"):
        for key in sorted({*saved, *now}, key=str):
            yield from _differences(f"{name}.{key}", saved.get(key), now.get(key))
    elif saved != now:
        yield f"{name} was {_shown(saved)}, is {_shown(now)}"


def _shown(value: Any) -> str:
    return str(value.get("_target_", value)) if isinstance(value, Mapping) else repr(value)
