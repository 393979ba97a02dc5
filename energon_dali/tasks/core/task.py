"""The base of all tasks: a LightningModule around a backbone, with optimizer and scheduler from configs."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal, cast

from lightning import LightningModule

from energon_dali.errors import ConfigError
from energon_dali.tasks.core.instantiator import Config, HydraInstantiator, Instantiator, has_target

if TYPE_CHECKING:
    import torch
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

Prefix = Literal["train", "val", "test"]
"""Which step of the trainer it is; metrics are named by it, as in "val_loss"."""


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
        **model_data_kwargs: What the data knows: number of classes, vocabulary, ...
    """

    def __init__(
        self,
        backbone: torch.nn.Module,
        optimizer: Config,
        scheduler: Config | None = None,
        instantiator: Instantiator | None = None,
        **model_data_kwargs: Any,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.optimizer_cfg = optimizer
        self.scheduler_cfg = scheduler
        self.instantiator: Instantiator = instantiator or HydraInstantiator()
        self.model_data_kwargs = model_data_kwargs

    @abstractmethod
    def common_step(self, prefix: Prefix, batch: Any) -> torch.Tensor:
        """Returns the loss of a batch, a scalar; `log_metrics` takes what else there is to log.

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

    def log_metrics(self, prefix: Prefix, batch: Any, **metrics: Any) -> None:
        """Logs numbers as "prefix_name": training per step, the others as means over samples and ranks.

        Args:
            prefix: "train", "val" or "test".
            batch: The batch that they belong to.
            **metrics: Scalars, tensors or numbers.
        """
        train = prefix == "train"
        self.log_dict(
            {f"{prefix}_{name}": value for name, value in metrics.items()},
            on_step=train, on_epoch=not train, prog_bar=True, sync_dist=not train, batch_size=self.batch_size_of(batch),
        )  # fmt: skip

    def batch_size_of(self, batch: Any) -> int:
        """Returns the number of samples in a batch: of its keys, else the length of its first tensor, else 1."""
        import torch

        keys = getattr(batch, "__key__", None)
        if isinstance(keys, list | tuple):
            return len(keys)
        values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
        return next((len(value) for value in values if isinstance(value, torch.Tensor) and value.ndim), 1)

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
        loss = self.common_step(prefix, batch)
        self.log_metrics(prefix, batch, loss=loss)
        return loss
