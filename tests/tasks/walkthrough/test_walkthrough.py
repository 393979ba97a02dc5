"""The guide of custom tasks, followed to the letter: the files in this folder train, classify, resume and draw."""

from __future__ import annotations

import csv
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali.tasks import TrainResult, compose, load_task, run
from energon_dali.tasks.vision.igpt import draw_pixels
from tests.tasks.words import save_word_tokenizer

CONF = Path(__file__).parent / "conf"
ROOT = Path(__file__).resolve().parents[3]
GUIDE = ("+task=vision/igpt", "+dataset=vision/igpt/cifar")
QUIET = (
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.enable_progress_bar=false",
    "trainer.enable_model_summary=false",
    "trainer.log_every_n_steps=1",
)
SMALL = (*GUIDE, *QUIET, "+dataset.cfg.batch_size=8", "+dataset.cfg.num_workers=0")


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(output: str, *overrides: str) -> TrainResult:
    return run(compose([*SMALL, f"output_dir={output}", *overrides], CONF))


def test_the_command_of_the_guide_trains(tmp_path: Path, warm_python: str) -> None:
    short = ("trainer.max_steps=1", "hydra.run.dir=run")
    done = subprocess.run(
        [warm_python, str(ROOT / "train.py"), "--config-dir", str(CONF), *GUIDE, "trainer.gpus=1", *QUIET, *short],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path("run/checkpoints/last.ckpt").is_file()
    assert "tests.tasks.walkthrough.pixels.task.ImageGPT" in Path("run/.hydra/config.yaml").read_text()


def test_it_learns_classes_and_logs_what_it_returns() -> None:
    result = train("run", "+task.classify=true", "trainer.max_epochs=15", "optimizer.lr=0.01", "test_after_fit=true")
    names = {"generative", "accuracy"}
    assert {f"{prefix}/{name}" for prefix in ("train", "val", "test") for name in names} <= set(result.metrics)
    with Path("run/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["train/generative"]) for row in rows if row["train/generative"]]
    assert losses[-1] < 0.8 * losses[0]
    assert result.metrics["val/accuracy"] > 0.5  # of four classes
    assert result.task.model is result.task.backbone
    assert type(result.task.backbone).__module__ == "tests.tasks.walkthrough.pixels.gpt2"
    assert result.task.backbone.position_embeddings.num_embeddings == 64


def test_it_resumes_in_the_middle_of_an_epoch_to_the_same_weights() -> None:
    saves = ["trainer.callbacks.checkpoint.every_n_train_steps=1", "trainer.callbacks.checkpoint.save_top_k=-1"]
    whole = train("whole", "trainer.max_epochs=2", *saves)
    (saved,) = Path("whole/checkpoints").glob("*step2.ckpt")
    resumed = train("resumed", "trainer.max_epochs=2", f"ckpt_path={saved}", *saves)
    assert whole.trainer.global_step == resumed.trainer.global_step == 8
    for name, value in whole.task.state_dict().items():
        assert torch.equal(value, resumed.task.state_dict()[name])


def test_a_checkpoint_gives_a_task_that_draws() -> None:
    trained: Any = train("run").task
    task: Any = load_task("run/checkpoints/last.ckpt")
    known = torch.arange(64).remainder(16).view(32, 2)
    drawn = draw_pixels(task.model, known, 64, seed=1)
    assert drawn.shape == (64, 2)
    assert torch.equal(drawn[:32], known)
    assert torch.equal(drawn, draw_pixels(trained.model, known, 64, seed=1))
    assert dict(task.hparams)["num_pixels"] == 8


def test_values_of_the_backbone_are_set_without_a_plus() -> None:
    sizes = {"embed_dim": 8, "num_heads": 1, "num_layers": 1, "num_vocab": 16, "num_classes": 4}
    for name in ("vision/igpt/gpt", "vision/igpt/gpt2"):
        told = [f"backbone={name}", *(f"backbone.{key}={value}" for key, value in sizes.items())]
        result = train(name.rpartition("/")[2], "trainer.max_steps=1", *told)
        assert result.task.backbone.token_embeddings.weight.shape == (16, 8)
        assert len(result.task.backbone.layers) == 1
        assert result.task.backbone.clf_head.out_features == 4


def test_the_tokenizer_takes_the_backbone_s_name(tmp_path: Path) -> None:
    save_word_tokenizer(tmp_path / "words", ["pixel"])
    name = f"pretrained_model_name_or_path={tmp_path / 'words'}"
    cfg = compose([*SMALL, "tokenizer=autotokenizer", f"+backbone.{name}"], CONF)
    assert cfg.tokenizer._target_ == "transformers.AutoTokenizer.from_pretrained"
    from energon_dali.tasks import HydraInstantiator

    assert HydraInstantiator().tokenizer(cfg.tokenizer).encode("pixel") == [3]


def test_the_configs_of_this_folder_are_the_table_s() -> None:
    task = (CONF / "task" / "vision" / "igpt.yaml").read_text()
    assert re.search(r"^# @package task\ndefaults:\n  - /task/default\n  - /backbone@_group_: ", task)
    dataset = (CONF / "dataset" / "vision" / "igpt" / "cifar.yaml").read_text()
    assert dataset.count("_target_") == 1
