"""The captioning task through the configs of the package: it learns, resumes, writes captions, and its parts swap."""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import tokenizers
import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast

from energon_dali import CaptioningSample
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.tasks import TrainResult, compose, load_task, run
from energon_dali.tasks.captioning.data_module import CaptioningDataConfig, CaptioningDataModule, blend_of
from energon_dali.tasks.captioning.task import show_captions
from energon_dali.tasks.transformers_gpt2 import TransformersGPT2
from tests.tasks.captioning.captions import SIZES, two_datasets

COMMAND = ("+task=multimodal/captioning", "+dataset=multimodal/captioning/demo")
SMALL = (
    *(f"dataset.cfg.{name}={value}" for name, value in SIZES.items()),
    "dataset.cfg.row_length=90",
    "dataset.cfg.batch_size=2",
    "dataset.cfg.val_batch_size=2",
    "dataset.cfg.num_workers=0",
    "dataset.cfg.packing_buffer_size=16",
    "dataset.cfg.shuffle_buffer_size=20",
    "decoder=pil",
    "dataset.cfg.virtual_epoch_length=null",
    "dataset.cfg.weights=[3,1]",
    "backbone.embed_dim=32",
    "backbone.num_heads=2",
    "backbone.num_layers=2",
    "task.num_samples=5",
    "trainer.accelerator=cpu",
    "trainer.enable_progress_bar=false",
    "trainer.enable_model_summary=false",
    "trainer.log_every_n_steps=1",
    "optimizer.lr=1e-2",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return two_datasets(tmp_path_factory.mktemp("captions"))


def train(folders: list[str], output: Path, *overrides: str, steps: int = 10) -> TrainResult:
    data = f"dataset.cfg.data_dir=[{','.join(folders)}]"
    told = [*COMMAND, *SMALL, data, f"output_dir={output}", f"dataset.cfg.virtual_epoch_length={steps}", *overrides]
    return run(compose(told))


def unigram_entropy(texts: list[str]) -> float:
    """Returns the loss in nats of a model that has learned how often each byte occurs, and the end, but not where."""
    counts = Counter(token for text in texts for token in [*text.encode(), None])
    total = sum(counts.values())
    return -sum(count / total * math.log(count / total) for count in counts.values())


def test_it_learns_captions_and_writes_them_below_the_images(folders: list[str], tmp_path: Path) -> None:
    result = train(folders, tmp_path, "trainer.max_epochs=2", steps=20)
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    losses = [float(row["train_loss"]) for row in rows if row["train_loss"]]
    captions = [f"picture number {number}" for number in (*range(36, 40), *range(118, 120))]
    assert losses[0] == pytest.approx(math.log(259), rel=0.05)
    assert result.metrics["val_loss"] < unigram_entropy(captions) / 2
    assert result.metrics["val_accuracy"] > 0.7
    pictures = sorted((tmp_path / "samples").glob("*.png"))
    assert [picture.name for picture in pictures] == ["step20.png", "step40.png"]
    sheet = Image.open(pictures[1])
    assert sheet.size == (4 * 200, 2 * 284)  # five images in two lines
    colours = [len(sheet.crop((left, 0, left + 200, 200)).getcolors(99999)) for left in range(0, 800, 200)]
    assert min(colours) > 100  # photographs
    assert sheet.crop((0, 200, 800, 284)).getextrema()[0][0] < 64  # text
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("packing", ["16", "null"])
def test_a_resumed_run_ends_where_the_whole_one_does(packing: str, folders: list[str], tmp_path: Path) -> None:
    overrides = [
        f"dataset.cfg.packing_buffer_size={packing}",
        "trainer.callbacks.checkpoint.every_n_train_steps=3",
        "trainer.callbacks.checkpoint.save_top_k=-1",
        "backbone.dropout=0.1",
    ]
    whole = train(folders, tmp_path / "whole", *overrides, steps=5)
    (saved,) = (tmp_path / "whole" / "checkpoints").glob("*step3.ckpt")
    resumed = train(folders, tmp_path / "resumed", *overrides, f"ckpt_path={saved}", steps=5)
    assert resumed.metrics["val_loss"] == whole.metrics["val_loss"]
    for name, value in whole.task.state_dict().items():
        assert torch.equal(resumed.task.state_dict()[name], value), name


SWAPS: dict[str, list[str]] = {
    "backbone": ["backbone=multimodal/captioning/transformers_gpt2"],
    "decoder": ["decoder=dali_cpu"],
    "unpacked": ["dataset.cfg.packing_buffer_size=null"],
    "tokenizer": ["tokenizer=none"],
    "one_dataset": ["dataset.cfg.weights=null"],
}


@pytest.mark.parametrize("swap", SWAPS)
def test_the_command_line_swaps_parts(swap: str, folders: list[str], tmp_path: Path) -> None:
    folders = folders[:1] if swap == "one_dataset" else folders
    result = train(folders, tmp_path, *SWAPS[swap], steps=2)
    assert math.isfinite(result.metrics["val_loss"])
    assert (tmp_path / "samples" / "step2.png").exists()
    made = {
        "backbone": type(result.task.backbone).__name__ == "TransformersGPT2",
        "decoder": type(result.data_module.task_encoder("train").decoder).__name__ == "DaliDecoder",
        "unpacked": type(result.data_module.task_encoder("val")).__name__ == "CaptioningTaskEncoder",
        "tokenizer": type(result.data_module.codec.tokenizer).__name__ == "ByteTokenizer",
        "one_dataset": len(result.data_module.cfg.train["splits"]["train"]["blend"]) == 2,
    }
    assert made[swap]


def test_weights_and_tokenizer_of_a_folder_take_their_places(folders: list[str], tmp_path: Path) -> None:
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator([f"picture number {number}" for number in range(120)], vocab_size=280)
    fast = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="<|endoftext|>")
    fast.save_pretrained(tmp_path / "model")
    saved = TransformersGPT2(len(fast), SIZES["max_caption_tokens"] + 2, embed_dim=8, num_heads=2, num_layers=1)
    saved.model.save_pretrained(tmp_path / "model")
    told = [
        "backbone=multimodal/captioning/transformers_gpt2",
        "tokenizer=autotokenizer",
        f"backbone.pretrained_model_name_or_path={tmp_path / 'model'}",
        "optimizer.lr=0",
    ]
    result = train(folders, tmp_path / "run", *told, steps=1)
    assert torch.equal(result.task.backbone.model.transformer.wte.weight, saved.model.transformer.wte.weight)
    (tmp_path / "model" / "model.safetensors").unlink()  # a checkpoint needs nothing but itself
    for before, epochs in (("run", 2), ("run2", 3)):
        checkpoint = tmp_path / before / "checkpoints" / "last.ckpt"
        more = [f"ckpt_path={checkpoint}", f"trainer.max_epochs={epochs}"]
        assert train(folders, tmp_path / f"run{epochs}", *told, *more, steps=1).trainer.global_step == epochs
    loaded: Any = load_task(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert loaded.backbone.model.config.to_diff_dict() == saved.model.config.to_diff_dict()
    for name, value in result.task.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    validated_without_a_data_module(loaded, result, tmp_path / "alone")
    with pytest.raises(ConfigError, match=r"backbone\.pretrained=.*model cannot be read: (.|\n)*Give a folder"):
        TransformersGPT2(10, 10, pretrained=str(tmp_path / "model"))
    encoder = result.data_module.task_encoder("train")
    sample = CaptioningSample(
        __key__="k", __restore_key__=(), image=torch.zeros(24, 24, 3, dtype=torch.uint8), caption="picture number 7"
    )
    tokens = encoder.preencode_sample(sample).tokens
    assert len(tokens) < len(sample.caption)  # pieces of words
    assert tokens[0] == tokens[-1] == fast.eos_token_id
    assert encoder.codec.decode(tokens.tolist()) == sample.caption


def validated_without_a_data_module(task: Any, result: TrainResult, folder: Path) -> None:
    """Where nothing makes texts of tokens, there are the metrics alone."""
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=folder, enable_checkpointing=False
    )
    loader = result.data_module.val_dataloader()
    (metrics,) = trainer.validate(task, dataloaders=loader, verbose=False)
    result.data_module.close()
    assert metrics["val_loss"] == pytest.approx(result.metrics["val_loss"], rel=1e-6)
    assert not folder.exists()


