"""The recipes of examples/vlm: losses fall, resumed runs equal uninterrupted ones, and packing changes no logit."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
CASES = (
    ("captions", "qwen2_vl"),
    ("captions", "internvl"),
    ("captions", "llava_onevision"),
    ("images", "llava_onevision"),
    ("images", "qwen2_vl"),
    ("video", "qwen2_5_vl"),
    ("audio", "qwen2_audio"),
    ("omni", "qwen2_5_omni"),
)
"""Kinds of data, and families of models that take them."""
RECIPES = ("with_trainer", "with_accelerate", "with_lightning")
STEPS, SAVED, KILLED = 9, 4, 6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the first run fills with the demo's data and tiny models."""
    return tmp_path_factory.mktemp("vlm")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def runs_of(
    data: Path, folder: Path, recipe: str, case: tuple[str, str], *, packed: bool, decoder: str = "pil"
) -> list[Any]:
    """Returns the runs of a recipe: killed, resumed, and whole; the last ones write reports."""
    kind, family = case

    def run(name: str, report: str, kill_at: int | None = None) -> dict[str, Any]:
        arguments = {
            "--model": data / "models" / family,
            "--data": data / kind,
            "--out": folder / name,
            "--steps": STEPS,
            "--save-steps": SAVED,
            "--batch-size": 4,
            "--row-length": 320,
            "--decoder": decoder,
        }
        command = [str(word) for pair in arguments.items() for word in pair] + (["--packed"] if packed else [])
        return {
            "recipe": recipe,
            "family": family,
            "data": kind,
            "arguments": command,
            "kill_at": kill_at,
            "report": str(folder / report),
            "world": 2,
        }

    return [run("broken", "killed", KILLED), run("broken", "resumed"), run("whole", "whole")]


def check(folder: Path) -> None:
    """Checks that the losses fell, and that the resumed run ended where the whole one did, to the last bit.

    transformers.Trainer logs on the first rank, Accelerate the mean of both, Lightning each its own.
    """
    from safetensors.torch import load_file

    whole, resumed = (
        [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(2)] for name in ("whole", "resumed")
    )
    for rank in range(2):
        if folder.name == "with_trainer" and rank:
            continue
        assert len(whole[rank]) == STEPS
        assert resumed[rank] == whole[rank][SAVED:]
    assert folder.name != "with_lightning" or whole[0] != whole[1], "the ranks had the same samples"
    assert sum(whole[0][-3:]) / 3 < 0.8 * whole[0][0]
    weights = [load_file(folder / name / "final" / "model.safetensors") for name in ("broken", "whole")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def comparison(data: Path, case: tuple[str, str], report: Path) -> dict[str, Any]:
    """Returns the run that compares a pack with its samples."""
    kind, family = case
    return {
        "recipe": "tests.examples.compare_packing",
        "family": family,
        "data": kind,
        "arguments": [str(data / "models" / family), str(data / kind)],
        "kill_at": None,
        "report": str(report),
        "world": 1,
    }


def check_comparison(report: Path) -> None:
    """Checks that packed samples have the logits that they have alone, up to the rounding of float32."""
    samples, difference, largest = json.loads(report.with_name(f"{report.name}.0").read_text())
    assert samples > 2
    assert difference < 2e-6 * largest + 1e-6


def train(python: str, data: Path, runs: list[Any]) -> None:
    command = [python, "-m", "tests.examples.ranks", str(data), json.dumps(runs)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


@pytest.mark.timeout(300)
def test_recipes_learn_and_resume_exactly(data: Path, tmp_path: Path, warm_python: str) -> None:
    """Images with captions; and images, videos and audio in one conversation. In one process, which imports once."""
    captions, omni = tmp_path / "with_trainer", tmp_path / "with_accelerate"
    for folder in (captions, omni):
        folder.mkdir()
    runs = [
        *runs_of(data, captions, "with_trainer", CASES[0], packed=True),
        comparison(data, CASES[0], captions / "compared"),
        *runs_of(data, omni, "with_accelerate", CASES[-1], packed=True),
        comparison(data, CASES[-1], omni / "compared"),
    ]
    train(warm_python, data, runs)
    for folder in (captions, omni):
        check(folder)
        check_comparison(folder / "compared")


@pytest.mark.sweep
@pytest.mark.timeout(300)
def test_packing_changes_no_logit(data: Path, tmp_path: Path, warm_python: str) -> None:
    train(warm_python, data, [comparison(data, case, tmp_path / "-".join(case)) for case in CASES])
    for case in CASES:
        check_comparison(tmp_path / "-".join(case))


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_every_recipe_learns_and_resumes_exactly(
    data: Path, tmp_path: Path, warm_python: str, case: tuple[str, str], packed: bool
) -> None:
    runs = []
    for recipe in RECIPES:
        (tmp_path / recipe).mkdir()
        decoder = "dali" if recipe == "with_accelerate" else "pil"
        runs += runs_of(data, tmp_path / recipe, recipe, case, packed=packed, decoder=decoder)
    train(warm_python, data, runs)
    for recipe in RECIPES:
        check(tmp_path / recipe)
