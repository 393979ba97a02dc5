"""`energon-dali mount` shows a dataset as a folder. FUSE is only needed by the last test."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from energon_dali.cli import mount as fuse_module
from energon_dali.cli.dataset_files import HEAD_BYTES, DatasetFiles
from energon_dali.cli.main import main
from energon_dali.cli.mount import load_fuse
from energon_dali.errors import ConfigError
from energon_dali.shards import WebdatasetFolder
from energon_dali.shards.prepare.dataset import prepare_dataset

LARGE = bytes(range(256)) * (HEAD_BYTES // 256 + 3)
CONTENTS = {
    "parts/a.tar": {"k0.txt": b"zero", "k0.bin": LARGE, "k1.txt": b"", "k1.seg.png": b"one"},
    "b.tar": {"deep/er/k2.txt": b"two", "\u00e4\u00f6.txt": b"umlauts", "../up.txt": b"hidden"},
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for name, files in CONTENTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / name, "w") as tar:
            for member_name, content in files.items():
                member = tarfile.TarInfo(member_name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    prepare_dataset(str(folder))
    return folder


def opened(data: Path, **options: Any) -> DatasetFiles:
    return DatasetFiles(WebdatasetFolder(str(data)), **options)


def content(files: DatasetFiles, path: str, step: int = 100_003) -> bytes:
    number = files.open(path)
    pieces = []
    while piece := files.read(path, step, sum(map(len, pieces)), number):
        pieces.append(piece)
    files.release(path, number)
    return b"".join(pieces)


def refuses(number: int, call: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        call(*arguments)
    assert caught.value.errno == number


def test_shards_are_folders_and_parts_are_files(data: Path) -> None:
    files = opened(data)
    assert sorted(files.readdir("/")) == [".", "..", "b.tar", "parts"]
    assert files.readdir("/parts") == [".", "..", "a.tar"]
    assert sorted(files.readdir("/parts/a.tar")) == [".", "..", *sorted(CONTENTS["parts/a.tar"])]
    assert sorted(files.readdir("/b.tar")) == [".", "..", "deep", "\u00e4\u00f6.txt"]
    assert files.readdir("/b.tar/deep/er") == [".", "..", "k2.txt"]
    for shard, members in CONTENTS.items():
        for name, expected in members.items():
            if not name.startswith(".."):
                path = f"/{shard}/{name}"
                attributes = files.getattr(path)
                assert (attributes["st_mode"], attributes["st_size"]) == (stat.S_IFREG | 0o444, len(expected))
                assert content(files, path) == expected
    assert files.getattr("/parts/a.tar")["st_mode"] == stat.S_IFDIR | 0o555
    assert files.statfs("/")["f_blocks"] * 512 == sum((data / name).stat().st_size for name in CONTENTS)
    files.destroy("/")


def test_samples_may_be_folders(data: Path) -> None:
    files = opened(data, sample_folders=True)
    assert sorted(files.readdir("/parts/a.tar")) == [".", "..", "k0", "k1"]
    assert sorted(files.readdir("/parts/a.tar/k1")) == [".", "..", "seg.png", "txt"]
    assert content(files, "/b.tar/deep/er/k2/txt") == b"two"


def test_any_range_of_a_large_file(data: Path) -> None:
    files, path = opened(data), "/parts/a.tar/k0.bin"
    number = files.open(path)
    for start, size in ((0, 10), (HEAD_BYTES - 5, 10), (HEAD_BYTES + 1, 7), (len(LARGE) - 3, 100), (len(LARGE) + 9, 5)):
        assert files.read(path, size, start, number) == LARGE[start : start + size]


def test_errors_have_the_number_that_programs_expect(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, path = opened(data), "/parts/a.tar/k0.txt"
    for missing in ("/nothing", "/parts/a.tar/k9.txt", f"{path}/below", "/b.tar/../up.txt"):
        refuses(errno.ENOENT, files.getattr, missing)
    refuses(errno.ENOENT, files.readdir, "/nothing")
    refuses(errno.ENOTDIR, files.readdir, path)
    refuses(errno.EISDIR, files.open, "/parts")
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
        refuses(errno.EROFS, files.open, path, flags)
    number = files.open(path)
    files.release(path, number)
    refuses(errno.EBADF, files.read, path, 1, 0, number)
    large = files.open("/parts/a.tar/k0.bin")
    os.truncate(data / "parts" / "a.tar", 2048)
    refuses(errno.EIO, files.read, "/parts/a.tar/k0.bin", 100, HEAD_BYTES, large)
    refuses(errno.EIO, files.open, "/parts/a.tar/k1.seg.png")
    (data / "b.tar").write_bytes(bytes((data / "b.tar").stat().st_size))
    refuses(errno.EIO, files.open, "/b.tar/deep/er/k2.txt")
    assert "changed since it was indexed" in caplog.text


def test_a_dataset_without_an_index_of_parts_is_scanned_where_that_is_allowed(data: Path) -> None:
    for name in ("extents.bin", "index.sqlite"):
        (data / ".nv-meta" / name).unlink()
    with pytest.raises(ConfigError, match="--allow-slow"):
        opened(data)
    assert content(opened(data, allow_slow=True), "/parts/a.tar/k1.seg.png") == b"one"


def mount(*words: object) -> str:
    done = CliRunner().invoke(main, ["mount", *map(str, words)])
    assert done.exit_code == 1, done.output
    return done.output


def test_what_is_missing_is_said(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(error: Exception | None) -> None:
        def found(name: str) -> ModuleType:
            if error is not None:
                raise error
            return ModuleType(name)

        monkeypatch.setattr(fuse_module, "import_module", found)

    load(ModuleNotFoundError("No module named 'mfusepy'"))
    assert 'pip install "energon-dali[mount]"' in mount(data, tmp_path / "m")
    load(OSError("Unable to find libfuse"))
    assert "apt install fuse3" in mount(data, tmp_path / "m")
    load(None)
    monkeypatch.setattr(fuse_module, "DEVICE", tmp_path / "none")
    assert "modprobe fuse" in mount(data, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_folder_that_cannot_be_mounted_at_and_paths_without_shards(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("energon_dali.cli.mount.load_fuse", lambda: ModuleType("mfusepy"))
    assert "would hide" in mount(data, tmp_path)
    assert "is not empty" in mount(data, data / "parts")
    assert "Cannot mount at" in mount(data, data / "b.tar")
    assert "has no shards to show" in mount(tmp_path / "a.jsonl", tmp_path / "m")
    assert "is not a folder" in mount(tmp_path / "nothing", tmp_path / "m")


def test_a_real_mount(data: Path, tmp_path: Path) -> None:
    try:
        load_fuse()
    except ConfigError as error:
        pytest.skip(str(error))
    point = tmp_path / "m"
    command = [sys.executable, "-m", "energon_dali", "mount", "--detach", str(data), str(point)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "could not mount" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    try:
        for shard, members in CONTENTS.items():
            for name, expected in members.items():
                if not name.startswith(".."):
                    assert (point / shard / name).read_bytes() == expected
        with pytest.raises(OSError, match="Read-only file system"):
            (point / "new").write_text("")
    finally:
        unmount = [shutil.which("fusermount3"), "-u"] if shutil.which("fusermount3") else ["umount"]
        subprocess.run([*unmount, str(point)], check=True, timeout=60)  # type: ignore[list-item]
