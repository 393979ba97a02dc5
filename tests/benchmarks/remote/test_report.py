from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.remote import plot, tables

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


def test_tables_are_replaced_and_others_stay() -> None:
    names = "jpeg-20ms samples_per_second bytes_fetched_over_wanted"
    page = f"a\n<!-- figures {names} -->\nold\n<!-- end of figures -->\nb\n"
    other = "<!-- figures text-20ms samples_per_second -->\nkept\n<!-- end of figures -->\n"
    filled = tables.fill(page + other, report())
    assert filled.startswith(
        f"a\n<!-- figures {names} -->\n\n| | samples/s | bytes fetched / wanted |\n|---|---:|---:|\n"
    )
    assert "| energon_dali, window 1 | 1,234 (1,233 to 1,235) | 1.25 |\n" in filled
    assert "| energon_dali, window 100 | 50.5 (49.5 to 51.5) | 1.25 |\n" in filled
    assert "old" not in filled
    assert "absent" not in filled
    assert filled.endswith("\n<!-- end of figures -->\nb\n" + other)
    assert tables.fill(filled, report()) == filled


def test_a_chart_is_drawn(tmp_path: Path) -> None:
    plot.plot(report(), tmp_path / "deep" / "remote.png")
    assert (tmp_path / "deep" / "remote.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no lines to draw"):
        plot.plot({"workloads": []}, tmp_path / "none.png")


def test_every_table_of_the_page_names_a_workload_and_its_metrics() -> None:
    from benchmarks.remote import workloads as remote
    from benchmarks.scale import streams
    from benchmarks.scale import workloads as scale

    page = (Path(__file__).parents[3] / "docs" / "remote.md").read_text()
    found = [match["names"].split() for match in tables.MARK.finditer(page)]
    assert found
    for name, *metrics in found:
        assert name in {work.name for work in (*remote.WORKLOADS, *scale.WORKLOADS, *streams.WORKLOADS)}
        assert set(metrics) <= tables.HEADINGS.keys()
