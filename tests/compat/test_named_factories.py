"""A factory that dataset.yaml names is imported with `allow_imports`, and runs the dataset's code with `allow_code`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from energon_dali import ConfigError, DatasetFormatError, UntrustedCodeError, WorkerConfig, get_val_dataset
from energon_dali.compat.documents import ModuleLoader
from energon_dali.shards import prepare_dataset
from tests.shards.tars import captions

MODULE = """
import energon_dali
from energon_dali import edataclass
from energon_dali.compat.factories import DefaultDecoderWebdatasetFactory, StandardWebdatasetFactory

@edataclass
class TextSample(energon_dali.TextSample):
    of_user: bool = True

class TextFactory(DefaultDecoderWebdatasetFactory):
    __sample_type__ = energon_dali.TextSample

class TextWebdataset(TextFactory):
    def load_sample(self, raw):
        return energon_dali.TextSample.derive_from(super().load_sample(raw), text="of the user")

class OwnStandardFactory(StandardWebdatasetFactory):
    pass

def load_text(parts):
    return {"text": parts["txt"].upper()}
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


def of_user(name: str, kind: str = "__class__") -> dict[str, str]:
    return {"__module__": "text_factory_of_user", kind: name}


def samples(folder: Path, config: dict[str, Any], **options: Any) -> list[Any]:
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(config))
    worker_config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    return list(get_val_dataset(folder, split_part="train", worker_config=worker_config, **options))


def texts(folder: Path, arguments: dict[str, Any], **options: Any) -> list[str]:
    return [sample.text for sample in samples(folder, {**of_user("TextFactory"), **arguments}, **options)]


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


def test_a_class_with_the_name_of_one_of_ours_is_the_users(folder: Path) -> None:
    fields = {"field_map": {"text": "txt"}}
    for config in ({**of_user("TextWebdataset"), **fields}, {"sample_type": of_user("TextSample"), **fields}):
        with pytest.raises(UntrustedCodeError, match="allow_imports=True"):
            samples(folder, config)
    assert texts(folder, {**of_user("TextWebdataset"), **fields}, allow_imports=True)[0] == "of the user"
    assert samples(folder, {"sample_type": of_user("TextSample"), **fields}, allow_imports=True)[0].of_user


def test_mappings_in_the_arguments_of_a_factory_become_what_they_name(folder: Path) -> None:
    config = {
        **of_user("OwnStandardFactory"),
        "sample_type": {"__module__": "energon_dali", "__class__": "TextSample"},
        "sample_loader": of_user("load_text", "__function__"),
        "part_filter": ["txt"],
    }
    expected = [text.upper() for text in texts(folder, {"field_map": {"text": "txt"}}, allow_imports=True)]
    assert [sample.text for sample in samples(folder, config, allow_imports=True)] == expected
    config["sample_type"] = of_user("Missing")
    with pytest.raises(
        DatasetFormatError, match=r"dataset.yaml of .* names text_factory_of_user\.Missing, which cannot be imported"
    ):
        samples(folder, config, allow_imports=True)


def test_a_field_map_does_not_replace_a_factory(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"field_map=\{'text': 'txt'\} .*TextFactory.*also give sample_type="):
        texts(folder, {}, allow_imports=True, field_map={"text": "txt"})


def test_annotations_in_a_file_that_is_loaded_by_its_path_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def function(number: int): ...")
    assert ModuleLoader().get_function("own.py:function", relative_path=tmp_path).__annotations__ == {"number": int}
