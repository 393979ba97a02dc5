from __future__ import annotations

import pytest

from energon_dali.datasets.trace import TracedMetrics


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
