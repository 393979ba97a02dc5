"""`energon-dali preview` shows samples: their parts, their sources, their images."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from energon_dali.cli.main import main
from energon_dali.cli.preview import describe_sample, draw
from energon_dali.shards.meta.dataset_config import sample_config, write_dataset_config
from energon_dali.shards.prepare.dataset import prepare_dataset
from energon_dali.shards.storage import StoragePath


@pytest.fixture
def data(tmp_path: Path) -> str:
    image = io.BytesIO()
    picture = Image.new("RGB", (8, 4))
    picture.paste((255, 255, 255), (4, 0, 8, 4))
    picture.save(image, "PNG")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(3):
            for name, content in {"png": image.getvalue(), "txt": f"caption {number}".encode()}.items():
                member = tarfile.TarInfo(f"k{number}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    prepare_dataset(str(tmp_path))
    write_dataset_config(
        StoragePath.of(tmp_path), sample_config("CaptioningSample", {"image": "png", "caption": "txt"})
    )
    return str(tmp_path)


def test_samples_are_shown_one_after_the_other(data: str) -> None:
    done = CliRunner().invoke(main, ["preview", data], input="y\nn\n")
    assert done.exit_code == 0, done.output
    assert "k0 (CaptioningSample)" in done.output
    assert "k1 (CaptioningSample)" in done.output
    assert "k2" not in done.output
    assert "image: RGB image, 8 x 4" in done.output
    assert "caption: caption 1" in done.output
    assert "a.tar, sample 1" in done.output
    assert "    " + "    @@@@" in done.output


def test_a_number_of_samples_and_crude_ones(data: str, tmp_path: Path) -> None:
    config = Path(data) / ".nv-meta" / "dataset.yaml"
    config.write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    done = CliRunner().invoke(main, ["preview", data, "--count", "2"])
    assert (done.exit_code, done.output.count("(CrudeSample)")) == (0, 2)
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"a": "first"}) + "\n")
    assert CliRunner().invoke(main, ["prepare", str(lines), "--no-progress"]).exit_code == 0
    done = CliRunner().invoke(main, ["preview", str(lines), "--count", "5"])
    assert "first" in done.output
    assert "Done. 1 sample in" in done.output


def test_what_is_missing_is_named(data: str) -> None:
    done = CliRunner().invoke(main, ["preview", data, "--split-parts", "nowhere"])
    assert done.exit_code == 1
    assert "nowhere" in done.output


def test_texts_do_not_command_the_terminal() -> None:
    sample = {"__key__": "a\x1b[2J", "txt": "one\x1b]52;c;aGk=\x07\ntwo\ttabs \x9b"}
    lines = list(describe_sample(sample, 40, colours=True))
    assert lines == ["a\\x1b[2J (dict)", "  txt: one\\x1b]52;c;aGk=\\x07", "    two\ttabs \\x9b"]


def test_images_in_colour() -> None:
    image = Image.new("RGB", (2, 2), (1, 2, 3))
    assert list(draw(image, 64, colours=True)) == ["    " + "\x1b[38;2;1;2;3;48;2;1;2;3m\u2580" * 2 + "\x1b[0m"]
