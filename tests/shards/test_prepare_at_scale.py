"""Preparing in several processes and of remote datasets: the same files, killed workers, interrupted runs, requests."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.remote.s3_server import S3Server
from energon_dali.cli.media_options import check_image
from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.shards import PartFacts, StoragePath, prepare_dataset
from energon_dali.shards.prepare import scanning
from energon_dali.shards.prepare.parallel import map_in_order
from energon_dali.shards.prepare.shard_job import JUMP_BYTES, LARGEST_BYTES, ShardScan, StreamedReader
from tests.shards.deadly_check import DeadlyCheck
from tests.shards.tars import captions, index_files, write_tar

RATIO = {"train": 3, "val": 1}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def journals(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").rglob("*.scans"))


def test_local_processes_and_an_object_store_give_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = {name: tmp_path / "buckets" / "data" / name for name in ("alone", "processes", "remote")}
    for root in roots.values():
        captions(root, shards=6, samples=5)
    prepare_dataset(roots["alone"], split_ratio=RATIO, check_part=check_image)
    monkeypatch.setattr(scanning, "BYTES_PER_WORKER", 1)
    prepare_dataset(roots["processes"], split_ratio=RATIO, check_part=check_image, num_workers=2)
    with S3Server(tmp_path / "buckets", latency_seconds=0.05) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        (tmp_path / "buckets/data/remote/shard_5.tar").rename(tmp_path / "aside")
        write_tar(tmp_path / "buckets/data/remote/shard_5.tar", {"s0_0.jpg": b"twice"})
        with pytest.raises(DatasetFormatError, match="not unique"):
            prepare_dataset("s3://data/remote", check_part=check_image, shards_in_flight=4)
        assert len(journals(tmp_path)) == 1
        (tmp_path / "aside").rename(tmp_path / "buckets/data/remote/shard_5.tar")
        server.reset()
        prepare_dataset("s3://data/remote", split_ratio=RATIO, check_part=check_image, shards_in_flight=4)
        counters = server.counters()
    expected = index_files(roots["alone"])
    assert index_files(roots["processes"]) == index_files(roots["remote"]) == expected
    assert ".nv-meta/index.uuid" in expected
    # A request for the version of each shard, and one for the content of the only one that changed.
    assert counters["requests_by_suffix"]["tar"] == 7
    assert counters["most_in_flight"] > 1
    assert journals(tmp_path) == []


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setattr(scanning, "BYTES_PER_WORKER", 1)
    root = tmp_path / "data"
    for number in range(4):
        write_tar(root / f"{number}.tar", {f"{number}.txt": b"text", **({"x.kill": b""} if number == 1 else {})})
    return root, tmp_path / "times"


def test_the_shard_of_a_killed_process_is_done_again(deadly: tuple[Path, Path]) -> None:
    root, times = deadly
    times.write_text("1")
    result = prepare_dataset(root, num_workers=2, check_part=DeadlyCheck(times))
    assert times.read_text() == "0"
    assert result.shard_counts == {"0.tar": 1, "1.tar": 2, "2.tar": 1, "3.tar": 1}


def kill_at_three(number: int) -> int | str:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 39:
        raise ConfigError("not 39")
    return number


@pytest.mark.usefixtures("warm_workers")
def test_of_items_that_share_a_process_the_one_at_fault_is_found() -> None:
    """And an error of the function ends all of them."""
    found: list[int | str] = []
    results = map_in_order(kill_at_three, range(40), 2, threads=2, killed=lambda item, end: f"{item} {end}")
    with pytest.raises(ConfigError, match="not 39"):
        found.extend(results)
    assert found[:9] == [0, 1, 2, "3 with SIGKILL", 4, 5, 6, 7, 8]
    assert multiprocessing.active_children() == []


class Interrupted:
    """A check of parts that writes down what it saw, and raises KeyboardInterrupt at the part `stop` if it may."""

    def __init__(self, seen: Path) -> None:
        self.seen = seen

    def __call__(self, name: str, content: Callable[[], bytes]) -> PartFacts | None:
        with self.seen.open("a") as file:
            file.write(content().decode())
        if name == "stop" and (self.seen.parent / "stop").exists():
            raise KeyboardInterrupt
        return PartFacts("any", 3, 4)


def test_an_interrupted_run_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "KEPT_BYTES", 1)
    root, seen, stop = tmp_path / "data", tmp_path / "seen", tmp_path / "stop"
    for number in range(5):
        part = "stop" if number == 3 else "txt"
        write_tar(root / f"{number}.tar", {f"{number}.{part}": str(number).encode()})
    before = index_files(root)

    def run(expected: str, *, stops: bool = False) -> None:
        seen.write_text("")
        if stops:
            stop.touch()
            with pytest.raises(KeyboardInterrupt):
                prepare_dataset(root, check_part=Interrupted(seen))
            assert index_files(root) == before
            assert len(journals(tmp_path)) == 1
            stop.unlink()
        else:
            prepare_dataset(root, check_part=Interrupted(seen))
            assert journals(tmp_path) == []
        assert seen.read_text() == expected

    run("0123", stops=True)
    run("3", stops=True)
    # A shard that changed is scanned again, as is one whose record is damaged.
    write_tar(root / "1.tar", {"1.txt": b"+"})
    before = index_files(root)
    (path,) = journals(tmp_path)
    data = path.read_bytes()
    place = data.index(b'"2.tar"')  # the last record: scans with an error or an interruption have none
    at = data.index(b"s", place)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    run("+23", stops=True)
    path.write_bytes(path.read_bytes()[:-5])  # cut off in its last record, which is that of shard 1
    run("+234")
    expected = index_files(root)
    run("0+234")
    assert index_files(root) == expected


class Requests:
    """A file in memory that notes what was read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.made: list[tuple[int, int]] = []

    def read_at(self, offset: int, size: int) -> bytes:
        self.made.append((offset, size))
        return self.data[offset : offset + size]

    def close(self) -> None:
        """Does nothing."""


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_streamed_file_is_read_as_it_is(ahead: int) -> None:
    data = random.Random(1).randbytes(40 << 20)
    draw = random.Random(2)
    for _ in range(2):
        file = Requests(data)
        reader = StreamedReader(file, ahead)
        offset = 0
        while offset < len(data):
            size = draw.choice((512, 5000, 2 << 20, 9 << 20) if draw.random() < 0.1 else (512, 3000))
            assert reader.read_at(offset, size) == data[offset : offset + size]
            offset += size + draw.choice((0, 0, 700, 100_000, JUMP_BYTES, 6 << 20))
        assert reader.read_at(len(data), 512) == b""
        reader.close()
        assert all(size <= 2 * LARGEST_BYTES for _, size in file.made)


