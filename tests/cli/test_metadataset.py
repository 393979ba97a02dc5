from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from energon_dali.cli.main import main

GOLDEN = Path(__file__).parent.parent / "data" / "energon_7_4_1_mix"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


def test_prepare_builds_the_joins(tmp_path: Path) -> None:
    folder = tmp_path / "mix"
    shutil.copytree(GOLDEN, folder)
    shutil.rmtree(folder / "join.yaml.cache")
    code, text = run("info", str(folder / "join.yaml"))
    assert code == 0
    assert "? (DatasetFormatError)" in text
    code, text = run("prepare", str(folder / "join.yaml"))
    assert (code, text.splitlines()[-1]) == (0, "Done. The joins are indexed.")
    assert len(list((folder / "join.yaml.cache").iterdir())) == 4
    assert run("prepare", str(folder / "epochs.yaml"))[1] == "Done. There is nothing to prepare.\n"


@pytest.mark.filterwarnings("ignore:.*subflavor is deprecated:DeprecationWarning")
def test_info_shows_the_parts_of_the_whole() -> None:
    code, text = run("info", str(GOLDEN / "second.yaml"))
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert ["75.00%", "5", "train", str(GOLDEN / "images")] in lines
    assert ["6.25%", "3", "train", str(GOLDEN / "texts")] in lines
    assert ["4", "val", str(GOLDEN / "captions")] in lines
    code, text = run("info", str(GOLDEN / "epochs.yaml"))
    assert f"6 x  2  train  {GOLDEN / 'captions'}".split() in [line.split() for line in text.splitlines()]


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mix.yaml"
    file.write_text("__class__: MetadatasetV2\nsplits:\n  train: {blend: [{path: a, wieght: 2}]}\n")
    for command in ("prepare", "info"):
        code, text = run(command, str(file))
        assert code == 1
        assert "mix.yaml:3 (splits.train.blend[0].wieght)" in text.splitlines()[-1]
