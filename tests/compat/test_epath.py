"""EPath: names, files, globs, dss:// paths; local and on a web of stores only by name."""

from __future__ import annotations

import os
import pickle
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from energon_dali.compat.epath import EPath
from energon_dali.errors import ConfigError, StorageError
from energon_dali.shards import StoragePath


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = EPath("a/../b/./c.tar")
    assert str(path) == path.url == str(tmp_path / "b" / "c.tar") == str(EPath(tmp_path) / "b/c.tar")
    assert (path.name, path.parent.name, path.with_suffix(".idx").name) == ("c.tar", "b", "c.tar".replace("tar", "idx"))
    assert path / "/d" == EPath("/d")
    assert path / EPath("msc://x/y") == EPath("msc://x/y")
    assert path.relative_to(EPath(tmp_path)) == "b/c.tar"
    assert path.is_local()
    assert path.local_path() == tmp_path / "b" / "c.tar"
    assert EPath(f"file://{tmp_path}/b/c.tar") == path
    assert pickle.loads(pickle.dumps(path)) == path
    assert len({path, EPath(path)}) == 1
    assert sorted([EPath("/b"), EPath("/a")])[0] == EPath("/a")
    with pytest.raises(ConfigError, match="leads above its root"):
        EPath("/../../x")


@pytest.mark.parametrize("url", ["msc://profile/a/b.tar", "s3://bucket/a/b.tar"])
def test_urls(url: str) -> None:
    path = EPath(url)
    assert (path.url, path.name, path.parent.url) == (url, "b.tar", url.removesuffix("/b.tar"))
    assert (path.parent / ".." / "c").url == url.removesuffix("a/b.tar") + "c"
    assert not path.is_local()
    assert pickle.loads(pickle.dumps(path)) == path
    with pytest.raises(ValueError, match="not in the local file system"):
        path.local_path()
    with pytest.raises(ConfigError, match="different stores"):
        path.relative_to(EPath("/a"))
    with pytest.raises(StorageError, match="'nfs', which is not known"):
        EPath("nfs://a/b")


def test_files(tmp_path: Path) -> None:
    folder = EPath(tmp_path) / "new"
    (folder / "deep" / "a.txt").write_text("ä")
    (folder / "b.bin").write_bytes(b"123")
    with (folder / "c.txt").open("w") as file:
        file.write("c")
    with (folder / "b.bin").open("rb") as binary:
        assert binary.read() == b"123"
    assert (folder / "deep" / "a.txt").read_text() == "ä"
    assert [path.name for path in folder.glob("*.txt")] == ["c.txt"]
    assert [path.relative_to(folder) for path in folder.glob("**/*.txt")] == ["c.txt", "deep/a.txt"]
    assert {path.name for path in folder.walk()} == {"a.txt", "b.bin", "c.txt"}
    assert folder.is_dir()
    assert not folder.is_file()
    assert ((folder / "b.bin").size(), (folder / "b.bin").stat().type, folder.stat().type) == (3, "file", "directory")
    folder.copy(EPath(tmp_path) / "copy")
    (EPath(tmp_path) / "copy" / "b.bin").move(EPath(tmp_path) / "moved.bin")
    assert (EPath(tmp_path) / "moved.bin").read_bytes() == b"123"
    assert not (EPath(tmp_path) / "copy" / "b.bin").is_file()
    with pytest.raises(FileNotFoundError):
        (folder / "nothing").unlink()
    with pytest.raises(ConfigError, match="mode='a'"):
        (folder / "b.bin").open("a")  # type: ignore[call-overload]


@pytest.mark.parametrize(("mode", "content"), [("w", "half"), ("wb", b"half")])
def test_a_remote_file_that_is_not_written_to_its_end_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, mode: Any, content: Any
) -> None:
    written: list[str] = []
    monkeypatch.setattr(StoragePath, "write_file", lambda path, local: written.append(Path(local).read_text()))
    path = EPath("s3://bucket/a.json")

    def write_half() -> None:
        with path.open(mode) as file:
            file.write(content)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert written == []
    with path.open(mode) as file:
        file.write(content)
    assert written == ["half"]


def test_globs_follow_links_to_folders_as_those_of_energon(tmp_path: Path) -> None:
    (tmp_path / "other" / "deep").mkdir(parents=True)
    for name in ("other/a.txt", "other/deep/b.txt", ".hidden.txt", "c.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "top").mkdir()
    for name, target in {"link": "other", "la.txt": "c.txt", "broken.txt": "nowhere", "around": "."}.items():
        (tmp_path / "top" / name).symlink_to(tmp_path / target)
    top = EPath(tmp_path) / "top"
    found = {
        pattern: [path.relative_to(top) for path in top.glob(pattern)] for pattern in ("**", "**/*.txt", "*", "link/*")
    }
    through = [f"around/{name}" for name in ("c.txt", "other/a.txt", "other/deep/b.txt")]
    below = ["la.txt", "link/a.txt", "link/deep/b.txt"]
    assert found == {
        "**": [*through, *below],  # "around" leads to itself: what is below it is found once
        "**/*.txt": [*through, *below],
        "*": ["la.txt"],
        "link/*": ["link/a.txt"],
    }
    assert [path.name for path in EPath(tmp_path).glob(".h*")] == [".hidden.txt"]
    assert ".hidden.txt" in [path.name for path in EPath(tmp_path).glob("**/.h*")]


def test_the_profiles_of_local_files_are_local_paths(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for profile in ("default", "__filesystem__"):
        path = EPath(f"msc://{profile}{tmp_path}/a.txt")
        assert (str(path), path.read_text(), path == EPath(tmp_path) / "a.txt") == (str(tmp_path / "a.txt"), "x", True)


def test_the_time_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    os.utime(tmp_path / "a.txt", (0, 1e9))
    assert EPath(tmp_path / "a.txt").stat().last_modified == datetime(2001, 9, 9, 1, 46, 40, tzinfo=timezone.utc)


def test_paths_of_a_dataset_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVDATASET_CACHE_DIR", str(tmp_path))
    (tmp_path / "charts" / "v1").mkdir(parents=True)
    (tmp_path / "charts" / "v1" / "a.txt").write_text("x")
    path = EPath("dss://charts@v1/a.txt")
    assert (path.url, path.display_name, path.name) == ("dss://charts@v1/a.txt", "charts@v1", "a.txt")
    assert path.read_text() == "x"
    assert [found.url for found in path.parent.glob("*")] == ["dss://charts@v1/a.txt"]
    assert StoragePath.of("dss://charts@v1").url == str(tmp_path / "charts" / "v1")
    for wrong in ("dss://charts", "dss://@v1/a", "dss://charts@v1/../../x", "dss://..@v1/x"):
        with pytest.raises(StorageError, match="dss://NAME@VERSION"):
            StoragePath.of(wrong)
    monkeypatch.delenv("NVDATASET_CACHE_DIR")
    with pytest.raises(StorageError, match="NVDATASET_CACHE_DIR"):
        StoragePath.of("dss://charts@v1")
