from __future__ import annotations

import pytest

from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.trace import TracedMetrics


def test_a_clock_counts_the_first_time_at_once_and_then_a_millisecond_at_a_time() -> None:
    metrics = Metrics()
    clock = metrics.clock("encode_sample")
    clock.add(0.0001)
    assert metrics.snapshot()["seconds"] == {"encode_sample": 0.0001}
    for _ in range(7):
        clock.add(0.0003)
    assert metrics.snapshot()["seconds"]["encode_sample"] == pytest.approx(0.0001 + 4 * 0.0003)
    clock.add(2.0)
    assert metrics.snapshot()["seconds"]["encode_sample"] == pytest.approx(0.0001 + 7 * 0.0003 + 2.0)


def test_a_trace_keeps_each_time() -> None:
    metrics = TracedMetrics("rank 0", 0)
    clock = metrics.clock("load")
    for seconds in (0.0001, 0.0002, 0.0003):
        clock.add(seconds)
    record = metrics.drain()
    assert record is not None
    assert [event.duration_seconds for event in record["events"]] == [0.0001, 0.0002, 0.0003]
    assert record["seconds"]["load"] == pytest.approx(0.0006)
