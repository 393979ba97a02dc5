from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from energon_dali.datasets import stage_clock
from energon_dali.datasets.metrics import Metrics, WorkReport
from energon_dali.datasets.trace import TracedMetrics


@dataclass(eq=False)
class Reports:
    """What other processes report."""

    rows: list[WorkReport] = field(default_factory=list)

    def read_all(self) -> list[WorkReport]:
        return self.rows


def report(worker: int, stage: str, seconds: dict[str, float], waited: float = 0.0) -> WorkReport:
    now = time.perf_counter()
    return WorkReport(f"worker {worker}", now, stage, now - 3, "", seconds, dict(seconds), waited, ["augment"])


def test_a_trace_keeps_each_time() -> None:
    metrics = TracedMetrics("rank 0", 0)
    times = iter([10.0, 10.1, 10.5, 10.7, 11.0, 11.3])
    metrics.work.now = lambda: next(times)
    clock = metrics.clock("load")
    for _ in range(3):
        clock.end(clock.begin())
    record = metrics.drain()
    assert record is not None
    assert [round(event.duration_seconds, 6) for event in record["events"]] == [0.1, 0.2, 0.3]
    assert clock.seconds == pytest.approx(0.6)


def test_what_was_starting_when_its_loader_was_closed_does_not_go_on_starting() -> None:
    metrics, launched = Metrics(), Reports([report(0, "start", {})])
    metrics.read_others(launched)
    first = metrics.snapshot()["seconds"]["start"]
    assert first >= 3
    assert metrics.snapshot()["seconds"]["start"] > first
    metrics.note_end_of(launched)
    last = metrics.snapshot()["seconds"]["start"]
    assert metrics.snapshot()["seconds"]["start"] == last


def test_times_of_processes_that_have_ended_are_kept_in_constant_memory() -> None:
    metrics = Metrics()
    for _ in range(50):
        boards = Reports([report(0, "read", {"read": 1.0, "wait for trainer": 2.0}), report(1, "read", {"read": 3.0})])
        metrics.read_others(boards)
        metrics.note_end_of(boards)
        metrics.note_end_of(boards)
    found = metrics.snapshot()
    assert found["seconds"] == {"read": 200.0, "wait for trainer": 100.0}
    assert found["idle_seconds"] == {"worker 0": 100.0, "worker 1": 0.0}
    assert found["hooks"] == ["augment"]
    assert metrics.other_reports() == []


def test_the_end_of_processes_that_others_have_replaced_changes_nothing() -> None:
    metrics, old, new = Metrics(), Reports([report(0, "read", {"read": 1.0})]), Reports([report(0, "", {"read": 5.0})])
    metrics.read_others(old)
    metrics.read_others(new)
    metrics.note_end_of(old)
    assert metrics.other_reports() == new.rows
    assert metrics.snapshot()["seconds"] == {"read": 6.0}


def test_no_time_runs_backwards() -> None:
    """A worker that was killed while it wrote has no report; for Prometheus a smaller counter has begun again."""
    metrics, others = Metrics(), Reports([report(0, "read", {"read": 5.0}, waited=2.0)])
    metrics.read_others(others)
    before = metrics.snapshot()
    others.rows = []
    after = metrics.snapshot()
    for name in ("seconds", "cpu_seconds", "core_wait_seconds", "idle_seconds"):
        assert after[name] == before[name], name


def test_waits_for_a_core_are_those_of_all_threads_that_ran_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: dict[int, float] = {}
    monkeypatch.setattr(stage_clock, "_scheduled", lambda thread: (0.0, waited.get(thread, 0.0)))
    metrics = Metrics()

    def work() -> None:
        thread = threading.get_native_id()
        waited[thread] = 1.0  # before the pipeline
        clock: Any = metrics.clock("load")
        clock.end(clock.begin())
        waited[thread] = 4.0
        found.append(metrics.snapshot()["core_wait_seconds"])
        waited[thread] = 0.0  # it has ended
        found.append(metrics.snapshot()["core_wait_seconds"])

    found: list[float] = []
    for _ in range(3):
        metrics.work.cpu_due = 0.0
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [3.0, 3.0, 6.0, 6.0, 9.0, 9.0]
