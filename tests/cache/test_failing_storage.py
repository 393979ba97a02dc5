"""File stores follow the same rule as shards: a passing error loses nothing, a store that is down ends the run."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from energon_dali.cache import (
    FileStoreCachePool,
    JsonlFileStore,
    SystemFileStore,
    WebdatasetFileStore,
    dataset_stores,
)
from energon_dali.cache.store_index import INDEX, StoreIndex
from energon_dali.errors import DatasetError, StoreUnavailableError
from energon_dali.shards import ExtentIndex, RetryPolicy, StoragePath, prepare_dataset, prepare_jsonl
from energon_dali.shards.documents.sqlite_file import SqliteFile
from energon_dali.shards.storage import local, store
from energon_dali.shards.storage.store import ReadScope, read_scope
from tests.shards.failing_storage import FakeClock, failing_preads
from tests.shards.failing_storage import clock as clock
from tests.shards.tars import captions


@pytest.fixture(autouse=True)
def _own_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_stores", {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    prepare_jsonl(tmp_path / "x.jsonl")
    return tmp_path


STORES: dict[str, Callable[[Path], tuple[Any, str]]] = {
    "folder": lambda folder: (SystemFileStore(folder), "x.jsonl"),
    "shards": lambda folder: (WebdatasetFileStore(folder), "s1_2.txt"),
    "lines": lambda folder: (JsonlFileStore(folder / "x.jsonl"), "1.json"),
}


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[OSError]:
    """Errors that reads of data and of whole files raise, the last one first."""
    errors: list[OSError] = []
    real = local.read_regular

    def read_regular(path: str, max_bytes: int | None = None) -> bytes:
        if errors:
            raise errors.pop()
        return real(path, max_bytes)

    monkeypatch.setattr(local, "read_regular", read_regular)
    return errors


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("cached", [False, True])
def test_errors_that_pass_cost_nothing(
    folder: Path, clock: FakeClock, failures: list[OSError], kind: str, cached: bool
) -> None:
    file_store, name = STORES[kind](folder)
    expected = file_store[name][0]
    counts: Counter[str] = Counter()
    scope = ReadScope(count=lambda name, amount: counts.update({name: amount}))
    pool = FileStoreCachePool(parent_cache_dir=folder / "cache") if cached else None
    failures += [OSError(errno.EIO, "once"), OSError(errno.ESTALE, "twice")]
    with failing_preads(lambda path, fd: failures.pop() if failures else None), read_scope(scope):
        found = file_store[name][0] if pool is None else pool.get_lazy(file_store, name).get()
    assert bytes(found) == bytes(expected)
    assert sum(counts.values()) == 2, "retries of the cache's threads count for the loader too"
    if pool is not None:
        pool.close()
    file_store.close()


@pytest.mark.parametrize("kind", STORES)
def test_a_store_that_is_down_is_not_a_bad_sample(
    folder: Path, clock: FakeClock, failures: list[OSError], kind: str
) -> None:
    file_store, name = STORES[kind](folder)
    assert file_store[name]
    failures += [OSError(errno.EIO, "down")] * 10_000
    with (
        failing_preads(lambda path, fd: OSError(errno.EIO, "down")),
        read_scope(ReadScope(RetryPolicy(store_seconds=20))),
        pytest.raises(StoreUnavailableError),
    ):
        file_store[name]
    file_store.close()


def test_a_file_that_fails_alone_is_a_bad_sample(folder: Path, clock: FakeClock) -> None:
    file_store = WebdatasetFileStore(folder)
    assert file_store["s0_0.txt"]

    def fails(path: str, fd: int) -> OSError | None:
        return OSError(errno.EIO, "bad") if path.endswith("shard_1.tar") else None

    with failing_preads(fails), read_scope(ReadScope()), pytest.raises(DatasetError, match=r"shard_1\.tar"):
        file_store["s1_0.txt"]
    file_store.close()


@pytest.mark.parametrize("index", ["by name", "by shard"])
def test_errors_of_the_disk_under_sqlite_are_retried(
    folder: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    if index == "by name":
        file_store = WebdatasetFileStore(folder)

        def ask() -> object:
            return bytes(file_store["s1_2.txt"][0])
    else:
        (folder / ".nv-meta/extents.bin").unlink()
        extents = ExtentIndex(StoragePath.of(str(folder)), dict.fromkeys(["shard_0.tar", "shard_1.tar"], 4))
        assert extents.source == "sqlite"

        def ask() -> object:
            return extents.shard(1).key(2)

    errors = [sqlite3.OperationalError("disk I/O error")] * 2
    real = SqliteFile.execute

    def execute(self: SqliteFile, *args: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(self, *args)

    monkeypatch.setattr(SqliteFile, "execute", execute)
    first = ask()
    assert not errors
    assert len(clock.pauses) == 2
    assert first == ask()
    (extents if index == "by shard" else file_store).close()


def test_a_remote_index_that_another_thread_closed_is_fetched_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreIndex, "_fetch", lambda self: SqliteFile(folder / INDEX))
    index = StoreIndex(StoragePath.of("s3://bucket/data"))
    expected = index.part("s1_2", "txt")
    assert expected is not None
    lock = index._lock

    @contextmanager
    def late() -> Iterator[None]:
        """Takes the lock after another thread closed the database that this one saw open."""
        index._lock = lock
        index.close()
        with lock:
            yield

    index._lock = late()  # type: ignore[assignment]
    assert index.part("s1_2", "txt") == expected
    index.close()


def test_shards_that_make_room_are_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_stores, "MAX_OPEN_SHARDS", 1)
    file_store = WebdatasetFileStore(folder)
    for _ in range(3):
        for shard in range(3):
            assert file_store[f"s{shard}_0.txt"]
            names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_open(fd)]
            assert [name for name in names if name.startswith(str(folder / "shard_"))] == [
                str(folder / f"shard_{shard}.tar")
            ]
    file_store.close()


def is_open(fd: str) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")
