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


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    whole = run(folder, callbacks=[checkpoints(folder, "whole")])
    whole.trainer.save_checkpoint(folder / "afterwards.ckpt")
    report(folder, "whole", whole)
    report(folder, "resumed", run(folder, ckpt_path=folder / "whole" / "step=5.ckpt"))
    report(folder, "from_one", run(folder, ckpt_path=folder / "one" / "step=3.ckpt", dropout=0.0))
    stop = Stop(KILLED_AT, how=signal.SIGKILL) if rank() == 1 else None
    run(folder, callbacks=[checkpoints(folder, "killed")], stop=stop, workers=1, dropout=0.0)


if __name__ == "__main__":
    main()
