"""Every public name of Energon 7.4.1's modules resolves under `megatron.energon`, or docs/from-energon.md says why not.

`tests/data/energon_7_4_1_modules.txt` holds what the source tree of Energon 7.4.1 defines, a module a line: names and
paths alone.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pickle
import re
from pathlib import Path

import pytest

import energon_dali
import energon_dali.compat

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "tests" / "data" / "energon_7_4_1_modules.txt").read_text().splitlines()
NAMES = {module: words.split() for module, _, words in (line.partition(":") for line in LINES)}
PAGE = (ROOT / "docs" / "from-energon.md").read_text()
ROWS = [row.split("|") for row in PAGE.partition("### What does not resolve")[2].partition("\n## ")[0].splitlines()]
GONE = {
    (f"megatron.energon{module}", name)
    for row in ROWS
    if len(row) > 3
    for module in re.findall(r"`([\w.]+)`", row[1])
    for name in re.findall(r"`(\w+)`", row[2])
}


def test_the_list_is_whole() -> None:
    assert len(NAMES) == 126
    assert sum(map(len, NAMES.values())) > 650


@pytest.mark.parametrize("module", sorted(NAMES))
def test_every_name_resolves_or_is_explained(module: str) -> None:
    found = importlib.import_module(module)
    assert found.__name__ == module
    for name in NAMES[module]:
        if (module, name) in GONE:
            with pytest.raises(AttributeError, match=r"from-energon\.md"):
                getattr(found, name)
        else:
            getattr(found, name)
    namespace: dict[str, object] = {}
    exec(f"from {module} import *", namespace)
    assert set(NAMES[module]) - {name for gone, name in GONE if gone == module} - namespace.keys() <= {
        name for name in NAMES[module] if re.fullmatch(r"logger|[BFPTV](_[a-z_]+)?|T[A-Z]\w+", name)
    }


def test_the_table_names_nothing_that_is_here() -> None:
    known = {(module, name) for module, names in NAMES.items() for name in names}
    here = known - GONE
    assert len(here) > 500
    for module in NAMES:
        for name in importlib.import_module(module).__all__:
            assert (module, name) not in GONE


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("flavors.webdataset", "VideoData"),
        ("flavors.webdataset", "MAIN_FOLDER_NAME"),
        ("task_encoder.base", "WorkerConfig"),
        ("flavors.base_dataset", "FlexState"),
        ("epathlib", "EPath"),
    ],
)
def test_names_of_older_versions_and_of_imports_resolve(module: str, name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from megatron.energon.{module} import {name}", namespace)
    assert namespace[name] is not None


def test_names_are_those_of_this_package() -> None:
    from megatron.energon import Sample, SavableDataset  # type: ignore[attr-defined]

    assert Sample is energon_dali.Sample
    assert SavableDataset is energon_dali.SavableDataset
    assert pickle.loads(pickle.dumps(Sample)) is Sample


def test_the_version_is_energons() -> None:
    assert importlib.metadata.version("megatron-energon") == "7.4.1"
    assert importlib.metadata.distribution("megatron_energon").metadata["Name"] == "megatron-energon"
    assert "megatron-energon" in {found.metadata["Name"] for found in importlib.metadata.distributions()}
    assert importlib.metadata.version("numpy")


def test_unknown_modules_and_names_fail_as_in_python() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"megatron\.energon\.nowhere"):
        importlib.import_module("megatron.energon.nowhere")
    root = importlib.import_module("megatron.energon")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = root.nothing
    with pytest.raises(AttributeError, match="private names"):
        _ = root._secret


def test_names_that_only_energon_has_at_its_root_are_answered() -> None:
    missing = sorted(set(NAMES["megatron.energon"]) - set(energon_dali.__all__))
    assert "DefaultDecoderWebdatasetFactory" in missing
    for name in missing:
        with pytest.raises(ImportError, match=rf"use `from megatron\.energon import {name}`.*to get_train_dataset"):
            exec(f"from energon_dali import {name}", {})
        assert not hasattr(energon_dali, name)