def test_small_members_are_streamed_and_large_ones_passed_over() -> None:
    small = Requests(bytes(40 << 20))
    reader = StreamedReader(small)
    for offset in range(0, small.size, 2048):
        reader.read_at(offset, 512)
    assert len(small.made) <= 8
    assert sum(size for _, size in small.made) < 1.2 * small.size + LARGEST_BYTES
    large = Requests(bytes(100 << 20))
    reader = StreamedReader(large)
    for offset in range(0, large.size, 5 << 20):
        reader.read_at(offset, 512)
    assert len(large.made) == 20
    assert sum(size for _, size in large.made) < 2 << 20


def test_no_journal_is_kept_where_none_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "KEPT_BYTES", 1)
    captions(tmp_path / "data")
    (tmp_path / "cache").write_text("a file")
    prepare_dataset(tmp_path / "data")
    (tmp_path / "cache").unlink()
    job: Any = scanning.ShardJob(StoragePath.of(tmp_path / "data"))
    first = scanning.open_journal(job)
    assert first is not None
    assert scanning.open_journal(job) is None, "another process has it"
    first.close()
    unpicklable = scanning.ShardJob(StoragePath.of(tmp_path / "data"), check_part=lambda name, content: None)
    assert scanning.open_journal(unpicklable) is None
    with pytest.raises(ConfigError, match="shards_in_flight=0"):
        prepare_dataset(tmp_path / "data", shards_in_flight=0)


def test_a_journal_keeps_no_scan_that_was_left_out(tmp_path: Path) -> None:
    """An empty scan of a shard that the caller knew would be taken for what the shard holds."""
    journal = scanning.open_journal(scanning.ShardJob(StoragePath.of(tmp_path)))
    assert journal is not None
    journal.add(ShardScan("known.tar", version="1", is_known=True))
    assert journal.version("known.tar") is None
    journal.write("old.tar", "1", ShardScan("old.tar", version="1", is_known=True), scanning._plain)
    assert journal.load("old.tar") is None
    journal.close()
