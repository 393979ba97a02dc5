from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import capacity
from benchmarks.contestants import BLOCK
from benchmarks.environments import ROOT


def report(cost: float, rate: float, **machine: Any) -> dict[str, Any]:
    summary = {"cpu_milliseconds_per_sample": {"median": cost}, "samples_per_second": {"median": rate}}
    return {
        "command": "python -m benchmarks.run gpu-images",
        "started": "2026-01-02T03:04:05",
        "commit": "abc",
        "machine": {"processor": "P", "cores": 2, "load_average": [0.5, 0, 0], **machine},
        "workloads": [
            {
                "name": "one",
                "title": "Files, to pixels, batches of 4, on the CPU",
                "unit": "samples/s",
                "bytes_per_sample": 100_000.0,
                "candidates": [{"name": BLOCK, "summary": summary}],
            }
        ],
    }


def test_the_page_shows_what_the_results_say() -> None:
    page = (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")
    assert page == capacity.refresh(page, capacity.make_tables(capacity.RESULTS)), (
        "Run python -m benchmarks.capacity docs/capacity.md"
    )


def test_without_a_gpu_its_columns_stay_open(tmp_path: Path) -> None:
    (tmp_path / "cpu-images.json").write_text(json.dumps(report(2.0, 500)))
    tables = capacity.make_tables(tmp_path)
    assert "- GPU: not measured yet" in tables
    assert "| Files, to pixels | 100 | 2.00 | not measured yet | not measured yet | not measured yet |" in tables
    # 8 GPUs x 1000 samples/s x 100 KB are 0.8 GB/s, or 6.4 Gbit/s; 8000 samples/s x 2 ms are 16 cores.
    assert "| Files, to pixels | 0.8 / 6.4 / 102.4 | 6.4 | 16 | not measured yet | not measured yet |" in tables
    assert "| Files, to pixels | not measured yet | not measured yet | not measured yet |" in tables


def test_a_gpu_that_was_measured_fills_them(tmp_path: Path) -> None:
    (tmp_path / "cpu-images.json").write_text(json.dumps(report(2.0, 500)))
    (tmp_path / "gpu-images.json").write_text(json.dumps(report(0.1, 10_000, gpus=["G"])))
    tables = capacity.make_tables(tmp_path)
    assert "P, 2 cores, G, load 0.5" in tables
    assert "| Files, to pixels | 10,000 | 8.0 / 64.0 / 1,024.0 | 8 |" in tables
    (tmp_path / "gpu-images.json").write_text(json.dumps({**report(0.1, 10_000, gpus=["G"]), "quick": True}))
    assert "- GPU: not measured yet" in capacity.make_tables(tmp_path)


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="no place for the tables"):
        capacity.main([str(page), "--results", str(tmp_path)])
    page.write_text(f"before {capacity.BEGIN} old {capacity.END} after")
    assert capacity.main([str(page), "--results", str(tmp_path)]) == 0
    assert "old" not in page.read_text()
    assert page.read_text().startswith("before")
    assert page.read_text().endswith("after")
