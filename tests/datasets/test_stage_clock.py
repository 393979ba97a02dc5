"""Times of stages, by a clock that the tests set."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.stage_clock import Work, describe_subject
from energon_dali.samples.base import SourceInfo
from tests.running_time import wait_until


class SetClock:
    """A clock that stands still until it is moved on."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds + 0.0  # a new object each time, as of a real clock


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def work(clock: SetClock) -> Work:
    return Work(clock)


def seconds(work: Work) -> dict[str, float]:
    return work.read()[1]


def test_a_stage_that_lasts_is_read_with_its_subject(work: Work, clock: SetClock) -> None:
    hook = work.stage("encode_sample")
    outer = hook.begin({"__key__": "000123"})
    clock.seconds += 12
    current = work.read()[0]
    assert current == ("encode_sample", 100.0, "000123")
    assert seconds(work) == {"encode_sample": 12}
    hook.end(outer)
    clock.seconds += 5
    assert seconds(work) == {"encode_sample": 12}
    assert work.read()[0] == ("", 112.0, "")


def test_what_an_inner_stage_takes_does_not_count_for_the_outer(work: Work, clock: SetClock) -> None:
    rank, hook = work.stage("rank"), work.stage("batch")
    none = rank.begin()
    clock.seconds += 1
    outer = hook.begin()
    clock.seconds += 10
    assert seconds(work) == {"rank": 1, "batch": 10}
    hook.end(outer)
    clock.seconds += 2
    assert seconds(work) == {"rank": 3, "batch": 10}
    rank.end(none)


def test_times_add_up_and_never_shrink_whatever_the_order_of_stages(work: Work, clock: SetClock) -> None:
    draw = random.Random(0)
    stages = [work.stage(name) for name in "abc"]
    outermost = work.stage("rank").begin()
    inside: list[Any] = []
    before: dict[str, float] = {}
    for _ in range(500):
        if inside and draw.random() < 0.5:
            stage, outer = inside.pop()
            stage.end(outer)
        else:
            stage = draw.choice(stages)
            inside.append((stage, stage.begin()))
        clock.seconds += draw.choice([0.0, 0.001, 3.0])
        now = seconds(work)
        assert sum(now.values()) == pytest.approx(clock.seconds - 100)
        assert all(now[name] >= amount - 1e-9 for name, amount in before.items())
        before = now
    assert outermost.name == ""


def test_another_thread_never_reads_half_of_a_change() -> None:
    work = Work()
    rank, stages = work.stage("rank"), [work.stage(name) for name in "ab"]
    began, stop = time.perf_counter(), threading.Event()

    def run() -> None:
        rank.begin()
        while not stop.is_set():
            for stage in stages:
                stage.end(stage.begin())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        last = 0.0
        for _ in range(200):
            total = sum(seconds(work).values())
            assert last <= total <= time.perf_counter() - began
            last = total
    finally:
        stop.set()
        thread.join()


def test_computing_is_told_from_sleeping() -> None:
    metrics = Metrics()
    sleeping, computing = metrics.clock("sleeps"), metrics.clock("computes")
    for _ in range(3):
        outer = sleeping.begin()
        time.sleep(0.02)
        sleeping.end(outer)
        outer = computing.begin()
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        computing.end(outer)
    found = metrics.snapshot()
    assert found["cpu_seconds"]["computes"] >= 0.05
    assert found["cpu_seconds"]["sleeps"] <= 0.01
    assert found["core_wait_seconds"] >= 0


def test_a_stage_that_computes_counts_while_it_lasts() -> None:
    metrics = Metrics()
    stop = threading.Event()

    def run() -> None:
        metrics.clock("first").end(metrics.clock("first").begin())
        metrics.clock("computes").begin()
        while not stop.is_set():
            pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert wait_until(lambda: metrics.snapshot()["cpu_seconds"].get("computes", 0) > 0.02, 20)
    finally:
        stop.set()
        thread.join()


class Hostile:
    @property
    def __key__(self) -> str:
        raise RuntimeError("no key")


def parts(*names: str) -> SourceInfo:
    return SourceInfo(dataset_path="/data/captions", index=1, shard_name="a.tar", file_names=names)


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (None, ""),
        ("1", "1"),
        ([{"__key__": "a"}, {"__key__": "b"}], "a, b"),
        (SimpleNamespace(__key__="k1", __sources__=[SimpleNamespace(dataset_path="/data/captions/")]), "captions/k1"),
        (parts("000016.jpg", "000016.json"), "captions/000016"),
        (parts("000016.jpg"), "captions/000016.jpg"),
        (parts("k.seg1.jpg", "k.seg2.jpg"), "captions/k"),
        (parts("a.jpg", "b.jpg"), "captions"),
        ("captions".upper, ""),  # only methods of Python's classes are called
        (Hostile(), ""),
        ({"__key__": "k" * 1000}, "k" * 200),
    ],
)
def test_subjects_are_described_in_a_few_words(subject: object, text: str) -> None:
    assert describe_subject(subject) == text
