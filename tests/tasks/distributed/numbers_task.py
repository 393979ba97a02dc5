"""The run of a second as a task with configs, for what starts from these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from lightning import Callback

from energon_dali.tasks import TaskTransformer
from tests.tasks.core.number_batches import NumbersBatch


class NumbersTask(TaskTransformer):
    """Learns nothing of use from three numbers."""

    def common_step(self, prefix: Any, batch: NumbersBatch) -> torch.Tensor:
        return self.backbone(batch.numbers).square().mean()


class SeenBatches(Callback):
    """Writes a line for every batch that was trained on, into a file of the rank, and lets rank 1 fail once.

    Args:
        folder: Where the files go.
        fails_at: Step after which it fails; 0 means never.
    """

    def __init__(self, folder: str, fails_at: int = 0) -> None:
        self.folder = Path(folder)
        self.fails_at = fails_at

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: NumbersBatch, *_: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / f"rank-{trainer.global_rank}.jsonl", "a") as file:
            file.write(json.dumps([trainer.global_step, list(batch.__key__), outputs["loss"].item()]) + "\n")
        failed = self.folder / "failed"
        if trainer.global_rank == 1 and trainer.global_step == self.fails_at and not failed.exists():
            failed.touch()
            raise RuntimeError("failed on purpose")


def overrides(folder: Path, name: str, *, epochs: int, fails_at: int, global_batch: int | None = None) -> list[str]:
    """Returns what a command line would say for such a run; with global batches, for one that fits any ranks."""
    streams = "num_streams=2" if global_batch is None else f"global_batch_size={global_batch}"
    return [
        "+task._target_=tests.tasks.distributed.numbers_task.NumbersTask",
        "+backbone={_target_:torch.nn.Linear,in_features:3,out_features:1}",
        "+dataset._target_=tests.tasks.core.tiny_run.NumbersDataModule",
        "+dataset.cfg._target_=energon_dali.tasks.data_module.TransformerDataConfig",
        f"+dataset.cfg.train={folder / 'data'}",
        "+dataset.cfg.batch_size=4",
        "+dataset.cfg.num_workers=0",
        f"+dataset.cfg.{streams}",
        "+dataset.cfg.virtual_epoch_length=3",
        "+trainer.callbacks.seen._target_=tests.tasks.distributed.numbers_task.SeenBatches",
        f"+trainer.callbacks.seen.folder={folder / name}",
        f"+trainer.callbacks.seen.fails_at={fails_at}",
        "trainer.accelerator=cpu",
        "trainer.log_every_n_steps=1",
        "trainer.enable_progress_bar=false",
        "trainer.enable_model_summary=false",
        f"trainer.max_epochs={epochs}",
    ]
