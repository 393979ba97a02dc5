"""Reading ahead changes neither the order nor what is read, whatever the limits, and keeps to its memory."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.stream import StreamContext
from energon_dali.errors import DatasetError, ShardError, StorageError, StoreUnavailableError
from energon_dali.plan.slices import Slices
from energon_dali.shards import RawSample, ShardReader, WebdatasetFolder, prepare_dataset
from energon_dali.shards.index.extents import PartRun
from energon_dali.shards.read_ahead import PlannedReads, read_planned
from energon_dali.shards.storage import store
from energon_dali.shards.storage.local import LocalReader
from energon_dali.shards.storage.protocols import RangeReader
from energon_dali.shards.storage.request_pool import RequestPool
from energon_dali.shards.storage.store import ReadScope, read_scope
from tests.datasets.oracle import check_resume, config
from tests.datasets.test_source_mixtures import blend, dataset_of, epochized, make_source
from tests.part import sampled
from tests.shards.tars import captions


@pytest.fixture
def folder(tmp_path: Path) -> WebdatasetFolder:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    return WebdatasetFolder(str(tmp_path))


@pytest.fixture
def always_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reads local files ahead as remote ones are."""

    def pool(count: Any = None, **options: Any) -> RequestPool:
        return RequestPool(count, **{**options, "read_ahead_bytes": 1 << 20})

    monkeypatch.setattr(store, "RequestPool", pool)
    return


def source(folder: WebdatasetFolder, streams: int, number: int = 1, *, repeat: bool = True, window: int = 5) -> Source:
    made = make_source(number, 1, config(streams), repeat=repeat, shuffle_buffer_size=window)
    made.load.field_map = {"text": "txt"}
    base = Slices.whole_shards(folder.shard_counts)
    return replace(made, plan=replace(made.plan, base=base), reader=ShardReader(folder))


def alone(source: Source) -> SavableDataset[Any]:
    return dataset_of(source.plan, [source])


def texts(dataset: SavableDataset[Any], stream: int, count: int) -> list[str]:
    iterator = dataset.open(StreamContext(stream))
    found: list[str] = []
    try:
        while len(found) < count:
            try:
                found.append(next(iterator).text)
            except StopIteration:
                found.append("end")
    finally:
        iterator.close()
    return found


def compositions(folder: WebdatasetFolder, streams: int) -> dict[str, SavableDataset[Any]]:
    return {
        "source": alone(source(folder, streams)),
        "validation": alone(source(folder, streams, repeat=False, window=1)),
        "wide": alone(source(folder, streams, window=1000)),
        "blend": blend([source(folder, streams, n) for n in (1, 2, 3)], [3, 1, 2]),
        "epochized": epochized([source(folder, streams, n, repeat=False) for n in (1, 2)], [1, 2], repeat=True),
    }


@pytest.mark.parametrize("streams", [1, 3])
def test_the_order_is_that_of_direct_reads(
    folder: WebdatasetFolder, streams: int, monkeypatch: pytest.MonkeyPatch, always_ahead: None
) -> None:
    with monkeypatch.context() as direct:
        direct.setattr(store, "RequestPool", RequestPool)
        with read_scope(ReadScope(read_ahead_bytes=0)):
            expected = {
                (name, stream): texts(dataset, stream, 100)
                for name, dataset in compositions(folder, streams).items()
                for stream in range(streams)
            }
    counts: dict[str, int] = {}
    with read_scope(ReadScope(count=lambda name, amount: counts.update({name: counts.get(name, 0) + amount}))):
        for (name, stream), wanted in expected.items():
            assert texts(compositions(folder, streams)[name], stream, 100) == wanted, name
    assert counts["read_ahead.requests"] > 100


@pytest.mark.parametrize("name", sampled(["source", "validation", "wide", "blend", "epochized"], 2))
def test_a_restore_continues_exactly(folder: WebdatasetFolder, name: str, always_ahead: None) -> None:
    check_resume(lambda: compositions(folder, 2)[name], count=40, epochs=2, view=lambda sample: sample.text)