def test_a_backbone_of_another_task_is_refused_by_name(folders: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SequenceGPT2 has no embed_dim and no embed: .*captioning/gpt, or one with"):
        train(folders, tmp_path, "backbone=transformers/gpt2")


class TextLogger:
    """Takes what loggers of W&B take."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def log_text(self, key: str, **text: Any) -> None:
        self.given.append((key, text["columns"], text["data"], text["step"]))

    def log_image(self, key: str, **images: Any) -> None:
        self.given.append((key, images["images"], images["step"]))


def test_loggers_get_the_captions_as_text() -> None:
    texts: list[Any] = []
    board = SimpleNamespace(experiment=SimpleNamespace(add_text=lambda *given: texts.append(given)))
    wandb = TextLogger()
    show_captions([wandb, board, SimpleNamespace(experiment=None)], ["a cat"], ["a dog", "more"], Path("p.png"), 7)
    assert wandb.given == [("captions", ["written", "true"], [["a cat", "a dog"]], 7), ("captions", ["p.png"], 7)]
    assert texts == [("captions", "- a cat — *a dog*", 7)]


def test_a_blend_keeps_the_end_of_each_dataset_for_validation() -> None:
    made = blend_of(["/data/a", "s3://bucket/b"], [2, 1], 0.25)["splits"]
    assert made["train"]["blend"] == [
        {"path": "/data/a", "weight": 2.0, "subset": {"range": ["0%", "75%"]}},
        {"path": "s3://bucket/b", "weight": 1.0, "subset": {"range": ["0%", "75%"]}},
    ]
    assert made["val"]["concat"][1] == {
        "path": "s3://bucket/b",
        "split_part": "train",
        "subset": {"range": ["75%", "100%"]},
    }
    halves = blend_of(["/data/a"], None, 0)["splits"]
    assert [entry["subset"]["range"] for entry in halves["train"]["blend"]] == [["0%", "50%"], ["50%", "100%"]]
    assert halves["val"] == {"path": "/data/a"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"data_dir": []}, "give data_dir one or more folders"),
        ({"val_share": 1.0}, "val_share = 1.0 leaves nothing to train on"),
        ({"weights": [1.0]}, r"weights=\[1.0\] for 2 parts of the blend"),
        ({"patch_size": 0}, "patch_size=0 is invalid: give a number of at least 1"),
        ({"shorter_px": 100}, "longest_px=96 is below shorter_px=100"),
    ],
)
def test_settings_that_cannot_work_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CaptioningDataModule(CaptioningDataConfig(**options))


def test_a_dataset_that_is_not_there_or_not_prepared_is_named(tmp_path: Path) -> None:
    missing = CaptioningDataModule(CaptioningDataConfig(data_dir=[str(tmp_path / "none")]))
    with pytest.raises(DatasetError, match=r"none does not exist \(from .*\). Run `make demo`"):
        missing.prepare_data()
    unprepared = CaptioningDataModule(CaptioningDataConfig(data_dir=str(tmp_path)))
    with pytest.raises(DatasetError, match="is not prepared: run `energon-dali prepare"):
        unprepared.prepare_data()
