"""Image GPT through the configs of the package: it learns, draws, resumes."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch
from PIL import Image

from energon_dali.errors import ConfigError
from energon_dali.tasks import TrainResult, compose, load_task, run
from energon_dali.tasks.vision.igpt.model import pixel_loss
from tests.tasks.old_checkpoint import rewrite_as_before

SMALL = (
    "+task=vision/igpt",
    "+dataset=vision/igpt/cifar",
    "dataset.cfg.image_size=8",
    "dataset.cfg.batch_size=6",
    "dataset.cfg.num_workers=0",
    "dataset.cfg.num_streams=1",
    "decoder=pil",
    "backbone.num_layers=2",
    "task.num_samples=3",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.enable_progress_bar=false",
    "trainer.enable_model_summary=false",
    "trainer.log_every_n_steps=1",
)


def train(archive: Path, output: Path, *overrides: str) -> TrainResult:
    return run(compose([*SMALL, f"dataset.cfg.data_dir={archive.parent}", f"output_dir={output}", *overrides]))


def test_it_learns_to_draw_and_to_tell_classes(archive: Path, tmp_path: Path) -> None:
    result = train(archive, tmp_path, "trainer.max_epochs=8", "task.classify=true", "test_after_fit=true")
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    losses = [float(row["train_generative_loss"]) for row in rows if row["train_generative_loss"]]
    assert losses[0] == pytest.approx(math.log(16), abs=0.1)
    assert result.metrics["val_generative_loss"] < 0.75 * math.log(16)
    for prefix in ("val", "test"):
        parts = result.metrics[f"{prefix}_generative_loss"] + result.metrics[f"{prefix}_class_loss"]
        assert result.metrics[f"{prefix}_loss"] == pytest.approx(parts, rel=1e-5)
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    pictures = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert pictures == [f"step-{6 * epoch:06d}.png" for epoch in range(1, 9)]
    with Image.open(tmp_path / "samples" / pictures[-1]) as grid:
        assert grid.size == (76 + 3 * 100, 4 + 3 * 100)
    told_apart(result)
    completed(result)
    kept(result, tmp_path / "checkpoints" / "last.ckpt")


def told_apart(result: TrainResult) -> None:
    """The accuracy is the share of pictures whose class was guessed, over all batches and not over their means."""
    task = result.task.eval()
    batches = list(result.data_module.val_dataloader())
    result.data_module.close()
    guesses = [task.backbone(task.tokens(batch.image), classify=True) for batch in batches]
    right = sum(int((c.argmax(1) == batch.label).sum()) for (c, _), batch in zip(guesses, batches, strict=True))
    count = sum(len(batch.label) for batch in batches)
    assert result.metrics["val_accuracy"] == pytest.approx(right / count)
    sums = [
        pixel_loss(logits, task.tokens(batch.image)).item() * len(batch.label)
        for (_, logits), batch in zip(guesses, batches, strict=True)
    ]
    assert result.metrics["val_generative_loss"] == pytest.approx(sum(sums) / count, rel=1e-5)


def completed(result: TrainResult) -> None:
    """The upper half of a completion is the picture's, in palette colours; draws repeat."""
    task = result.task
    pictures = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    drawn = task.complete(pictures)
    assert torch.equal(drawn[:, :, :4], task.images(task.tokens(pictures))[:, :, :4])
    assert torch.equal(drawn, task.complete(pictures))
    other = pictures.clone()
    other[:, :, 4:] = 0
    assert torch.equal(drawn, task.complete(other))
    assert torch.equal(task.draw(2), task.draw(2))
    assert not torch.equal(task.draw(2), task.draw(2, seed=1))


def kept(result: TrainResult, checkpoint: Path) -> None:
    """A checkpoint brings its palette with it."""
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["palette"] == [list(color) for color in result.data_module.palette.units]
    saved["palette"][0] = [1, 2, 3]
    result.task.on_load_checkpoint(saved)
    assert result.task.palette.units[0] == (1, 2, 3)


def test_a_resumed_run_ends_where_the_whole_one_does(archive: Path, tmp_path: Path) -> None:
    told = (
        "trainer.max_epochs=2",
        "trainer.callbacks.checkpoint.every_n_train_steps=4",
        "trainer.callbacks.checkpoint.save_top_k=-1",
    )
    whole = train(archive, tmp_path / "whole", *told)
    (saved,) = (tmp_path / "whole" / "checkpoints").glob("*step8.ckpt")
    resumed = train(archive, tmp_path / "resumed", *told, f"ckpt_path={saved}")
    assert resumed.metrics["val_loss"] == whole.metrics["val_loss"]
    for name, value in whole.task.state_dict().items():
        assert torch.equal(value, resumed.task.state_dict()[name])
    last = [tmp_path / run / "samples" / "step-000012.png" for run in ("whole", "resumed")]
    assert last[0].read_bytes() == last[1].read_bytes()
    rewrite_as_before(saved)  # its weights are backbone.blocks.0..., where they were backbone.layers.0...
    assert any(".blocks." in name for name in torch.load(saved, weights_only=True)["state_dict"])
    load_task(saved)
    continued = train(archive, tmp_path / "as_before", *told, f"ckpt_path={saved}")
    assert continued.metrics["val_loss"] == whole.metrics["val_loss"]


def test_a_backbone_of_another_task_is_refused_by_name(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"CaptioningGPT does not take sequences of pixels alone: missing a required"):
        train(archive, tmp_path, "backbone=multimodal/captioning/gpt")
