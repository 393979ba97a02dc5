"""What each process of test_torchrun runs: trainings on two ranks, of which one is killed at last."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from energon_dali.tasks.captioning.rows import lay_rows
from tests.tasks.captioning.captions import SIZES, encoded, task_with
from tests.tasks.core.tiny_run import Run, Stop, train

STEPS = 11
DATA = {"num_streams": 4, "num_workers": 0, "virtual_epoch_length": 4}
KILLED_AT = 6


def rank() -> int:
    return int(os.environ["RANK"])


def run(folder: Path, *, workers: int = 0, **options: Any) -> Run:
    """Trains on both ranks, each with random numbers of its own."""
    data = {**DATA, "num_workers": workers}
    options = {"strategy": "ddp", "devices": 2, "max_steps": STEPS, **options}
    return train(folder / "data", seed=5 + 10 * rank(), data=data, **options)


def checkpoints(folder: Path, name: str) -> ModelCheckpoint:
    return ModelCheckpoint(folder / name, filename="{step}", every_n_train_steps=1, save_top_k=-1)


def report(folder: Path, name: str, run: Run) -> None:
    weights = {key: value.tolist() for key, value in run.weights.items()}
    (folder / f"{name}-{rank()}.json").write_text(json.dumps({"seen": run.seen, "weights": weights}))


def caption_gradients(number: int) -> dict[str, torch.Tensor]:
    """Returns the gradients of a training step on one of two batches, whose captions have 2 and 20 tokens to predict.

    Args:
        number: 0 or 1; 2 is both in one batch.
    """
    image = torch.arange(24 * 24 * 3).view(24, 24, 3).to(torch.uint8)
    samples = [encoded("a", image), encoded("a much longer text.", 255 - image)]
    taken = samples if number == 2 else [samples[number]]
    batch = lay_rows([taken], sum(sample.length for sample in taken), patch_size=SIZES["patch_size"], padding=0)
    task = task_with().double()
    task.training_step(batch).backward()  # type: ignore[no-untyped-call]
    return {name: weight.grad for name, weight in task.named_parameters() if weight.grad is not None}


def report_captions(folder: Path) -> None:
    """Writes the gradients as DDP has them: their mean over the ranks."""
    gradients = caption_gradients(rank())
    for gradient in gradients.values():
        torch.distributed.all_reduce(gradient)
    torch.save({name: gradient / 2 for name, gradient in gradients.items()}, folder / f"captions-{rank()}.pt")


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    whole = run(folder, callbacks=[checkpoints(folder, "whole")])
    whole.trainer.save_checkpoint(folder / "afterwards.ckpt")
    report(folder, "whole", whole)
    report(folder, "resumed", run(folder, ckpt_path=folder / "whole" / "step=5.ckpt"))
    report(folder, "from_one", run(folder, ckpt_path=folder / "one" / "step=3.ckpt", dropout=0.0))
    report_captions(folder)
    stop = Stop(KILLED_AT, how=signal.SIGKILL) if rank() == 1 else None
    run(folder, callbacks=[checkpoints(folder, "killed")], stop=stop, workers=1, dropout=0.0)


if __name__ == "__main__":
    main()
