"""Saves a checkpoint of a short captioning run, its datasets and how the run went on; run from the repository root.

    python -m tests.data.states.make_checkpoint NAME

writes `NAME-checkpoint.tar.gz` to this folder, once, by the code whose checkpoint it holds. Later code has to continue
the run with the same losses (`tests/tasks/test_saved_checkpoint.py`).
"""

from __future__ import annotations

import csv
import json
import sys
import tarfile
import tempfile
from pathlib import Path

import torch

from energon_dali.tasks import compose, run
from tests.loader.dataset_folder import captioning_sample, prepare, write_shards

STEPS, SAVED_AT = 6, 3
OVERRIDES = (
    "+task=multimodal/captioning",
    "+dataset=multimodal/captioning/demo",
    "dataset.cfg.patch_size=12",
    "dataset.cfg.shorter_px=24",
    "dataset.cfg.longest_px=48",
    "dataset.cfg.max_caption_tokens=24",
    "dataset.cfg.row_length=90",
    "dataset.cfg.batch_size=2",
    "dataset.cfg.val_batch_size=2",
    "dataset.cfg.num_workers=0",
    "dataset.cfg.packing_buffer_size=16",
    "dataset.cfg.shuffle_buffer_size=20",
    "dataset.cfg.weights=[3,1]",
    f"dataset.cfg.virtual_epoch_length={STEPS}",
    "decoder=pil",
    "backbone.embed_dim=8",
    "backbone.num_heads=1",
    "backbone.num_layers=1",
    "task.num_samples=2",
    "trainer.accelerator=cpu",
    "trainer.enable_progress_bar=false",
    "trainer.enable_model_summary=false",
    "trainer.log_every_n_steps=1",
    f"trainer.callbacks.checkpoint.every_n_train_steps={SAVED_AT}",
    "trainer.callbacks.checkpoint.save_top_k=-1",
    "optimizer.lr=1e-2",
)


def train(folder: Path, output: Path, *overrides: str) -> list[float]:
    """Trains on the datasets of a folder; returns the training loss of each step."""
    data = f"dataset.cfg.data_dir=[{folder / 'captions'},{folder / 'crude'}]"
    run(compose([*OVERRIDES, data, f"output_dir={output}", *overrides]))
    with (output / "metrics.csv").open() as file:
        return [float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]]


def write_datasets(folder: Path) -> None:
    """Writes and prepares two small datasets; the second one is crude."""
    for name, numbers in (("captions", range(20)), ("crude", range(100, 112))):
        samples = {f"{name}{number:03d}": captioning_sample(number) for number in numbers}
        prepare(write_shards(folder / name, samples, 2))
    crude = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    (folder / "crude" / ".nv-meta" / "dataset.yaml").write_text(json.dumps(crude))


def main() -> None:
    """Writes the file whose name is given."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_datasets(folder / "data")
        losses = train(folder / "data", folder / "run")
        (checkpoint,) = (folder / "run" / "checkpoints").glob(f"*step{SAVED_AT}.ckpt")
        checkpoint.rename(folder / "data" / "step.ckpt")
        (folder / "data" / "losses.json").write_text(json.dumps(losses))
        with tarfile.open(Path(__file__).with_name(f"{sys.argv[1]}-checkpoint.tar.gz"), "w:gz") as tar:
            tar.add(folder / "data", arcname=".")


if __name__ == "__main__":
    main()
