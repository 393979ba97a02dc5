from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.data.recipe import Recipe, make_dataset
from benchmarks.demo.__main__ import main, table
from benchmarks.demo.dataset import NoDatasetError, users_dataset

pytestmark = pytest.mark.timeout(400)  # a dozen programs with torch and workers on what may be a busy machine
SMALL = Recipe(name="small", samples=80, shards=4, seed=7)
VIDEOS = Recipe(name="small-videos", samples=8, shards=2, seed=7, style="video", seconds=2, width=320, height=180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    make_dataset(SMALL, out, progress=False, processes=1)  # starting a second process takes longer
    return out


@pytest.fixture
def _programs_start_at_once(monkeypatch: pytest.MonkeyPatch, warm_python: str) -> None:
    monkeypatch.setattr(sys, "executable", warm_python)
    monkeypatch.setenv("WARM_WORKERS", "1")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads of torch would only wait for the cores


def is_of_photographs(path: Path) -> bool:
    """Whether an image has tiles of photographs, not blank ones."""
    with Image.open(path) as sheet:
        return sheet.width > 1000 and len(sheet.getcolors(1 << 24) or ()) > 1000


@pytest.mark.sweep  # the function below samples it: the decoders of images
@pytest.mark.usefixtures("_programs_start_at_once")
def test_the_demo_runs_every_decoder_and_shows_a_batch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_dataset(VIDEOS, folder, progress=False, processes=1)
    assert main(["--out", str(folder), "--batches", "2", "--workers", "1"], recipe=SMALL, videos=VIDEOS) == 0
    printed = capsys.readouterr().out
    assert "SampleDecoder" in printed
    assert "trainer blocked" in printed
    assert "pyav" in printed
    for name in ("contact_sheet.png", "clips_sheet.png"):
        assert is_of_photographs(folder / name)


@pytest.mark.sweep
@pytest.mark.usefixtures("_programs_start_at_once")
def test_the_users_own_shards_stay_as_they_are(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    for shard in (folder / SMALL.name).glob("*.tar"):
        shutil.copy(shard, mine / "deep")
    before = sorted(mine.rglob("*"))
    assert main(["--data", str(mine), "--out", str(tmp_path / "out"), "--batches", "1", "--workers", "1"]) == 0
    assert sorted(mine.rglob("*")) == before
    printed = capsys.readouterr().out
    for text in ("Your folder stays as it is", "SampleDecoder", "trainer blocked"):
        assert text in printed
    assert is_of_photographs(tmp_path / "out" / "contact_sheet.png")


def test_a_prepared_dataset_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / ".nv-meta").mkdir()
    assert users_dataset(str(tmp_path), tmp_path / "out").path == str(tmp_path)
    assert users_dataset("s3://bucket/set", tmp_path / "out").path == "s3://bucket/set"


def test_a_folder_without_shards_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoDatasetError, match=r"neither a \.nv-meta folder nor a \.tar file"):
        users_dataset(str(tmp_path), tmp_path / "out")
    assert main(["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "Name a folder with tar shards" in capsys.readouterr().err


def test_a_decoder_that_failed_has_a_row() -> None:
    text = table([{"decoder": "X", "error": "ended with -11, see above"}])
    assert "X" in text
    assert "ended with -11" in text
