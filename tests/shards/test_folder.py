"""The content of `.nv-meta`: shards, splits, excludes and sample types, and the errors for wrong files."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.errors import ConfigError, DatasetFormatError, UntrustedCodeError
from energon_dali.shards import WebdatasetFolder, is_crude, prepare_dataset, resolve_sample_loader, sample_type_name
from energon_dali.shards.documents.braces import collapse_names
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.sample_loader import DatasetFunction
from energon_dali.shards.meta.splits import pack_split, read_split
from energon_dali.shards.storage import StoragePath
from tests.shards.tars import captions, write_tar


@pytest.fixture
def root(tmp_path: Path) -> Path:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    return tmp_path


def write_meta(root: Path, name: str, value: object) -> None:
    text = value if isinstance(value, str) else json.dumps(value) if name.endswith(".json") else yaml.safe_dump(value)
    (root / ".nv-meta" / name).write_text(text)


def ranges(root: Path, part: str, **options: Any) -> list[tuple[int, int, int]]:
    slices = WebdatasetFolder(str(root), **options).split_ranges(part)
    return list(zip(slices.shard.tolist(), slices.start.tolist(), slices.stop.tolist(), strict=True))


def test_split_keeps_the_order_of_the_file_and_expands_braces(root: Path) -> None:
    write_meta(root, "split.yaml", {"split_parts": {"train": ["shard_2.tar", "shard_{0..1}.tar"], "val": []}})
    assert ranges(root, "train") == [(2, 0, 4), (0, 0, 4), (1, 0, 4)]
    assert ranges(root, "val") == []


def test_excluded_shards_and_samples_are_cut_out(root: Path) -> None:
    exclude = ["shard_0.tar", "shard_1.tar/s1_{1..2}", "shard_2.tar/s2_0", "shard_2.tar/s2_3", "shard_9.tar/none"]
    write_meta(root, "split.yaml", {"split_parts": {"train": ["shard_{0..2}.tar"]}, "exclude": exclude})
    assert ranges(root, "train") == [(1, 0, 1), (1, 3, 4), (2, 1, 3)]


def test_a_folder_named_like_a_shard(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar/y.tar", {"deep/k.jpg": b"", "l.jpg": b""})
    prepare_dataset(tmp_path)
    write_meta(tmp_path, "split.yaml", {"split_parts": {"t": ["x.tar/y.tar"]}, "exclude": ["x.tar/y.tar/deep/k"]})
    assert ranges(tmp_path, "t") == [(0, 1, 2)]


def test_json_is_taken_where_there_is_no_yaml_and_another_name_where_it_is_given(root: Path) -> None:
    (root / ".nv-meta" / "split.yaml").unlink()
    write_meta(root, "split.json", {"split_parts": {"train": ["shard_1.tar"]}})
    write_meta(root, "other.yaml", {"split_parts": {"train": ["shard_2.tar"]}})
    assert ranges(root, "train") == [(1, 0, 4)]
    assert ranges(root, "train", split_config="other.yaml") == [(2, 0, 4)]


def test_older_info_file_is_read(root: Path) -> None:
    counts = json.loads((root / ".nv-meta" / ".info.json").read_text())
    (root / ".nv-meta" / ".info.json").unlink()
    write_meta(root, ".info.yaml", {"shard_counts": counts["shard_counts"]})
    assert WebdatasetFolder(str(root)).shard_counts == [4, 4, 4]


def test_folder_is_picklable(root: Path) -> None:
    folder = WebdatasetFolder(str(root))
    folder.split_ranges("train")
    copy = pickle.loads(pickle.dumps(folder))
    assert copy.uuid == folder.uuid != ""
    assert copy.split_ranges("train") == folder.split_ranges("train")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (".info.json", "{", "cannot be parsed"),
        (".info.json", "[]", "holds list"),
        (".info.json", {"shard_counts": {"a.tar": -1}}, "no `shard_counts`"),
        ("split.yaml", "a: [", "cannot be parsed"),
        ("split.yaml", {"split_parts": []}, "should hold `split_parts"),
        ("split.yaml", {"split_parts": {"train": [3]}}, "should hold `split_parts"),
        ("split.yaml", {"split_parts": {"train": ["nowhere.tar"]}}, "which is not in the index"),
        ("split.yaml", {"split_parts": {"train": ["a{1"]}}, "braces do not match"),
        ("split.yaml", {"split_parts": {"train": []}, "excludes": []}, "allowed are exclude, split_parts"),
    ],
)
def test_a_wrong_file_is_named(root: Path, name: str, content: object, message: str) -> None:
    write_meta(root, name, content)
    with pytest.raises(DatasetFormatError) as caught:
        WebdatasetFolder(str(root)).split_ranges("train")
    assert name in str(caught.value)
    assert message in str(caught.value)


def test_missing_files_say_what_to_do(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetFormatError, match=r"is not a folder"):
        WebdatasetFolder(str(tmp_path / "nowhere"))
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(DatasetFormatError, match=r"photo.jpg is a file, and neither.*Give one of these, or the f"):
        WebdatasetFolder(str(tmp_path / "photo.jpg"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetFormatError, match=r"is not prepared.*energon-dali prepare"):
        WebdatasetFolder(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match=r"no split part 'trian'; it has 'train', 'val', 'test'"):
        ranges(root, "trian")
    with pytest.raises(DatasetFormatError, match=r"dataset.yaml is missing.*--sample-type"):
        _ = WebdatasetFolder(str(root)).dataset_config


# --- dataset.yaml ----------------------------------------------------------------------------------------------------

CAPTIONING = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def config_of(root: Path, content: object, **options: Any) -> dict[str, Any]:
    write_meta(root, "dataset.yaml", content)
    return WebdatasetFolder(str(root), **options).dataset_config


def test_field_map(root: Path) -> None:
    config = config_of(root, {"sample_type": CAPTIONING, "field_map": {"image": "jpg,png", "caption": "json[a][0]"}})
    assert config["field_map"] == {"image": "jpg,png", "caption": "json[a][0]"}
    assert sample_type_name(config) == "CaptioningSample"
    assert not is_crude(config)


def test_crude_with_subflavors(root: Path) -> None:
    content = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset", "subflavors": {"kind": "web"}}
    config = config_of(root, content)
    assert is_crude(config)
    assert sample_type_name(config) == "CrudeSample"
    assert config["subflavors"] == {"kind": "web"}


def test_the_split_that_dataset_yaml_names_is_taken_and_wins_as_in_energon(root: Path) -> None:
    names = WebdatasetFolder(str(root)).shard_names
    write_meta(root, "other.yaml", {"split_parts": {"train": names[-1:]}})
    for options in ({}, {"split_config": "split.yaml"}):
        write_meta(root, "dataset.yaml", {**CRUDE, "split_config": "other.yaml"})
        assert WebdatasetFolder(str(root), **options).split.split_parts == {"train": tuple(names[-1:])}
        write_meta(root, "dataset.yaml", CRUDE)
        assert WebdatasetFolder(str(root), **options).split.split_parts != {"train": tuple(names[-1:])}


def test_older_factory_means_its_sample_type(root: Path) -> None:
    content = {"__module__": "megatron.energon", "__class__": "VQAWebdataset", "field_map": {"image": "jpg"}}
    assert sample_type_name(config_of(root, content)) == "VQASample"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"field_map": {"image": "jpg"}}, "no `sample_type"),
        ({"sample_type": CAPTIONING}, "either a field_map"),
        ({"sample_type": CAPTIONING, "field_map": {}, "sample_loader": "a.py:b"}, "either a field_map"),
        ({"sample_type": CAPTIONING, "field_map": ["jpg"]}, "not a mapping of field to part"),
        ({"sample_type": CAPTIONING, "sample_loader": "a.py:b"}, "no part_filter"),
        ({"sample_type": CAPTIONING, "sample_loader": "a.py:b", "part_filter": None}, "no part_filter"),
        ({"sample_type": CAPTIONING, "field_map": {"image": "jpg"}, "subflavors": "x"}, "should be a mapping"),
        ({"sample_type": CAPTIONING, "field_map": {"image": "jpg"}, "subflavor": "x"}, "has subflavor; allowed are"),
        ({**CRUDE, "sample_loader": "a.py:b"}, "has sample_loader; allowed are"),
        ({"__class__": "DefaultDecoderWebdatasetFactory", "field_map": {"image": "jpg"}}, "no `sample_type"),
        ({"__class__": "DefaultGenericWebdatasetFactory", "field_map": {"image": "jpg"}}, "no `sample_type"),
        ({**CRUDE, "split_config": 2}, "Write the name of a file"),
    ],
)
def test_wrong_dataset_config_is_named(root: Path, content: object, message: str) -> None:
    with pytest.raises(DatasetFormatError, match=message) as caught:
        config_of(root, content)
    assert "dataset.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        {"__module__": "os", "__class__": "system"},
        {"__module__": "megatron.energon", "__class__": "Surprise"},
        {"sample_type": {"__module__": "my.code", "__class__": "CaptioningSample"}, "field_map": {"image": "jpg"}},
        {"sample_type": {"__module__": "megatron.energon", "__class__": "popen"}, "field_map": {"image": "jpg"}},
        {
            "__class__": "DefaultDecoderWebdatasetFactory",
            "sample_type": {"__module__": "os", "__class__": "popen"},
            "field_map": {"image": "jpg"},
        },
        {"__module__": "my.code", "__class__": "CrudeWebdataset"},
    ],
)
def test_classes_of_other_packages_are_imported_only_if_allowed(root: Path, content: object) -> None:
    for options in ({}, {"allow_code": True}):
        with pytest.raises(UntrustedCodeError, match="allow_imports=True"):
            config_of(root, content, **options)
    assert config_of(root, content, allow_imports=True)


def test_a_factory_of_the_user_is_not_ours_of_the_same_name(root: Path) -> None:
    config = config_of(root, {"__module__": "my.code", "__class__": "CrudeWebdataset", "own": 1}, allow_imports=True)
    assert not is_crude(config)
    assert sample_type_name(config) == "CrudeWebdataset"
    content = {"__module__": "my.code", "__class__": "VQAWebdataset", "own": 1}
    assert config_of(root, content, allow_imports=True) == content
    content = {"__module__": "megatron.energon.flavors.crude", "__class__": "CrudeWebdataset"}
    assert is_crude(config_of(root, content))


def test_yaml_makes_no_objects(root: Path) -> None:
    with pytest.raises(DatasetFormatError, match="asks for more than plain values"):
        config_of(root, "a: !!python/object/apply:os.getcwd []")


LOADER = """
def load(raw):
    return {"caption": raw["txt"] + "!"}

