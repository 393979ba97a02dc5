"""The base of all tasks: a LightningModule around a backbone, with optimizer and scheduler from configs."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from lightning import LightningModule
from lightning.pytorch.utilities import rank_zero_warn

from energon_dali.errors import ConfigError
from energon_dali.tasks.instantiator import Config, HydraInstantiator, Instantiator, has_target, plain_config

if TYPE_CHECKING:
    from lightning import Trainer
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

Prefix = Literal["train", "val", "test"]
"""Which step of the trainer it is; metrics are named by it, as in "val_loss"."""


@dataclass
class OptimizerConfig:
    """The optimizer of a task: a config with at least these keys, which are attributes too."""

    _target_: str = "torch.optim.AdamW"
    """Class of the optimizer."""
    lr: float = 1e-3
    """Learning rate."""
    weight_decay: float = 0.0
    """Of weights; norms, biases and embeddings have none."""


@dataclass
class SchedulerConfig:
    """The scheduler of a task: a config with at least these keys, which are attributes too."""

    _target_: str | None = None
    """Class or function of the scheduler; None is a constant learning rate."""
    num_training_steps: int | None = None
    """Optimizer steps of the run; None asks the trainer."""
    num_warmup_steps: float = 0.1
    """Steps, or below 1 a share of num_training_steps."""


def plain_value(value: Any) -> tuple[bool, Any]:
    """Returns (whether there is one, a value as plain numbers, text, lists and dicts)."""
    from omegaconf import OmegaConf

    if OmegaConf.is_config(value):
        return True, OmegaConf.to_container(value, resolve=True)
    if value is None or isinstance(value, (bool, int, float, str)):
        return True, value
    if isinstance(value, (list, tuple, Mapping)):
        items = value.values() if isinstance(value, Mapping) else value
        inner = [plain_value(each) for each in items]
        values = [each for _, each in inner]
        plain = dict(zip(map(str, value), values, strict=True)) if isinstance(value, Mapping) else values
        return all(good for good, _ in inner), plain
    return False, None


def first_rank_can_run(trainer: Trainer) -> bool:
    """Returns whether the first rank can run the model alone; warns where its weights are spread over the ranks."""
    from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy

    strategy = trainer.strategy
    can = not isinstance(strategy, (FSDPStrategy, ModelParallelStrategy)) and not getattr(
        strategy, "zero_stage_3", False
    )
    if not can:
        rank_zero_warn(f"{type(strategy).__name__} spreads the weights over the ranks, so no samples are drawn.")
    return can


def count_samples(batch: Any) -> int:
    """Returns the number of samples in a batch: of its keys, or of the rows of its first tensor; else 1."""
    keys = batch.get("__key__") if isinstance(batch, Mapping) else getattr(batch, "__key__", None)
    if isinstance(keys, (list, tuple)):
        return len(keys)
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else (batch,)
    for value in values:
        shape = getattr(value, "shape", None)
        if shape:
            return int(shape[0])
    return 1


def _with_logs(step: Callable[..., Any], prefix: Prefix) -> Callable[..., Any]:
    """Returns a step that logs what the given one returns under "log", with the prefix of the stage that runs.

    A step may return what another one returns: the outermost step is that of the stage.
    """

    @functools.wraps(step)
    def logged(self: TaskTransformer, batch: Any, *args: Any, **kwargs: Any) -> Any:
        outer = self._running_stage
        stage = self._running_stage = outer or prefix
        try:
            result = step(self, batch, *args, **kwargs)
        finally:
            self._running_stage = outer
        if not isinstance(result, Mapping) or not isinstance(result.get("log"), Mapping):
            return result
        self._log_all({f"{stage}/{name}": value for name, value in result["log"].items()}, stage, batch)
        return {name: value for name, value in result.items() if name != "log"}

    return logged


class TaskTransformer(LightningModule):
    """A task: a backbone and the loss that trains it. A task of your own overrides `common_step`.

        class NextToken(TaskTransformer):
            def common_step(self, prefix, batch):
                logits = self.backbone(batch.tokens[:, :-1])
                return cross_entropy(logits.flatten(0, 1), batch.tokens[:, 1:].flatten())

    Args:
        backbone: The model.
        optimizer: Config with `_target_`, such as {"_target_": "torch.optim.AdamW", "lr": 1e-3}.
        scheduler: Config with `_target_`, or None. Where its key `num_training_steps` is null, the trainer's number of
            optimizer steps is filled in. Its key `interval` ("step" by default, or "epoch") says when it steps.
        instantiator: Makes optimizer and scheduler of their configs; None is HydraInstantiator().
        **model_data_kwargs: Facts about the data: number of classes, vocabulary, ...
    """

    def __init__(
        self,
        backbone: torch.nn.Module,
        optimizer: Config | OptimizerConfig,
        scheduler: Config | SchedulerConfig | None = None,
        instantiator: Instantiator | None = None,
        **model_data_kwargs: Any,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, torch.nn.Module):
            raise ConfigError(
                f"{type(self).__name__} gave TaskTransformer a {type(backbone).__name__} as its backbone, which is not "
                "a module. Annotate the parameter as `backbone: torch.nn.Module` to be given a module, or make one of "
                "the config: backbone = instantiator.instantiate(backbone)."
            )
        self.backbone = backbone
        self.optimizer_cfg = plain_config(optimizer)
        self.scheduler_cfg = None if scheduler is None else plain_config(scheduler)
        self.instantiator: Instantiator = instantiator or HydraInstantiator()
        self.model_data_kwargs = model_data_kwargs

    _running_stage: Prefix | None = None
    """The stage whose step runs."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Lets the steps of a subclass return {"loss", "log"}."""
        super().__init_subclass__(**kwargs)
        prefixes: dict[str, Prefix] = {"training_step": "train", "validation_step": "val", "test_step": "test"}
        for name, prefix in prefixes.items():
            if name in vars(cls):
                setattr(cls, name, _with_logs(vars(cls)[name], prefix))

    @property
    def model(self) -> torch.nn.Module:
        """The backbone."""
        return self.backbone

    @abstractmethod
    def common_step(self, prefix: Prefix, batch: Any) -> torch.Tensor | Mapping[str, Any]:
        """Returns the loss of a batch, a scalar; `log_metrics` takes what else there is to log.

        It may also return {"loss": loss, "log": {"accuracy": accuracy}}: what is under "log" is logged as
        train/accuracy, val/accuracy or test/accuracy.

        Args:
            prefix: "train", "val" or "test".
            batch: A batch of the data module, on the model's device.
        """

    def training_step(self, batch: Any, batch_idx: int = 0) -> torch.Tensor:
        """Returns the loss of a training batch and logs it as train_loss.

        Args:
            batch: A batch of the data module.
            batch_idx: Its number in the epoch.
        """
        return self._step("train", batch)

    def validation_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> torch.Tensor:
        """Returns the loss of a validation batch and logs it as val_loss, the mean over the validation.

        Args:
            batch: A batch of the data module.
            batch_idx: Its number in the validation.
            dataloader_idx: The number of its loader, where the data module has several.
        """
        return self._step("val", batch)

    def test_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> torch.Tensor:
        """Returns the loss of a test batch and logs it as test_loss, the mean over the test.

        Args:
            batch: A batch of the data module.
            batch_idx: Its number in the test.
            dataloader_idx: The number of its loader, where the data module has several.
        """
        return self._step("test", batch)

    def save_hyperparameters(
        self, *args: Any, ignore: Sequence[str] | str | None = None, frame: FrameType | None = None, logger: bool = True
    ) -> None:
        """Saves arguments of `__init__` as Lightning does, as plain values: checkpoints load without running code.

        What has no plain value, such as modules and the instantiator, is left out.

        Args:
            *args: Names of arguments, or one mapping of values; none saves all arguments.
            ignore: Names that are left out.
            frame: Of the `__init__`; None is the caller's.
            logger: Also send them to the logger.
        """
        if frame is None and (caller := inspect.currentframe()) is not None:
            frame = caller.f_back
        with warnings.catch_warnings():
            # Lightning advises to leave out modules, which happens below.
            warnings.filterwarnings("ignore", "Attribute .* is an instance of `nn.Module`")
            super().save_hyperparameters(*args, ignore=ignore, frame=frame, logger=logger)
        for name in list(self.hparams):
            plain, value = plain_value(self.hparams[name])
            if plain:
                self.hparams[name] = value
            else:
                self.hparams.pop(name)
        self._hparams_initial = copy.deepcopy(self.hparams)

    def describe_run(self, run: Mapping[str, Any]) -> None:
        """Keeps what `load_task` needs to make this task again; every checkpoint then has it.

        Args:
            run: `config`, the run's config; `data`, the data module's numbers; `backbone`, arguments that make the
                backbone without other files. Plain values.
        """
        self.save_hyperparameters({"run": dict(run)}, logger=False)

    def log_metrics(self, prefix: Prefix, batch: Any, **metrics: Any) -> None:
        """Logs numbers as "prefix_name": training per step, the others as means over samples and ranks.

        Args:
            prefix: "train", "val" or "test".
            batch: The batch that they belong to.
            **metrics: Scalars, tensors or numbers.
        """
        self._log_all({f"{prefix}_{name}": value for name, value in metrics.items()}, prefix, batch)

    def _log_all(self, named: Mapping[str, Any], prefix: Prefix, batch: Any) -> None:
        train = prefix == "train"
        self.log_dict(
            dict(named),
            on_step=train,
            on_epoch=not train,
            prog_bar=True,
            sync_dist=not train,
            batch_size=self.batch_size_of(batch),
        )

    def batch_size_of(self, batch: Any) -> int:
        """Returns the number of samples in a batch: of its keys, else the length of its first tensor, else 1."""
        return count_samples(batch)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns the optimizer of the trained parameters, and the scheduler if there is one.

        Raises:
            ConfigError: A config cannot be made into an object, or the run has no steps, or no end of them.
        """
        optimizer = self.instantiator.optimizer(self, self.optimizer_cfg)
        if self.scheduler_cfg is None or not has_target(self.scheduler_cfg):
            return optimizer
        cfg = dict(self.scheduler_cfg)
        interval = cfg.pop("interval", "step")
        if "num_training_steps" in cfg and cfg["num_training_steps"] is None:
            cfg["num_training_steps"] = self._num_training_steps()
        scheduler = self.instantiator.scheduler(cfg, optimizer)
        return cast(
            "OptimizerLRScheduler",
            {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": interval}},
        )

    def _num_training_steps(self) -> int:
        """Returns the optimizer steps of the whole run.

        Raises:
            ConfigError: The run has no end, or no step.
        """
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps) or steps < 1:
            raise ConfigError(
                "The scheduler needs the number of optimizer steps, and the run has "
                f"{'none' if steps == 0 else 'no end'}. Set trainer.max_steps, or scheduler.num_training_steps, or "
                "choose scheduler=none."
            )
        return int(steps)

    def _step(self, prefix: Prefix, batch: Any) -> torch.Tensor:
        prefix = self._running_stage or prefix
        result = self.common_step(prefix, batch)
        logs: Mapping[str, Any] = {}
        if isinstance(result, Mapping):
            if "loss" not in result or not isinstance(result.get("log", {}), Mapping):
                raise ConfigError(
                    f"{type(self).__name__}.common_step returned a mapping with {sorted(map(str, result))}. Return the "
                    'loss, or {"loss": loss, "log": {"name": value}}.'
                )
            logs, result = result.get("log", {}), result["loss"]
        named = {f"{prefix}/{name}": value for name, value in logs.items()}
        self._log_all({f"{prefix}_loss": result, **named}, prefix, batch)
        return result
