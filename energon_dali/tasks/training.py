"""Trains what Hydra composed: the data module, the task and Lightning's trainer."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_dali.calls import nearest_names
from energon_dali.errors import ConfigError
from energon_dali.tasks.composition import options_of
from energon_dali.tasks.instantiator import HydraInstantiator, Instantiator

if TYPE_CHECKING:
    from lightning import LightningDataModule, Trainer
    from omegaconf import DictConfig

    from energon_dali.tasks.task import TaskTransformer


@dataclass(frozen=True)
class TrainResult:
    """What a run produced."""

    trainer: Trainer
    """The trainer, with its callbacks and loggers."""
    task: TaskTransformer
    """The trained task."""
    data_module: LightningDataModule
    """The data it was trained on."""
    metrics: dict[str, float]
    """The last value of each logged metric."""
    output_dir: Path
    """Folder of checkpoints, metrics and images."""


def run(cfg: DictConfig, instantiator: Instantiator | None = None) -> TrainResult:
    """Trains what a config describes.

    Args:
        cfg: A composed config, as `compose(["+task=...", "+dataset=..."])` gives it.
        instantiator: Makes the parts; None is HydraInstantiator().

    Raises:
        ConfigError: A part is missing or cannot be made; or the checkpoint is not one, is not of such a task, or leaves
            nothing to train.
        DatasetError: The dataset is not prepared, or its files are damaged.
        StateError: The checkpoint is of another dataset.
    """
    cfg = _completed(cfg)
    instantiator = instantiator or HydraInstantiator()
    # These take seconds, which a message for a wrong command should not wait for.
    from energon_dali.tasks.checkpoint import BatchSeen, explain_end, explained, read_to_continue

    saved = {} if cfg.ckpt_path is None else read_to_continue(cfg.ckpt_path)
    import lightning
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    if HydraConfig.initialized():
        logging.getLogger("lightning").handlers.clear()  # Hydra's handlers write its messages already
    lightning.seed_everything(cfg.seed, verbose=False)
    trainer = instantiator.trainer(cfg.trainer)  # first: a wrong value should not wait until the data is prepared
    tokenizer = instantiator.tokenizer(cfg.get("tokenizer"))
    data_module = instantiator.data_module(cfg.dataset, tokenizer=tokenizer, decoder=cfg.get("decoder"))
    data_module.prepare_data()
    data_module.setup("fit")
    model_data_kwargs = dict(getattr(data_module, "model_data_kwargs", {}))
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    task: Any = instantiator.task(
        config["task"],
        backbone=_backbone_config(config["backbone"], saved),
        optimizer=config["optimizer"],
        scheduler=config.get("scheduler"),
        **model_data_kwargs,
    )
    # A backbone that began with the weights of a folder says how to make it without: a checkpoint has them itself.
    alone = getattr(task.backbone, "checkpoint_arguments", dict[str, Any])()
    task.describe_run({"config": config, "data": model_data_kwargs, "backbone": alone})
    trained = BatchSeen()
    trainer.callbacks.append(trained)  # type: ignore[attr-defined]
    with explained(cfg.ckpt_path, saved.get("config", {}), config):
        trainer.fit(task, datamodule=data_module, ckpt_path=cfg.ckpt_path)
    if cfg.ckpt_path is not None and not trained.any_batch:
        raise ConfigError(explain_end(trainer, cfg.ckpt_path))
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    if cfg.get("test_after_fit"):
        (tested,) = trainer.test(task, datamodule=data_module, verbose=False) or [{}]
        metrics.update({name: float(value) for name, value in tested.items()})
    return TrainResult(trainer, task, data_module, metrics, Path(cfg.output_dir))


_TOP_LEVEL = ("task", "dataset", "backbone", "tokenizer", "decoder", "optimizer", "scheduler", "trainer")
_SETTINGS = ("seed", "ckpt_path", "output_dir", "test_after_fit")
_NEEDED = {"task": "+", "dataset": "+", "backbone": "+", "optimizer": "", "trainer": ""}
"""Groups that every run has, and what the command line writes before them."""


def _completed(cfg: DictConfig) -> DictConfig:
    """Returns a copy of a config with the output folder, and `trainer.gpus` read as `trainer.devices`.

    Raises:
        ConfigError: A group that every run needs is missing, a name is unknown, the seed is none, or the folder cannot
            be made.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig, open_dict

    cfg = cfg.copy()
    for group, plus in _NEEDED.items():
        if not isinstance(cfg.get(group), DictConfig):
            given = [str(name) for name in cfg if name not in _TOP_LEVEL and nearest_names(group, [str(name)])]
            meant = f" You gave {given[0]}." if given else ""
            raise ConfigError(
                f"The run has no {group}.{meant} Add {plus}{group}=NAME to the command; "
                f"there are: {', '.join(options_of(group))}."
            )
    _check_names(cfg)
    if not isinstance(cfg.seed, int) or not 0 <= cfg.seed < 1 << 32:
        raise ConfigError(f"seed={cfg.seed} is invalid: give a whole number from 0 to {(1 << 32) - 1}.")
    if not isinstance(cfg.get("test_after_fit", False), bool):
        raise ConfigError(f"test_after_fit={cfg.test_after_fit} is invalid: give true or false.")
    with open_dict(cfg):
        if cfg.get("output_dir") is None:
            cfg.output_dir = HydraConfig.get().runtime.output_dir if HydraConfig.initialized() else "outputs"
        _make_folder(str(cfg.output_dir))
        gpus = cfg.trainer.pop("gpus", None)
        if gpus is not None:
            newer = _newer_names(gpus, cfg.trainer)
            said = " ".join(f"trainer.{name}={value}" for name, value in newer.items())
            warnings.warn(
                f"trainer.gpus={gpus} is the older name of {said}; write that.", DeprecationWarning, stacklevel=3
            )
            cfg.trainer.update(newer)
    return cfg


