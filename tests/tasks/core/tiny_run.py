"""A run of a second: numbers from shards, one linear layer with dropout, and a record of what was trained on."""

from __future__ import annotations

import json
import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import Checkpoint

from energon_dali import TaskEncoder
from energon_dali.tasks.data_module import Split, TransformerDataConfig, TransformerDataModule
from tests.loader.dataset_folder import prepare, write_shards
from tests.tasks.core.number_batches import NumbersBatch, NumbersEncoder

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
# Lightning's own calls of torch, and that a test resumes with other callbacks, or saves twice.
EXPECTED_WARNINGS = (
    ".*isinstance\\(treespec, LeafSpec\\).*",
    "Checkpoint directory .* exists and is not empty",
    "Be aware that when using `ckpt_path`, callbacks",
)


def numbers_dataset(folder: Path, count: int = 28) -> Path:
    """Writes and prepares a dataset of `count` samples, each with three numbers."""
    samples = {f"n{i:03d}": {"json": json.dumps([i % 7 - 3, i % 5 - 2, i % 3 - 1]).encode()} for i in range(count)}
    write_shards(folder, samples, shards=4)
    return prepare(folder, {"text": "json"}, "TextSample")


class NumbersDataModule(TransformerDataModule):
    """The data module of these runs."""

    def task_encoder(self, split: Split) -> TaskEncoder[Any, Any, Any, Any]:
        return NumbersEncoder()


class Interruption(Exception):
    """Stands for any failure of a run."""


@dataclass
class Stop:
    """Where a run fails, and how."""

    batch: int = -1
    """Number of the batch in this run."""
    hook: str = "training_step"
    """Method in which it happens."""
    how: type[BaseException] | int = Interruption
    """What is raised, or the signal that is sent."""

    def meet(self, hook: str, batch: int) -> None:
        if (hook, batch) != (self.hook, self.batch):
            return
        if isinstance(self.how, int):
            os.kill(os.getpid(), self.how)
        else:
            raise self.how("stopped on purpose")


class NumbersModule(lightning.LightningModule):
    """Learns nothing of use, and draws random numbers in every step and every validation."""

    def __init__(self, stop: Stop | None = None, dropout: float = 0.3) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.dropout = torch.nn.Dropout(dropout)
        self.stop = stop or Stop()
        self.seen: list[tuple[tuple[str, ...], float]] = []
        self.validated: list[tuple[str, ...]] = []
        self._running: tuple[tuple[str, ...], float] | None = None

    def training_step(self, batch: NumbersBatch, batch_idx: int) -> torch.Tensor:
        loss = self.dropout(self.layer(batch.numbers)).square().mean() + 0.1 * self.layer.weight.abs().sum()
        self.stop.meet("training_step", len(self.seen))
        self._running = (tuple(batch.__key__), loss.item())
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self._running is not None
        self.seen.append(self._running)
        self.stop.meet("on_train_batch_end", len(self.seen) - 1)

    def validation_step(self, batch: NumbersBatch, batch_idx: int) -> None:
        torch.rand(5)
        self.validated.append(tuple(batch.__key__))
        self.stop.meet("validation_step", len(self.seen))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@dataclass
class Run:
    """What a run gave."""

    seen: list[tuple[tuple[str, ...], float]]
    """Keys and loss of every batch that was trained on."""
    weights: dict[str, torch.Tensor]
    """At the end."""
    validated: list[tuple[str, ...]] = field(default_factory=list)
    """Keys of every batch of validations."""
    trainer: Any = None
    """The trainer, for whatever else it has."""


def data_config(folder: Path, **options: Any) -> TransformerDataConfig:
    """Returns a configuration over a numbers dataset, without workers."""
    return TransformerDataConfig(
        **{"train": str(folder), "val": str(folder), "batch_size": 4, "num_workers": 0, "num_streams": 2, **options}
    )


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Lets pass what Lightning says of itself; any other warning is an error of the test."""
    with warnings.catch_warnings():
        for message in EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message)
        yield


def train(
    folder: Path,
    *,
    data: dict[str, Any] | None = None,
    data_module: NumbersDataModule | None = None,
    stop: Stop | None = None,
    ckpt_path: Path | None = None,
    seed: int = 5,
    dropout: float = 0.3,
    **trainer_options: Any,
) -> Run:
    """Trains on the CPU in this process.

    Args:
        folder: A numbers dataset.
        data: Fields of the data configuration.
        data_module: One that was used before; None makes one.
        stop: Where the run fails.
        ckpt_path: Checkpoint to continue from.
        seed: Of the weights and of dropout; a resumed run gets another one, to show that it does not matter.
        dropout: Share of numbers that are dropped.
        **trainer_options: Of the trainer.
    """
    lightning.seed_everything(seed if ckpt_path is None else seed + 1, verbose=False)
    module = NumbersModule(stop, dropout)
    data_module = data_module or NumbersDataModule(data_config(folder, **(data or {})))
    saves = any(isinstance(each, Checkpoint) for each in trainer_options.get("callbacks", ()))
    with quiet_lightning():
        trainer = lightning.Trainer(
            **{
                "accelerator": "cpu",
                "logger": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "num_sanity_val_steps": 0,
                "enable_checkpointing": saves,
                "default_root_dir": str(folder.parent),
                "max_epochs": -1,
                **trainer_options,
            }
        )
        interrupt = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit(module, datamodule=data_module, ckpt_path=None if ckpt_path is None else str(ckpt_path))
        except (Interruption, SystemExit, lightning.utilities.exceptions.SIGTERMException):
            assert stop is not None
        finally:
            signal.signal(signal.SIGINT, interrupt)  # which Lightning ignores once it came
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    return Run(module.seen, weights, module.validated, trainer)
