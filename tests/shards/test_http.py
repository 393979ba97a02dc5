"""Datasets on web servers that fail, cut responses off, do not support ranges, or do not answer."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from energon_dali.errors import ShardError, StorageError, StoreUnavailableError
from energon_dali.shards import RawSample, RetryPolicy, ShardReader, StoragePath, WebdatasetFolder, prepare_dataset
from energon_dali.shards.storage import http, retry, store
from energon_dali.shards.storage.store import ReadScope, read_scope
from tests.shards.failing_storage import FakeClock
from tests.shards.failing_storage import clock as clock
from tests.shards.tars import captions
from tests.shards.web_server import Web, serving

PLACES = [(shard, sample) for shard in range(3) for sample in range(4)]


@pytest.fixture(autouse=True)
def _own_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store, "_stores", {})
    yield
    for manager in http._managers.values():
        manager.clear()
    http._managers.clear()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    with serving(tmp_path) as server:
        yield server


def read(reader: ShardReader, places: list[tuple[int, int]] = PLACES) -> list[Any]:
    return reader.read([shard for shard, _ in places], [sample for _, sample in places])


def good(samples: list[Any]) -> list[str]:
    return [sample.key for sample in samples if isinstance(sample, RawSample)]


ALL = [f"s{shard}_{sample}" for shard, sample in PLACES]


def test_answers_that_are_cut_off_cost_no_sample(web: Web, clock: FakeClock) -> None:
    left = {"shard_0.tar": 1, "shard_2.tar": 2, "extents.bin": 1, ".info.json": 1}

    def cut(name: str) -> bool:
        left[name] = left.get(name, 0) - 1
        return left[name] >= 0

    web.cut = cut
    counts: dict[str, int] = {}
    scope = ReadScope(count=lambda name, amount: counts.update({name: counts.get(name, 0) + amount}))
    with read_scope(scope):
        reader = ShardReader(WebdatasetFolder(web.url))
        assert good(read(reader)) == ALL
        reader.close()
    assert {name: n for name, n in counts.items() if name.startswith("retries")} == {f"retries.{web.url}": 5}
    assert counts["read_ahead.requests"] == 3, "one per shard"


def test_a_known_size_needs_no_request_to_open(web: Web) -> None:
    path = StoragePath.of(f"{web.url}/shard_0.tar")
    size = path.size()
    web.requests.clear()
    reader = path.open(size)
    assert not web.requests
    assert reader.read_at(size - 5, 10) == bytes(5)
    assert dict(web.requests) == {("GET", "shard_0.tar"): 1}
    with pytest.raises(StorageError, match=f"shard_0.tar changed since it was indexed: it has {size} bytes and had 9"):
        path.open(9).read_at(0, 5)


def test_connections_are_kept(web: Web) -> None:
    reader = ShardReader(WebdatasetFolder(web.url))
    for _ in range(10):
        assert good(read(reader)) == ALL
    reader.close()
    assert sum(web.requests.values()) > 30
    assert web.connections <= 8, "one per reading thread at most"


def test_one_shard_that_fails_for_ever_costs_one_budget_and_its_samples(web: Web, clock: FakeClock) -> None:
    with read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(web.url))
        assert good(read(reader, [(0, 0)])) == ["s0_0"]
        web.status = lambda method, path: 503 if path == "shard_1.tar" else None
        samples = read(reader, [(1, 0), (2, 0), (1, 1)])
        assert good(samples) == ["s2_0"]
        assert isinstance(samples[0], ShardError)
        assert f"{web.url}/shard_1.tar" in str(samples[0])
        assert web.requests["GET", "shard_1.tar"] == 5
        lookups = web.requests["GET", "extents.bin"]
        for sample in range(4):
            assert good(read(reader, [(1, sample)])) == []
            assert reader.name(1, sample) == ("shard_1.tar", f"s1_{sample}")
        assert web.requests["GET", "shard_1.tar"] == 5 + 4
        assert web.requests["GET", "extents.bin"] == lookups, "the index was asked again for names"
        reader.close()


def test_a_file_that_reads_again_has_a_whole_budget_again(web: Web, clock: FakeClock) -> None:
    left = 5

    def status(method: str, path: str) -> int | None:
        nonlocal left
        left -= path == "shard_1.tar"
        return 503 if path == "shard_1.tar" and left >= 0 else None

    with read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(web.url))
        assert good(read(reader, [(0, 0), (2, 0)])) == ["s0_0", "s2_0"]
        web.status = status
        assert good(read(reader, [(1, 0)])) == []
        assert good(read(reader, [(1, 1)])) == ["s1_1"]
        left = 4
        assert good(read(reader, [(1, 2)])) == ["s1_2"]
        reader.close()


def test_a_server_that_fails_for_ever_ends_the_run(web: Web, clock: FakeClock) -> None:
    # One request at a time: the clock of this test does not let pauses of several overlap.
    with read_scope(ReadScope(RetryPolicy(store_seconds=60), requests_in_flight=1)):
        reader = ShardReader(WebdatasetFolder(web.url))
        assert good(read(reader, [(0, 0)])) == ["s0_0"]
        web.status, began = lambda method, path: 503, clock.time
        with pytest.raises(StoreUnavailableError, match=rf"from {web.url} for 6\d s.*503"):
            read(reader)
        assert clock.time - began < 70
        web.status = lambda method, path: None
        assert good(read(reader)) == ALL
        reader.close()


def test_a_server_that_fails_for_a_minute_costs_nothing(web: Web, clock: FakeClock) -> None:
    with read_scope(ReadScope()):
        reader = ShardReader(WebdatasetFolder(web.url))
        assert good(read(reader, [(0, 0)])) == ["s0_0"]
        end = clock.time + 60
        web.status = lambda method, path: 503 if clock.time < end else None
        assert good(read(reader)) == ALL
        reader.close()


def test_without_ranges_each_file_is_fetched_once(web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    web.ranges = False
    reader = ShardReader(WebdatasetFolder(web.url))
    for _ in range(5):
        assert good(read(reader)) == ALL
        reader.close()
    for shard in range(3):
        # The first request to the server shows what it supports, and fails.
        assert web.requests["GET", f"shard_{shard}.tar"] == 1
    assert web.requests["GET", "extents.bin"] == 2
    assert web.sent_bytes < 2 * sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    told = [record for record in caplog.records if "does not answer range requests" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]


def test_copies_keep_to_their_limit(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web.ranges = False
    sizes = [(tmp_path / f"shard_{shard}.tar").stat().st_size for shard in range(3)]
    monkeypatch.setattr(http, "COPIED_BYTES", sizes[0] + sizes[1])
    copies = http._Copies()
    monkeypatch.setattr(http, "_copies", copies)
    for shard in (0, 1, 0, 2):
        StoragePath.of(f"{web.url}/shard_{shard}.tar").open(sizes[shard]).read_at(0, 10)
    assert list(copies._copies) == [f"{web.url}/shard_{shard}.tar" for shard in (0, 2)]
    # A file that has changed is not read from its old copy.
    (tmp_path / "shard_2.tar").write_bytes(b"new" * 1000)
    assert StoragePath.of(f"{web.url}/shard_2.tar").open().read_at(0, 6) == b"newnew"


def test_a_cut_copy_is_fetched_again(web: Web, clock: FakeClock) -> None:
    web.ranges = False
    cuts = [True, True]
    web.cut = lambda name: name == "shard_0.tar" and bool(cuts and cuts.pop())
    reader = ShardReader(WebdatasetFolder(web.url))
    assert good(read(reader)) == ALL
    assert not cuts
    reader.close()


def test_refusals_are_told_at_once(web: Web, clock: FakeClock) -> None:
    web.status = lambda method, path: 403
    with pytest.raises(StorageError, match="the server answered 403"):
        StoragePath.of(f"{web.url}/shard_0.tar").open()
    web.status = lambda method, path: None
    with pytest.raises(FileNotFoundError):
        StoragePath.of(f"{web.url}/nothing.tar").open()
    assert clock.pauses == []
    assert web.requests["HEAD", "shard_0.tar"] == 1


def test_a_file_that_became_shorter_is_a_changed_shard(web: Web, tmp_path: Path) -> None:
    reader = ShardReader(WebdatasetFolder(web.url))
    assert good(read(reader, [(0, 0)])) == ["s0_0"]
    (tmp_path / "shard_0.tar").write_bytes((tmp_path / "shard_0.tar").read_bytes()[:3000])
    (error,) = read(reader, [(0, 3)])
    assert isinstance(error, ShardError)
    assert "changed since it was indexed" in str(error)
    reader.close()


def test_a_server_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    policy = RetryPolicy(attempts=2, request_seconds=0.9)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a.tar"
        with (
            read_scope(ReadScope(policy, outlasts_stores=False)),
            pytest.raises(StorageError, match=r"2 attempts.*[Tt]imed out"),
        ):
            StoragePath.of(url).open()
