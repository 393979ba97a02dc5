"""The shards have the same bytes whoever writes them, and however often that is interrupted."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

from energon_dali.pack.run import Watcher
from energon_dali.pack.shard_job import STATE
from tests.pack.images_folder import digest, load, pack, write_images

WRITES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "sqlite3.connect"}


def pack_until(source: Path, out: Path, instant: int) -> bool:
    """Packs in a forked process that ends without cleaning up before write number `instant`; False if it had fewer."""
    child = os.fork()
    if child == 0:
        events = itertools.count()

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            reads = event == "open" and arguments[1] in ("r", "rb", None) and not int(str(arguments[2])) & os.O_CREAT
            if event in WRITES and not reads and next(events) == instant:
                os._exit(9)

        sys.addaudithook(hook)
        try:
            pack(source, out, max_samples=4, shuffle=5)
        finally:
            os._exit(1 if sys.exc_info()[0] else 0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


@pytest.mark.parametrize("instants", [(9, 21, 33), (15, 15, 90)], ids=str)
def test_killed_and_run_again(tmp_path: Path, instants: tuple[int, ...]) -> None:
    source, out = write_images(tmp_path / "in", 18), tmp_path / "out"
    (source / "a" / "broken.png").write_bytes(b"x")
    (source / "a" / "broken.txt").write_bytes(b"x")
    expected = pack(source, tmp_path / "expected", max_samples=4, shuffle=5)
    assert [pack_until(source, out, instant) for instant in instants] == [True, True, True]
    kept = {file: file.stat().st_mtime_ns for file in out.glob("*.tar")}
    result = pack(source, out, max_samples=4, shuffle=5)
    assert digest(out) == digest(tmp_path / "expected")
    assert result.skipped == expected.skipped
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert len(load(result)) == 18
    assert sorted(os.listdir(out / STATE)) == ["done", "lock", "plan.json", "skipped.jsonl", "unfinished"]
    assert not os.listdir(out / STATE / "unfinished") + os.listdir(out / STATE / "done")
    assert not list(out.rglob("*.tmp"))


class Counts(Watcher):
    """Adds up the progress of a run."""

    samples = written_bytes = 0

    def progress(self, samples: int, written_bytes: int) -> None:
        self.samples += samples
        self.written_bytes += written_bytes


def test_by_two_processes(tmp_path: Path) -> None:
    source = write_images(tmp_path / "in", 18)
    pack(source, tmp_path / "one", max_samples=4, shuffle=5)
    watcher = Counts()
    result = pack(source, tmp_path / "two", max_samples=4, shuffle=5, num_workers=2, watcher=watcher)
    assert result.num_samples == watcher.samples == 18
    assert watcher.written_bytes > 18 * 512
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    pack(source, tmp_path / "other", max_samples=4, shuffle=6)
    assert digest(tmp_path / "one") != digest(tmp_path / "other")


def test_a_shard_that_was_removed_or_cut_is_written_again(tmp_path: Path) -> None:
    source, out = write_images(tmp_path / "in", 9), tmp_path / "out"
    pack(source, out, max_samples=3)
    before = digest(out)
    (out / "train-000001.tar").unlink()
    os.truncate(out / "train-000002.tar", 512)
    assert not pack(source, out, max_samples=3).was_complete
    assert digest(out) == before
    assert pack(source, out, max_samples=3).was_complete
