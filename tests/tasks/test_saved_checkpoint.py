"""A checkpoint that earlier code saved loads, and its run goes on with the same losses."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from energon_dali.tasks import load_task
from energon_dali.tasks.multimodal.captioning import CaptioningTransformer
from tests.data.states.make_checkpoint import SAVED_AT, train

SAVED = Path(__file__).parents[1] / "data" / "states" / "before-rooms-checkpoint.tar.gz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with tarfile.open(SAVED) as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_it_gives_the_task_back(folder: Path) -> None:
    assert isinstance(load_task(folder / "step.ckpt"), CaptioningTransformer)


def test_its_run_goes_on(folder: Path, tmp_path: Path) -> None:
    losses = train(folder, tmp_path, f"ckpt_path={folder / 'step.ckpt'}")
    expected = json.loads((folder / "losses.json").read_text())[SAVED_AT:]
    assert losses == pytest.approx(expected, rel=1e-5)
