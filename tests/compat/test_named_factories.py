"""A factory that dataset.yaml names is imported with `allow_imports`, and runs the dataset's code with `allow_code`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from energon_dali import UntrustedCodeError, WorkerConfig, get_val_dataset
from energon_dali.shards import prepare_dataset
from tests.shards.tars import captions

MODULE = """
from energon_dali import TextSample
from energon_dali.compat.factories import DefaultDecoderWebdatasetFactory

class TextFactory(DefaultDecoderWebdatasetFactory):
    __sample_type__ = TextSample
"""
LOADER = """
from pathlib import Path

def sample_loader(raw):
    Path(__file__).with_name("ran").touch()
    return {"__key__": raw["__key__"], "text": raw["txt"]}

def part_filter(part):
    return part == "txt"
"""
NAMED = {"sample_loader": "sample_loader.py:sample_loader", "part_filter": "sample_loader.py:part_filter"}

IN_FILE = dict.fromkeys(NAMED, "sample_loader.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset that has a sample_loader.py, and may name the factory of a package of the user."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "text_factory_of_user.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "package")
    data = tmp_path / "data"
    data.mkdir()
    captions(data)
    prepare_dataset(data)
    (data / ".nv-meta" / "sample_loader.py").write_text(LOADER)
    return data


def texts(folder: Path, arguments: dict[str, Any], **options: Any) -> list[str]:
    kind = {"__module__": "text_factory_of_user", "__class__": "TextFactory"}
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps({**kind, **arguments}))
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    return [sample.text for sample in get_val_dataset(folder, split_part="train", worker_config=config, **options)]


def test_naming_a_factory_is_one_permission(folder: Path) -> None:
    with pytest.raises(UntrustedCodeError, match=r"names the class .*TextFactory.*allow_imports=True"):
        texts(folder, {"field_map": {"text": "txt"}}, allow_code=True)
    assert texts(folder, {"field_map": {"text": "txt"}}, allow_imports=True)


@pytest.mark.parametrize("functions", [NAMED, IN_FILE], ids=["named", "in a file"])
def test_running_the_code_of_the_dataset_is_another(folder: Path, functions: dict[str, str]) -> None:
    with pytest.raises(UntrustedCodeError, match=r"wants to run sample_loader\(\).*allow_code=True"):
        texts(folder, functions, allow_imports=True)
    assert not (folder / ".nv-meta" / "ran").exists()
    assert texts(folder, functions, allow_imports=True, allow_code=True)
    assert (folder / ".nv-meta" / "ran").exists()