def _check_names(cfg: DictConfig) -> None:
    """Raises an error for a name next to the groups that nothing reads, neither a run nor another place of the config.

    Raises:
        ConfigError: There is one.
    """
    from omegaconf import OmegaConf

    known = (*_TOP_LEVEL, *_SETTINGS)
    unknown = [str(name) for name in cfg if name not in known]
    written = OmegaConf.to_yaml(cfg, resolve=False) if unknown else ""
    for name in unknown:
        if not re.search(r"\$\{\s*" + re.escape(name) + r"\b", written):
            nearest = nearest_names(name, list(known))
            meant = f" Did you mean {nearest[0]}?" if nearest else ""
            raise ConfigError(
                f"Nothing reads {name}, which the run was given.{meant} Leave it out, or name what it is a part of, as "
                f"in +trainer.{name}=...; apart from the groups, a run has {', '.join(_SETTINGS)}."
            )


def _backbone_config(cfg: Mapping[str, Any], saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the backbone's config, by which a run that continues does not read first weights that it does not use."""
    if cfg.get("_target_") != saved.get("config", {}).get("backbone", {}).get("_target_"):
        return cfg
    return {**cfg, **saved.get("backbone", {})}


def _make_folder(path: str) -> None:
    """Makes the output folder now, before there is something to lose; what is a URL is left to Lightning.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        if "://" not in path:
            Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir={path} cannot be made: {error}. Give a folder that can be written.") from error


def _newer_names(gpus: Any, trainer: DictConfig) -> dict[str, Any]:
    """Returns what `trainer.gpus` meant: 0 was the CPU, -1 all GPUs, a list or "0,1" those of these numbers."""
    if gpus in (0, "0") or gpus == []:
        return {"accelerator": "cpu", "devices": 1}
    counted = gpus == "auto" or (isinstance(gpus, int) and gpus > 0)
    unsaid = trainer.get("accelerator", "auto") == "auto"
    return {**({"accelerator": "gpu"} if unsaid and not counted else {}), "devices": gpus}
