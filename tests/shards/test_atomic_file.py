"""Atomic writes: old content or new, no leftovers, and errors that name the file and the remedy."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from energon_dali.errors import StorageError
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import atomic_file, write_atomically
from tests.full_disk import largest_file


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "file"
    write_atomically(path, b"old")
    path.chmod(0o640)
    with atomic_file(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert files(path.parent) == {"file": b"new"}
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_content_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(file: int) -> None:
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))
        sync(file)

    def rename(old: Path, new: Path) -> None:
        done.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    write_atomically(tmp_path / "file", b"new")
    assert done[0].endswith(".tmp")
    assert done[1:] == ["rename", tmp_path.name]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail() -> None:
        with atomic_file(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert files(tmp_path) == {"file": b"old"}


def test_a_file_beyond_the_limit_is_named_with_the_remedy(tmp_path: Path) -> None:
    place = StoragePath.of(tmp_path / "out" / "file")
    place.write_bytes(b"old")
    big = tmp_path / "big"
    big.write_bytes(bytes(9000))
    with largest_file(4096), pytest.raises(StorageError, match=r"out/file: File too large.*ulimit -f"):
        place.write_bytes(bytes(9000))
    assert files(tmp_path / "out") == {"file": b"old"}
    with largest_file(4096), pytest.raises(StorageError, match=r"/copy: File too large.*ulimit -f"):
        StoragePath.of(big).copy_to(tmp_path / "copy")


def test_a_disk_that_is_full_only_when_it_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network file systems and delayed allocation report a full disk only in fsync."""
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"Could not write .*/file: No space left on device. Free some space"):
        write_atomically(path, b"new")
    assert files(tmp_path) == {"file": b"old"}


def test_folders_that_cannot_be_synced_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def fsync(file: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "file", b"new")
    assert files(tmp_path) == {"file": b"new"}


def test_links_are_followed_and_pipes_stay_pipes(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    write_atomically(tmp_path / "pipe", b"through")
    reader.join(60)
    assert read == [b"through"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_that_cannot_be_made_is_an_error_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/sub/name: Not a directory"):
        write_atomically(tmp_path / "file" / "sub" / "name", b"")
