from __future__ import annotations

import os
from pathlib import Path

import pytest

from energon_dali.errors import DatasetFormatError, StorageError
from energon_dali.shards import StoragePath
from energon_dali.shards.documents.content import (
    check_inner_path,
    check_inner_paths,
    excerpt,
    excerpt_names,
    printable,
    printable_lines,
    read_content,
)


def test_content_is_read_up_to_a_size(tmp_path: Path) -> None:
    path = StoragePath.of(tmp_path / "x")
    assert read_content(path) is None
    (tmp_path / "x").write_bytes(b"12345")
    assert read_content(path, 5) == b"12345"
    with pytest.raises(DatasetFormatError, match="x has 5 bytes, and files of its kind may have 4"):
        read_content(path, 4)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_never_ends_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    path = StoragePath.of(file)
    for read in (lambda: read_content(path), path.read_bytes, path.open):
        with pytest.raises(StorageError, match="is a pipe, a socket or a device"):
            read()


def test_links_in_circles_are_listed_once(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.tar").touch()
    (tmp_path / "other").symlink_to("inner")
    for name in ("first", "second", "inner/third"):
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to("itself")
    assert StoragePath.of(tmp_path).list_files() == ["inner/a.tar", "itself", "other/a.tar"]


def test_links_that_multiply_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_dali.shards.storage.local.MAX_LISTED_ENTRIES", 1000)
    for level in range(30):
        folder = tmp_path / f"level{level}"
        folder.mkdir()
        for link in ("a", "b"):
            (folder / link).symlink_to(tmp_path / f"level{level + 1}")
    with pytest.raises(StorageError, match="more than 1,000 files"):
        StoragePath.of(tmp_path / "level0").list_files()


@pytest.mark.parametrize(
    "name",
    ["", "..", "../x", "a/../../b", "a/..", "/etc/passwd", "a\0b", "s3://bucket/x", "%2e%2e/x", "a/%2E./b", "%2fetc"],
)
def test_paths_that_lead_out_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="leads out of the dataset"):
        check_inner_path(name)
    for names in ([name], ["a", name], [name, "a"]):
        with pytest.raises(ValueError, match="leads out of the dataset"):
            check_inner_paths(names)


@pytest.mark.parametrize(
    "name", ["a.tar", "a/b.tar", "..a/b..", "a..b", ".hidden/x", "~x", "a%20b", "100%.tar", "a//b"]
)
def test_paths_inside_are_taken(name: str) -> None:
    check_inner_path(name)
    check_inner_paths([name, "b"])


def test_an_excerpt_is_short_whatever_the_value() -> None:
    bomb: list[object] = ["lol"] * 10
    for _ in range(30):
        bomb = [bomb] * 10
    values = [bomb, "x" * 10**6, 10**4000, {str(i): "y" * 1000 for i in range(1000)}, b"z" * 10**6, object()]
    assert all(len(excerpt(value)) <= 300 for value in values)
    assert excerpt({"a": [1, "b"]}) == "{'a': [1, 'b']}"
    assert excerpt_names(["x" * 1000] * 1000).endswith("... and 990 more")
    assert len(excerpt_names(["x" * 1000] * 1000)) < 1100


def test_a_printable_text_has_no_control_characters() -> None:
    assert printable_lines("a\x1b[2J\nb") == "a\\x1b[2J\nb"
    assert printable("a\x1b[2Jb\nc\td\x9b\x7fé") == "a\\x1b[2Jb\\x0ac\td\\x9b\\x7fé"
