"""Every command line of docs/tasks.md, run on a few samples and for two steps."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from energon_dali.errors import DeviceError
from energon_dali.tasks import TrainResult, compose, load_task, run
from tests.part import sampled
from tests.tasks.captioning.captions import two_datasets
from tests.tasks.igpt.archives import write_archive
from tests.tasks.words import save_word_tokenizer

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "tasks.md").read_text()
PREFIX = "python -m energon_dali.tasks.train "
COMMANDS = list(dict.fromkeys(re.findall(rf"^{re.escape(PREFIX)}(.*)$", PAGE, re.MULTILINE)))
SMALL = (
    "trainer.limit_train_batches=2",
    "trainer.max_epochs=1",
    "trainer.limit_val_batches=1",
    "trainer.log_every_n_steps=1",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.enable_progress_bar=false",
    "trainer.enable_model_summary=false",
    "dataset.cfg.batch_size=4",
    "dataset.cfg.num_workers=0",
    "task.num_samples=1",
)
SMALLER = {
    "vision/igpt": ("dataset.cfg.image_size=4",),
    "multimodal/captioning": (
        "dataset.cfg.shorter_px=24",
        "dataset.cfg.longest_px=48",
        "dataset.cfg.row_length=90",
        "dataset.cfg.max_caption_tokens=24",
        "dataset.cfg.packing_buffer_size=8",
        "dataset.cfg.virtual_epoch_length=2",
    ),
}
SWAPPED = {
    "": lambda result: type(result.task).__name__ == "GenerativePixelsTransformer",
    "backbone=transformers/gpt2": lambda result: type(result.task.backbone).__name__ == "SequenceGPT2",
    "backbone.num_layers=2 backbone.embed_dim=32": lambda result: len(result.task.backbone.layers) == 2,
    "decoder=pil": lambda result: result.data_module.decoder.func.__name__ == "SampleDecoder",
    "decoder=dali_cpu": lambda result: result.data_module.decoder.keywords["image_decode_device"] == "cpu",
    "optimizer=sgd optimizer.lr=0.05": lambda result: type(result.trainer.optimizers[0]) is torch.optim.SGD,
    "scheduler=linear_with_warmup scheduler.num_warmup_steps=20": lambda result: result.task.scheduler_cfg[
        "_target_"
    ].endswith("linear_with_warmup"),
    "captioning": lambda result: type(result.task).__name__ == "CaptioningTransformer",
    "dataset.cfg.data_dir=[data/photos,data/captions]": lambda result: len(result.data_module.cfg.data_dir) == 2,
    "backbone=multimodal/captioning/transformers_gpt2": lambda result: (
        type(result.task.backbone).__name__ == "TransformersGPT2"
    ),
    "tokenizer=autotokenizer tokenizer.pretrained_model_name_or_path=data/tokenizer": lambda result: (
        result.data_module.tokenizer.encode("picture") == [3]
    ),
}
"""What each addition to a command changes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page speaks of."""
    root = tmp_path_factory.mktemp("reader")
    (root / "data" / "cifar").mkdir(parents=True)
    write_archive(root / "data" / "cifar")
    for made, name in zip(two_datasets(root), ("photos", "captions"), strict=True):
        shutil.move(made, root / "data" / name)
    shutil.copytree(root / "data" / "captions", root / "demo" / "captions")
    save_word_tokenizer(root / "data" / "tokenizer", ["picture", "number"])
    return root


def addition(command: str) -> str:
    """Returns what a command adds to the first one of its task."""
    words = shlex.split(command)
    captioning = "+task=multimodal/captioning" in words
    rest = [word for word in words if not word.startswith("+") and word != "dataset.cfg.data_dir=data/cifar"]
    return " ".join(rest) or ("captioning" if captioning else "")


def train(folder: Path, output: Path, command: str) -> TrainResult:
    words = shlex.split(command)
    task = words[0].removeprefix("+task=")
    told = [*SMALL, *SMALLER[task], *words, f"output_dir={output}"]
    if "scheduler.num_warmup_steps=20" in words:
        told.append("scheduler.num_training_steps=30")
    return run(compose(told))


RUN = [each for each in COMMANDS if "trainer.devces" not in each and "decoder=dali_gpu" not in each]


@pytest.mark.parametrize("command", sampled(RUN, 3), ids=addition)
def test_the_command_runs_and_swaps_what_it_says(
    command: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    result = train(folder, tmp_path, command)
    assert result.trainer.global_step == 2
    assert result.metrics["val_loss"] > 0
    assert SWAPPED[addition(command)](result)
    trained, loaded = result.task.state_dict(), load_task(tmp_path / "checkpoints" / "last.ckpt").state_dict()
    assert trained.keys() == loaded.keys()
    assert all(torch.equal(trained[name], loaded[name]) for name in trained)


def test_every_swap_of_the_page_is_checked() -> None:
    assert {addition(command) for command in RUN} == set(SWAPPED)


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said without a GPU")
def test_a_gpu_that_is_not_there_is_an_error(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (command,) = [each for each in COMMANDS if "decoder=dali_gpu" in each]
    with pytest.raises(DeviceError, match="GPU"):
        train(folder, tmp_path, command)


def test_the_page_says_what_the_command_says() -> None:
    (block,) = re.findall(rf"^\$ {re.escape(PREFIX)}(.*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
    from energon_dali.errors import ConfigError

    with pytest.raises(ConfigError) as caught:
        compose(shlex.split(block[0]))
    first, last = str(caught.value).splitlines()[0], str(caught.value).splitlines()[-1]
    assert block[1].splitlines()[0] == first
    assert block[1].splitlines()[-1] == last
