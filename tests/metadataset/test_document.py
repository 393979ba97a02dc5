from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.errors import DatasetFormatError
from energon_dali.metadataset import document
from energon_dali.metadataset.document import read_document
from energon_dali.shards import StoragePath
from energon_dali.shards.documents import yaml_text


def read(folder: Path, text: str | bytes) -> document.Document:
    file = folder / "mix.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_document(StoragePath.of(file))


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        # As megatron-energon 7.4.1 (rapidyaml) reads them; the comments give the values of YAML 1.1.
        ("yes", True),
        ("No", False),
        ("TRUE", True),
        ("~", None),
        ("Null", None),
        ("on", "on"),  # True
        ("010", 10),  # 8
        ("1e3", 1000.0),  # text
        ("0x1f", "0x1f"),  # 31
        ("1:30", "1:30"),  # 90
        ("2024-01-01", "2024-01-01"),  # a date
        (".inf", ".inf"),
        ("nan", "nan"),
        (".5", 0.5),
        ("+5", 5),
        ("1_000", 1000),
        ("5 # five", 5),
        ("'yes'", "yes"),
        ('"5"', "5"),
        ("1.0.0", "1.0.0"),
        ("!!str 5", "5"),
        ("", None),
        ("50%", "50%"),
    ],
)
def test_scalars_mean_what_they_mean_to_energon(scalar: str, value: object, tmp_path: Path) -> None:
    found = read(tmp_path, f"a: {scalar}\n").value["a"]
    assert found == value
    assert type(found) is type(value)


def test_keys_are_text_and_aliases_are_what_they_name(tmp_path: Path) -> None:
    read_value = read(tmp_path, "yes: &x {1: a}\nother: [*x, *x]\n").value
    assert read_value == {"yes": {"1": "a"}, "other": [{"1": "a"}, {"1": "a"}]}


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(st.characters(max_codepoint=0x24F), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(value=st.dictionaries(st.text("xyz", min_size=1, max_size=3), values, max_size=4))
def test_json_is_read_as_json_reads_it_and_every_line_is_known(
    value: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = json.dumps(value, indent=1)
    found = read(tmp_path_factory.getbasetemp(), text)
    assert found.value == value
    for way, line in found.lines.items():
        inner: Any = value
        for step in way:
            inner = inner[step]
        written = text.splitlines()[line - 1]
        start = json.dumps(inner, indent=1).splitlines()[0]
        assert start.rstrip(",") in written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", "cannot be parsed: .*line 2"),
        ("a: 1\nb: 1\na: 2\n", "mix.yaml:3: the key 'a' is used a second time"),
        ("a: 1\n---\nb: 1\n", "mix.yaml:2: a second document"),
        ("a: !!python/object/apply:os.system [id]\n", "mix.yaml:1: the tag .*os.system asks for more"),
        ("a: !secret 1\n", "the tag !secret"),
        ("a: &x [1, *x]\n", r"mix.yaml:1: \*x names nothing, or what it is itself a part of"),
        ("a: *y\n", r"\*y names nothing"),
        ("? [1, 2]\n: 3\n", "mix.yaml:1: a key is not text"),
        ("a: &x b\n*x : 1\n", "mix.yaml:2: .*is used as a key, which has to be text"),
        (b"a: \xff\xfe\n", "cannot be parsed"),
        ("a: '\x00'\n", "cannot be parsed"),
        ("{a: " * 50_000, f"nested in more than {yaml_text.MAX_DEPTH} levels"),
        ("a: " + "[" * 100_000, f"nested in more than {yaml_text.MAX_DEPTH} levels"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_line(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetFormatError, match=message):
        read(tmp_path, text)


def test_a_billion_laughs_end_before_they_begin(tmp_path: Path) -> None:
    lines = ["l0: &l0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(DatasetFormatError, match=r"mix.yaml:6: the file holds more than 1,000,000 values"):
        read(tmp_path, "\n".join(lines))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetFormatError, match=r"nowhere\.yaml is missing"):
        read_document(StoragePath.of(tmp_path / "nowhere.yaml"))
