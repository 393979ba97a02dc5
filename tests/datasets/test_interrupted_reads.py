"""Interrupts and abandoned iterators lose nothing that is read ahead, and leave nothing behind."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from energon_dali.datasets import fetch
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.stream import StreamContext
from energon_dali.shards import ShardReader, WebdatasetFolder, prepare_dataset, read_ahead
from energon_dali.shards.read_ahead import read_planned
from energon_dali.shards.storage import request_pool
from energon_dali.shards.storage.local import LocalReader
from energon_dali.shards.storage.request_pool import RequestPool
from energon_dali.shards.storage.store import ReadScope, read_scope
from tests.datasets.test_read_ahead import compositions
from tests.shards.tars import captions

FILES = {module.__file__ for module in (fetch, read_ahead, request_pool)}


@pytest.fixture
def folder(tmp_path: Path) -> WebdatasetFolder:
    captions(tmp_path)
    prepare_dataset(tmp_path)
    return WebdatasetFolder(str(tmp_path))


class Interrupts:
    """Raises KeyboardInterrupt in this thread where functions of the modules that read ahead begin or return.

    Args:
        seed: Of the places.
        most: Number of interrupts.
    """

    def __init__(self, seed: int, most: int) -> None:
        self._random = random.Random(seed)
        self._most = most
        self._left = 0
        self.count = 0

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in FILES or _is_clearing(frame):
            return None
        frame.f_trace_lines = False
        self._step()
        return self._leave

    def _leave(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "return" and argument is not None:
            self._step()
        return self._leave

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0 and self.count < self._most:
            self._left = int(10 ** self._random.uniform(0, 3.5))
            self.count += 1
            raise KeyboardInterrupt


def _is_clearing(frame: Any) -> bool:
    """Returns whether this is what happens after an interrupt, which a second one may disturb."""
    while frame is not None and frame.f_code is not interrupted.__code__:
        if frame.f_code.co_name in ("__del__", "clear", "close", "forget"):
            return True
        frame = frame.f_back
    return False


def interrupted(dataset: SavableDataset[Any], count: int, interrupts: Interrupts) -> list[str]:
    iterator = dataset.open(StreamContext(0))
    found: list[str] = []
    while len(found) < count:
        outer = sys.gettrace()
        sys.settrace(interrupts.trace)
        try:
            sample = next(iterator)
        except KeyboardInterrupt:
            continue
        except StopIteration:
            found.append("end")
            continue
        finally:
            sys.settrace(outer)
        found.append(sample.text)
    iterator.close()
    return found


@pytest.mark.parametrize("name", ["source", "validation", "wide", "epochized", "blend"])
@pytest.mark.parametrize("requests", [1, 4])
def test_interrupts_neither_lose_nor_repeat_samples(folder: WebdatasetFolder, name: str, requests: int) -> None:
    with read_scope(ReadScope(read_ahead_bytes=0)):
        expected = interrupted(compositions(folder, 1)[name], 60, Interrupts(0, 0))
    total = 0
    for seed in range(4):
        scope = ReadScope(read_ahead_bytes=1 << 20, requests_in_flight=requests)
        with read_scope(scope):
            interrupts = Interrupts(seed, 25)
            found = interrupted(compositions(folder, 1)[name], 60, interrupts)
        total += interrupts.count
        assert found == expected, seed
        assert not scope.requests._users
        assert scope.requests.bytes_held == 0
    assert total > 10


def test_what_still_plans_after_an_interrupt_plans_nothing_twice(
    folder: WebdatasetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with read_scope(ReadScope(read_ahead_bytes=0)):
        expected = interrupted(compositions(folder, 1)["blend"], 200, Interrupts(0, 0))
    began, release, ended = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)
    real_open, real_plan = ShardReader.open_shards, Source.plan_reads

    def open_late(self: ShardReader, *arguments: Any) -> None:
        began.release()
        assert release.wait(60)
        real_open(self, *arguments)

    def plan_reads(self: Source, *arguments: Any) -> None:
        real_plan(self, *arguments)
        ended.release()

    def interrupt(*arguments: Any) -> None:
        assert all(began.acquire(timeout=60) for _ in range(3)), "each source waits for its index"
        raise KeyboardInterrupt

    with read_scope(ReadScope(read_ahead_bytes=1 << 20)):
        iterator = compositions(folder, 1)["blend"].open(StreamContext(0))
        with monkeypatch.context() as patch:
            patch.setattr(ShardReader, "open_shards", open_late)
            patch.setattr(Source, "plan_reads", plan_reads)
            patch.setattr(request_pool.Future, "result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
        found = [next(iterator).text]
        release.set()
        assert all(ended.acquire(timeout=60) for _ in range(3))
        found += [next(iterator).text for _ in expected[1:]]
        assert found == expected
        iterator.close()


def test_an_abandoned_iterator_leaves_its_share_and_its_threads(folder: WebdatasetFolder) -> None:
    scope = ReadScope(read_ahead_bytes=1 << 20)
    with read_scope(scope):
        for name, dataset in compositions(folder, 1).items():
            iterator = dataset.open(StreamContext(0))
            next(iterator)
            assert scope.requests._users, name
            del iterator
            gc.collect()
            assert not scope.requests._users, name
            assert scope.requests.bytes_held == 0, name
            end = time.monotonic() + 60
            while scope.requests._threads and time.monotonic() < end:
                time.sleep(0.002)
            assert not scope.requests._threads, name


def test_requests_run_where_no_more_threads_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    pool = RequestPool(requests_in_flight=4)
    pool.join(pool)
    first = pool.submit(1, release.wait, 60)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        second = pool.submit(1, int, "2")
    release.set()
    assert first.result(60)
    assert second.result(60) == 2
    pool.leave(pool)
    lonely = RequestPool(requests_in_flight=1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="new thread"):
            lonely.submit(1, int, "2")


def test_what_is_read_at_once_is_requested_at_once_whatever_may_be_read_ahead(
    folder: WebdatasetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = LocalReader.read_view

    def counted(self: LocalReader, offset: int, size: int) -> bytes:
        calls.append(offset)
        return real(self, offset, size)

    shards = [shard for shard, count in enumerate(folder.shard_counts) for _ in range(count)]
    samples = [sample for count in folder.shard_counts for sample in range(count)]
    with read_scope(ReadScope(read_ahead_bytes=0)):
        reader = ShardReader(folder)
        reader.open_shards(range(len(folder.shard_counts)), 0)
        for shard in range(len(folder.shard_counts)):
            reader.runs(shard, 0)
        monkeypatch.setattr(LocalReader, "read_view", counted)
        read_planned(reader, shards, samples)
    assert len(calls) == len(folder.shard_counts), "one request per shard"
