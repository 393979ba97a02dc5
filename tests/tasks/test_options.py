"""Every option that the package ships composes, and every wrong one ends in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from energon_dali.tasks import compose, run
from energon_dali.tasks.composition import CONF, options_of
from energon_dali.tasks.train import _is_for_the_user
from tests.tasks.igpt.archives import write_archive

BASE = {"task": "vision/igpt", "dataset": "vision/igpt/cifar"}
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir())
OPTIONS = [(group, option) for group in GROUPS for option in options_of(group)]


def targets(config: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yields the place and the name of everything that a config makes."""
    for key, value in config.items() if isinstance(config, dict) else enumerate(config):
        if key == "_target_":
            yield place, value
        elif isinstance(value, (dict, list)):
            yield from targets(value, f"{place}.{key}")


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=lambda each: each)
def test_every_option_composes_and_names_what_exists(group: str, option: str) -> None:
    chosen = {**BASE, group: option}
    overrides = [f"{'+' if name in BASE else ''}{name}={value}" for name, value in chosen.items()]
    cfg = OmegaConf.to_container(compose([*overrides, "output_dir=runs"]), resolve=True, throw_on_missing=True)
    assert isinstance(cfg, dict)
    assert {"task", "dataset", "backbone", "tokenizer", "decoder", "optimizer", "scheduler", "trainer"} <= set(cfg)
    for place, target in targets(cfg):
        if target is not None:
            assert callable(get_object(target)), place


def test_the_groups_are_those_of_the_page() -> None:
    assert len(OPTIONS) >= 20
    assert GROUPS == ["backbone", "dataset", "decoder", "optimizer", "scheduler", "task", "tokenizer", "trainer"]


WRONG = {
    "trainer.devces=1": "Did you mean trainer.devices?",
    "trainer.max_epochs=abc": "trainer.max_epochs=abc is invalid: give a whole number or null.",
    "trainer.max_time=abc": "`Timer(duration='abc')` is not a valid duration.",
    "+trainer.callbacks.progress.every_n_batch=1": "not an argument of LoaderProgress. Did you mean every_n_batches?",
    "+trainer.callbacks.own._target_=no.such.Callback": "'no.such.Callback'. ModuleNotFoundError:",
    "+dataset.cfg.batchsize=3": "dataset.cfg.batchsize is not a field of ImageGPTDataConfig. Did you mean batch_size?",
    "dataset.cfg.image_size=abc": "dataset.cfg.image_size=abc is invalid: give a whole number.",
    "dataset.cfg.batch_size=null": "dataset.cfg.batch_size=null is invalid: give a whole number.",
    "dataset.cfg.loader_options=abc": "it has keys, which are set as dataset.cfg.loader_options.KEY=VALUE.",
    "dataset.cfg=3": "dataset.cfg=3 is invalid: it has keys, which are set as dataset.cfg.KEY=VALUE.",
    "+dataset.cfg.loader_options.pin_memry=1": "has no argument 'pin_memry'",
    "backbone=vision/igpt/gpt3": "Did you mean backbone=vision/igpt/gpt or backbone=vision/igpt/gpt2?",
    "backbone.num_layer=2": "Did you mean backbone.num_layers?",
    "+backbone.num_layer=2": "backbone.num_layer is not an argument of GPT2. Did you mean num_layers?",
    "backbone.num_layers=2.5": "backbone.num_layers=2.5 is invalid: give a whole number.",
    "optimizer=adamv": "Did you mean optimizer=adam?",
    "optimizer.lr=abc": "optimizer.lr=abc is invalid: give a number.",
    "scheduler=cosine": "Did you mean scheduler=cosine_with_warmup?",
    "+scheduler.num_warmup=1": "is not an argument of cosine_with_warmup. Did you mean num_warmup_steps?",
    "tokenizer=bite": "Did you mean tokenizer=byte?",
    "decoder=pill": "Did you mean decoder=pil?",
    "+task.temprature=1": "is not an argument of GenerativePixelsTransformer. Did you mean temperature?",
    "task.classify=maybe": "task.classify=maybe is invalid: give true or false.",
    "seed=abc": "seed=abc is invalid: give a whole number from 0 to 4294967295.",
    "test_after_fit=maybe": "test_after_fit=maybe is invalid: give true or false.",
    "+sed=1": "Nothing reads sed, which the run was given. Did you mean seed?",
    "=3": "=3 has no name before the sign. Write NAME=3.",
    "task=": "task= has no value after the sign.",
}


@pytest.mark.parametrize("override", WRONG)
def test_a_wrong_override_ends_in_one_line_of_words(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_archive(tmp_path)
    base = "+task=vision/igpt +dataset=vision/igpt/cifar dataset.cfg.image_size=4 dataset.cfg.num_workers=0 decoder=pil"
    quiet = "trainer.accelerator=cpu trainer.devices=1 trainer.max_steps=1 output_dir=run"
    with pytest.raises(Exception) as caught:  # noqa: PT011  what is raised is looked at below
        run(compose([*shlex.split(base), *shlex.split(quiet), override]))
    assert _is_for_the_user(caught.value), repr(caught.value)
    assert WRONG[override] in str(caught.value).splitlines()[-1]