def keep(part):
    return part == "txt"
"""


def test_sample_loader_runs_only_if_allowed(root: Path) -> None:
    (root / ".nv-meta" / "sample_loader.py").write_text("open('/nonexistent/x', 'w')")
    content = {
        "sample_type": CAPTIONING,
        "sample_loader": "sample_loader.py:load",
        "part_filter": "sample_loader.py:keep",
    }
    write_meta(root, "dataset.yaml", content)
    for options in ({}, {"allow_imports": True}):
        with pytest.raises(UntrustedCodeError, match="allow_code=True"):
            resolve_sample_loader(WebdatasetFolder(str(root), **options))
    with pytest.raises(DatasetFormatError, match="cannot be run: FileNotFoundError"):
        resolve_sample_loader(WebdatasetFolder(str(root), allow_code=True))
    (root / ".nv-meta" / "sample_loader.py").write_text(LOADER)
    found = resolve_sample_loader(WebdatasetFolder(str(root), allow_code=True))
    assert found is not None
    loader, keep = pickle.loads(pickle.dumps(found))
    assert loader({"txt": "a"}) == {"caption": "a!"}
    assert keep("txt")
    assert not keep("jpg")


DATACLASS = """
from dataclasses import dataclass, fields
from typing import ClassVar

@dataclass
class Box:
    kind: ClassVar[str] = "box"
    width: int = 0

