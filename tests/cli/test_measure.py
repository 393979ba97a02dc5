"""The command `measure`, and how other commands show what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from energon_dali.cli.main import main
from energon_dali.shards import prepare_dataset
from energon_dali.shards.meta.dataset_config import write_dataset_config
from energon_dali.shards.storage import StoragePath
from tests.shards.tars import captions

ENCODERS = "tests.assembly.measured_encoders"
CAPTIONING = {
    "__module__": "megatron.energon",
    "__class__": "StandardWebdatasetFactory",
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "jpg", "caption": "txt"},
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data-home"))
    captions(tmp_path / "data", shards=2)
    prepare_dataset(str(tmp_path / "data"))
    write_dataset_config(StoragePath.of(tmp_path / "data"), CAPTIONING)
    return tmp_path / "data"


def run(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_measure_says_what_it_did(root: Path) -> None:
    first = run("measure", root, "--encoder", f"{ENCODERS}:Picky", "--num-workers", 1)
    assert f"Measured 4 of 8 samples of {root}." in first
    assert "2 not measured, preencode_sample: ValueError, such as shard_0.tar/s0_1: ValueError: not this one" in first
    assert "2 not measured, preencode_sample: skipped" in first
    assert "is measured already" in run("measure", root, "--encoder", f"{ENCODERS}:Picky")
    assert "Measured 4 of 8" in run("measure", root, "--encoder", f"{ENCODERS}:Picky", "--again")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--encoder"),
        (["--encoder", "nothing"], "MODULE:CLASS"),
        (["--encoder", f"{ENCODERS}:Nobody"], "Nobody"),
        (["--encoder", "energon_dali:DefaultTaskEncoder"], "The length of shard_0.tar/s0_0 is not known"),
    ],
)
def test_what_cannot_be_measured_is_an_error(root: Path, arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["measure", str(root), *arguments])
    assert done.exit_code != 0
    assert message in done.output
    assert "Traceback" not in done.output


def test_info_shows_the_columns(root: Path) -> None:
    assert "Measures" not in run("info", root)
    run("measure", root, "--encoder", f"{ENCODERS}:Measuring")
    shown = run("info", root)
    assert f"{ENCODERS}:Measuring: 8 of 8 samples, measures-" in shown
    assert "text_tokens     mean 12.0, min 12, max 12" in shown
    assert "vowels          mean 3.0, min 3, max 3" in shown
    captions(root, shards=3)
    prepare_dataset(str(root))
    assert "stale" in run("info", root)
    (path,) = (root / ".nv-meta").glob("measures-*.bin")
    path.write_bytes(path.read_bytes()[:99])
    assert f"{path.name} cannot be used" in run("info", root)


def test_preview_shows_the_measures_of_a_sample(root: Path) -> None:
    run("measure", root, "--encoder", f"{ENCODERS}:Picky")
    line = f"measures by {ENCODERS}:Picky: text_tokens 12, vision_tokens 0, vision_patches 0, vision_squares 0"
    assert line in run("preview", root, "--index", 0)
    assert f"measures by {ENCODERS}:Picky: could not be measured" in run("preview", root, "--index", 1)
    assert line in run("preview", root, "--count", 1)


def test_bench_prints_tokens_per_second(root: Path) -> None:
    options = ("--encoder", f"{ENCODERS}:Letters", "--num-workers", 0, "--seconds", 0.1, "--json", "--batch-size", 2)
    (loader,) = json.loads(run("bench", root, *options, "--decoder", "own"))["loaders"]
    assert loader["tokens_per_second"] is None
    run("measure", root, "--encoder", f"{ENCODERS}:Letters")
    (loader,) = json.loads(run("bench", root, *options, "--decoder", "own"))["loaders"]
    assert loader["tokens_per_second"] == pytest.approx(12 * loader["samples_per_second"], rel=0.01)


def test_conditions_do_not_hide_samples_from_tools_without_an_encoder(root: Path, tmp_path: Path) -> None:
    run("measure", root, "--encoder", f"{ENCODERS}:Letters")
    entry = {"path": str(root), "subset": {"where": "text_tokens > 100"}}
    meta = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": entry}}
    (tmp_path / "meta.yaml").write_text(json.dumps(meta))
    assert "Nothing is wrong" in run("lint", tmp_path / "meta.yaml", "--split-parts", "train")
    assert "s0_0" in run("preview", tmp_path / "meta.yaml", "--count", 1)
    assert "up to 8" in run("info", tmp_path / "meta.yaml")