def test_any_plan_gives_the_samples_and_keeps_to_its_limits(folder: WebdatasetFolder) -> None:
    truth = {
        (shard, sample): ShardReader(folder).read([shard], [sample])[0]
        for shard, count in enumerate(folder.shard_counts)
        for sample in range(count + 1)
    }
    for seed in range(30):
        draw = random.Random(seed)
        rows = [draw.choice(list(truth)) for _ in range(draw.randrange(1, 80))]
        reader = ShardReader(folder)
        with read_scope(
            ReadScope(read_ahead_bytes=draw.choice([1, 3000, 1 << 20]), requests_in_flight=draw.choice([1, 2, 8]))
        ):
            reads = PlannedReads(reader, draw.choice([0, 3, 100]), draw.choice([1, 4]))
            coming, got = list(rows), []
            while len(got) < len(rows):
                if coming and (draw.random() < 0.5 or not len(reads)):
                    count = draw.randrange(1, 9)
                    reads.plan(*zip(*coming[:count], strict=True))
                    del coming[:count]
                if draw.random() < 0.5:
                    reads.issue(draw.choice([None, 1, 5]))
                if len(reads):
                    got.append(reads.take())
                largest = max((row.size for row in (*reads._issued, *reads._planned)), default=0)
                assert reads._held_bytes <= reads._pool.read_ahead_bytes + largest
            assert reads._held_bytes == reads._pool.bytes_held == 0
            reads.close()
        for row, found in zip(rows, got, strict=True):
            wanted = truth[row]
            if isinstance(wanted, RawSample):
                assert isinstance(found, RawSample)
                assert found.key == wanted.key
                assert {n: bytes(p) for n, p in found.parts.items()} == {n: bytes(p) for n, p in wanted.parts.items()}
            else:
                assert isinstance(found, ShardError)
                assert str(found) == str(wanted)