def load(raw):
    return {"caption": str([field.type for field in fields(Box)])}
"""


@pytest.mark.parametrize(
    ("first_line", "types"), [("", "[<class 'int'>]"), ("from __future__ import annotations", "['int']")]
)
def test_a_file_of_the_dataset_may_have_dataclasses(first_line: str, types: str) -> None:
    before = set(sys.modules)
    load = DatasetFunction(first_line + DATACLASS, "load", "sample_loader.py")
    with pytest.raises(DatasetFormatError, match="cannot be run: ZeroDivisionError"):
        DatasetFunction("1 / 0", "load", "sample_loader.py")
    assert load({}) == {"caption": types}
    assert not [name for name in set(sys.modules) - before if "sample_loader" in name]


def test_part_filter_may_be_a_list(root: Path) -> None:
    (root / ".nv-meta" / "sample_loader.py").write_text(LOADER)
    content = {"sample_type": CAPTIONING, "sample_loader": "sample_loader.py:load", "part_filter": ["txt"]}
    write_meta(root, "dataset.yaml", content)
    found = resolve_sample_loader(WebdatasetFolder(str(root), allow_code=True))
    assert found is not None
    assert found[1]("txt")
    assert not found[1]("jpg")


@pytest.mark.parametrize("reference", ["../../x.py:load", "/etc/x.py:load", "sample_loader.py", "x.py:missing"])
def test_loader_stays_in_the_folder(root: Path, reference: str) -> None:
    (root / ".nv-meta" / "x.py").write_text(LOADER)
    write_meta(root, "dataset.yaml", {"sample_type": CAPTIONING, "sample_loader": reference, "part_filter": []})
    with pytest.raises(DatasetFormatError):
        resolve_sample_loader(WebdatasetFolder(str(root), allow_code=True))


# --- collapsed names -------------------------------------------------------------------------------------------------


def test_runs_become_braces() -> None:
    assert collapse_names([f"a/s_{n:03d}.tar" for n in range(8, 12)]) == ["a/s_{008..011}.tar"]
    assert collapse_names(["s_8.tar", "s_9.tar", "s_10.tar"]) == ["s_{8..10}.tar"]
    assert collapse_names(["b.tar", "a.tar"]) == ["b.tar", "a.tar"]


@settings(max_examples=150)
@given(st.lists(st.text(st.sampled_from("a0129_{},\\.é"), min_size=1, max_size=7), max_size=12))
def test_collapsed_names_expand_to_themselves(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    root = StoragePath.of(str(tmp_path_factory.getbasetemp()))
    (root / META / "any.yaml").write_bytes(pack_split("any.yaml", {"train": collapse_names(names)}))
    assert list(read_split(root, "any.yaml").split_parts["train"]) == names
