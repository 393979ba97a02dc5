from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.remote import plot

MACHINE = {"processor": "any", "cores": 2}


def candidate(name: str, series: str, at: float, speed: float) -> dict[str, Any]:
    spread = {"median": speed, "low": speed - 1, "high": speed + 1}
    summary = {"samples_per_second": spread, "bytes_fetched_over_wanted": {"median": 1.25, "low": 1.25, "high": 1.25}}
    return {"name": name, "series": series, "at": at, "summary": summary if speed else {}}


def report() -> dict[str, Any]:
    workload = {
        "name": "jpeg-20ms",
        "title": "JPEGs",
        "metric": "samples_per_second",
        "unit": "samples/s",
        "x_label": "window",
        "candidates": [
            candidate("energon_dali, window 1", "energon_dali", 1, 1234.0),
            candidate("energon_dali, window 100", "energon_dali", 100, 50.5),
            candidate("bound: whole shards", "", 0, 2000.0),
            candidate("absent", "", 0, 0.0),
        ],
    }
    return {"workloads": [workload], "machine": MACHINE, "started": "2026-11-22", "commit": "x", "quick": False}


def test_a_chart_is_drawn(tmp_path: Path) -> None:
    plot.plot(report(), tmp_path / "deep" / "remote.png")
    assert (tmp_path / "deep" / "remote.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no lines to draw"):
        plot.plot({"workloads": []}, tmp_path / "none.png")
