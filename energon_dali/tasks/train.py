"""The train command: `python -m energon_dali.tasks.train +task=vision/igpt +dataset=vision/igpt/cifar`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import lightning
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from energon_dali.errors import ConfigError
from energon_dali.tasks.core.instantiator import HydraInstantiator, Instantiator

if TYPE_CHECKING:
    from lightning import LightningDataModule, Trainer

    from energon_dali.tasks.core.task import TaskTransformer

CONF = Path(__file__).resolve().parent / "conf"
"""Folder of the package's configs."""


@dataclass(frozen=True)
class TrainResult:
    """What a run leaves behind."""

    trainer: Trainer
    """The trainer, with its callbacks and loggers."""
    task: TaskTransformer
    """The trained task."""
    data_module: LightningDataModule
    """The data it was trained on."""
    metrics: dict[str, float]
    """The last value of each logged metric."""
    output_dir: Path
    """Folder of checkpoints, metrics and pictures."""


def run(cfg: DictConfig, instantiator: Instantiator | None = None) -> TrainResult:
    """Trains what a config describes.

    Args:
        cfg: A composed config, as `hydra.compose("config", ["+task=...", "+dataset=..."])` gives it.
        instantiator: Makes the parts; None is HydraInstantiator().

    Raises:
        ConfigError: A part is missing or cannot be made, or the checkpoint is not there.
        DatasetError: The dataset is not prepared, or its files are damaged.
    """
    instantiator = instantiator or HydraInstantiator()
    cfg = _completed(cfg)
    lightning.seed_everything(cfg.seed, verbose=False)
    tokenizer = instantiator.tokenizer(cfg.get("tokenizer"))
    data_module = instantiator.data_module(cfg.dataset, tokenizer=tokenizer, decoder=cfg.get("decoder"))
    data_module.prepare_data()
    data_module.setup("fit")
    model_data_kwargs = dict(getattr(data_module, "model_data_kwargs", {}))
    task = instantiator.task(
        cfg.task,
        backbone=instantiator.backbone(cfg.backbone, **model_data_kwargs),
        optimizer=cfg.optimizer,
        scheduler=cfg.get("scheduler"),
        instantiator=instantiator,
        **model_data_kwargs,
    )
    task.save_hyperparameters({"config": OmegaConf.to_container(cfg, resolve=True), "data": model_data_kwargs})
    trainer = instantiator.trainer(cfg.trainer)
    trainer.fit(task, datamodule=data_module, ckpt_path=cfg.ckpt_path)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    if cfg.get("test_after_fit"):
        (tested,) = trainer.test(task, datamodule=data_module, verbose=False) or [{}]
        metrics.update({name: float(value) for name, value in tested.items()})
    return TrainResult(trainer, task, data_module, metrics, Path(cfg.output_dir))


def _completed(cfg: DictConfig) -> DictConfig:
    """Returns a copy of a config with the output folder, and `trainer.gpus` read as `trainer.devices`.

    Raises:
        ConfigError: A group that every run needs is missing, or the checkpoint is not there.
    """
    cfg = cfg.copy()
    for group in ("task", "dataset", "backbone"):
        if not isinstance(cfg.get(group), Mapping | DictConfig):
            raise ConfigError(
                f"The run has no {group}. Add {'' if group == 'backbone' else '+'}{group}=NAME to the command; "
                f"there are: {', '.join(options_of(group))}."
            )
    with open_dict(cfg):
        if cfg.get("output_dir") is None:
            cfg.output_dir = HydraConfig.get().runtime.output_dir if HydraConfig.initialized() else "outputs"
        gpus = cfg.trainer.pop("gpus", None)
        if gpus is not None:
            warnings.warn(
                f"trainer.gpus={gpus} is the older name of trainer.devices={gpus}; write that.",
                DeprecationWarning,
                stacklevel=3,
            )
            cfg.trainer.devices = gpus
    if cfg.get("ckpt_path") is not None and not Path(cfg.ckpt_path).exists():
        raise ConfigError(
            f"ckpt_path={cfg.ckpt_path} does not exist. Give a checkpoint of an earlier run; they lie in the folder "
            "checkpoints of its output folder."
        )
    return cfg


def options_of(group: str, folders: tuple[Path, ...] = (CONF,)) -> list[str]:
    """Returns the names that a config group can be set to, such as "vision/igpt" for task."""
    found = {
        path.relative_to(folder / group).with_suffix("").as_posix()
        for folder in folders
        for path in (folder / group).rglob("*.yaml")
    }
    return sorted(found)


@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def main(cfg: DictConfig) -> Any:
    """Runs the command."""
    return run(cfg).metrics


if __name__ == "__main__":
    main()