def test_runs_are_streamed_and_requests_are_in_flight_together(
    folder: WebdatasetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, running, most, calls = LocalReader.read_view, 0, 0, 0
    lock, together = threading.Lock(), threading.Barrier(2)

    def slow(self: LocalReader, offset: int, size: int) -> bytes:
        nonlocal running, most, calls
        with lock:
            running, calls = running + 1, calls + 1
            most, number = max(most, running), calls
        if number <= 2:  # the second is sent while the first is in flight
            together.wait(60)
        time.sleep(0.02)
        with lock:
            running -= 1
        return real(self, offset, size)

    shards = [shard for shard, count in enumerate(folder.shard_counts) for _ in range(count)]
    samples = [sample for count in folder.shard_counts for sample in range(count)]
    with read_scope(ReadScope(read_ahead_bytes=1 << 20, requests_in_flight=8)):
        reads = PlannedReads(ShardReader(folder), 1, 1)
        reads.plan(shards, samples)
        monkeypatch.setattr(LocalReader, "read_view", slow)
        reads.issue(len(shards))
        assert all(isinstance(reads.take(), RawSample) for _ in shards)
        assert calls == len(folder.shard_counts), "one request per shard"
        assert 1 < most <= 8
        reads.close()


def test_closing_cancels_what_has_not_begun(folder: WebdatasetFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    began, release, calls = threading.Event(), threading.Event(), []

    def stuck(self: LocalReader, offset: int, size: int) -> bytes:
        calls.append(offset)
        began.set()
        release.wait(60)
        return b""

    with read_scope(ReadScope(read_ahead_bytes=1 << 20, requests_in_flight=1)):
        reads = PlannedReads(ShardReader(folder), 1, 1)
        reads.plan(range(len(folder.shard_counts)), [0] * len(folder.shard_counts))
        monkeypatch.setattr(LocalReader, "read_view", stuck)
        reads.issue(len(reads))
        assert began.wait(60)
        reads.close()
        assert reads._pool.bytes_held == 0
    release.set()
    assert len(calls) == 1


def test_forgotten_rows_hold_no_bytes(folder: WebdatasetFolder) -> None:
    with read_scope(ReadScope(read_ahead_bytes=1 << 20)):
        reads = PlannedReads(ShardReader(folder), 5, 1)
        for _ in range(2):
            reads.plan([0, 1, 2], [0, 1, 2])
            reads.issue(3)
            assert reads._pool.bytes_held > 0
            reads.clear()
            assert reads._pool.bytes_held == 0
        reads.close()


def test_a_shard_that_fails_costs_its_samples_alone(tmp_path: Path) -> None:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    (tmp_path / "shard_1.tar").unlink()
    folder = WebdatasetFolder(str(tmp_path))
    with read_scope(ReadScope(read_ahead_bytes=1 << 20)):
        reads = PlannedReads(ShardReader(folder), 1, 1)
        reads.plan([0, 1, 2, 1], [0, 0, 0, 1])
        first, second, third, fourth = (reads.take() for _ in range(4))
        reads.close()
    assert isinstance(first, RawSample)
    assert isinstance(third, RawSample)
    for lost in (second, fourth):
        assert isinstance(lost, DatasetError)
        assert "shard_1.tar" in str(lost)


@pytest.mark.parametrize("error", [StorageError("lost"), OSError("lost")])
def test_what_cannot_be_planned_costs_its_sample_alone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    source = _Neighbours(1000)
    real = source.runs

    def runs(shard: int, sample: int, seed: int | None = None) -> Any:
        if sample == 1:
            raise error
        return real(shard, sample, seed)

    monkeypatch.setattr(source, "runs", runs)
    with read_scope(ReadScope(read_ahead_bytes=1 << 20)):
        first, second, third = read_planned(source, [0, 0, 0], [0, 1, 2])
        assert isinstance(first, RawSample)
        assert isinstance(second, ShardError)
        assert "lost" in str(second)
        assert isinstance(third, RawSample)
        error = StoreUnavailableError("the store is down")
        with pytest.raises(StoreUnavailableError):
            read_planned(source, [0], [1])


class _Neighbours:
    """A source of one shard, whose samples are next to each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.requests: list[tuple[int, int]] = []

    def open_shards(self, numbers: Iterable[int], num_samples: int) -> None:
        """Needs nothing."""

    def runs(self, shard: int, sample: int, seed: int | None = None) -> tuple[RangeReader, list[PartRun]]:
        return self, [(0, 1, sample * self.size, self.size)]  # type: ignore[return-value]

    def read_view(self, offset: int, size: int) -> bytes:
        self.requests.append((offset, size))
        return bytes(size)

    def assemble(self, shard: int, sample: int, pieces: Sequence[tuple[PartRun, bytes | memoryview, int]]) -> RawSample:
        return RawSample(str(sample), "", sample, shard, sample, {"x": pieces[0][1]})

    def unreadable(self, shard: int, error: Exception) -> DatasetError:
        return ShardError(str(error), "")


def test_scattered_neighbours_share_requests_within_the_limit() -> None:
    """Where the window does not fit into the limit, neighbours that are wanted later fill what is left of it."""
    size, count, limit = 1000, 8000, 400_000
    order = list(range(count))
    random.Random(0).shuffle(order)
    source = _Neighbours(size)
    with read_scope(ReadScope(read_ahead_bytes=limit, requests_in_flight=8)):
        reads = PlannedReads(source, window=count)
        coming, taken, most = list(order), [], 0
        while len(taken) < count:
            wanted = min(reads.rows_wanted(), len(coming))
            if wanted > 0:
                reads.plan([0] * wanted, coming[:wanted])
                del coming[:wanted]
            reads.issue()
            assert len(reads._issued) >= min(32, count - len(taken))  # neighbours leave room for what comes next
            found = reads.take()
            assert isinstance(found, RawSample)
            taken.append(found.sample_index)
            most = max(most, reads._held_bytes)
        reads.close()
    assert taken == order
    assert limit // 2 < most <= limit + size
    assert len(source.requests) < 0.9 * count
