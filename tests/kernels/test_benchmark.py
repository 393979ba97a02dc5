"""The kernels' benchmark: every implementation is checked before it is timed, and results are held to their bars."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import kernels, plot_gpu, plot_kernels
from benchmarks.kernel_cases import CASES
from benchmarks.kernel_cases.case import KernelCase, Size


@pytest.mark.parametrize("operation", sorted(CASES))
def test_every_way_equals_the_reference_bit_for_bit(operation: str) -> None:
    for case in CASES[operation]("cpu", ["small"]):
        wanted = case.reference()
        ways = {"ours": case.ours, **case.pytorch}
        assert {name: kernels.what_is_wrong(run, wanted) for name, run in ways.items()} == dict.fromkeys(ways, "")
        assert case.bytes_moved > sum(tensor.numel() * tensor.element_size() for tensor in wanted) - 300  # cu_seqlens


def case_of(ours: Callable[[], Any], size: Size = "large") -> KernelCase:
    tensor = torch.arange(4)
    return KernelCase(
        operation="o",
        size=size,
        variant="v",
        shapes="s",
        bytes_moved=1000,
        ours=ours,
        reference=lambda: [tensor],
        pytorch={"right": lambda: [tensor], "wrong": lambda: [tensor + 1], "broken": lambda: [tensor.view(3)]},
    )


def test_what_is_wrong_is_not_timed() -> None:
    wrong = kernels.measure(case_of(lambda: [torch.arange(4).int()]), "cpu", 1, 1e9, dry_run=False)
    assert wrong["error"] == "Output 0 differs from the reference."
    assert not wrong["ways"]
    assert "WRONG" in kernels.as_text(wrong)
    right = kernels.measure(case_of(lambda: [torch.arange(4)]), "cpu", 1, 1e9, dry_run=False)
    assert list(right["ways"]) == ["energon_dali", "PyTorch: right"]
    assert right["left_out"]["PyTorch: broken"].startswith("RuntimeError: shape")


@pytest.mark.parametrize(
    ("size", "microseconds", "met"),
    [("large", 1.2, True), ("large", 1.3, False), ("small", 9, True), ("small", 11, False)],
)
def test_large_inputs_are_judged_by_bandwidth_and_small_ones_by_the_fastest_other(
    size: Size, microseconds: float, met: bool
) -> None:
    def way(time: float) -> dict[str, float]:
        return {"device_microseconds": time, "call_microseconds": time, "gigabytes_per_second": 1 / time}

    result: dict[str, Any] = {
        "copy_gigabytes_per_second": 1.0,
        "met": None,
        "ways": {"energon_dali": way(microseconds), "PyTorch: a": way(10), "PyTorch: b": way(50)},
    }
    kernels.judge(case_of(list, size), result, dry_run=False)
    assert result["met"] is met
    assert result["call_speedup"] == pytest.approx(10 / microseconds)


def test_a_dry_run_leaves_a_report_and_a_chart_that_say_so(tmp_path: Path) -> None:
    report = tmp_path / "kernels.json"
    assert kernels.main(["--device", "cpu", "--only", "pack_tokens", "--json", str(report)]) == 0
    told = json.loads(report.read_text())
    assert told["dry_run"] is True
    assert [case["met"] for case in told["cases"]] == [None]
    assert plot_kernels.main([str(report), str(tmp_path / "kernels.png")]) == 0
    assert (tmp_path / "kernels.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="no numbers to draw"):
        plot_kernels.plot({**told, "cases": []}, tmp_path / "none.png")


def test_the_chart_of_a_gpu_is_drawn_from_results_of_one_and_from_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no gpu-images.json or gpu-video.json"):
        plot_gpu.merged(tmp_path)
    way = {"name": "energon_dali", "summary": {"samples_per_second": {"median": 9, "low": 8, "high": 10}}}
    panel = {"title": "t", "unit": "u", "metric": "samples_per_second", "better": "higher", "candidates": [way]}
    machine = {"processor": "p", "cores": 16, "memory_gib": 128, "gpus": ["H200"]}
    report = {
        "device": "gpu",
        "machine": machine,
        "versions": {},
        "started": "2026-11-21",
        "commit": "c",
        "workloads": [panel],
    }
    for name in plot_gpu.NAMES:
        (tmp_path / name).write_text(json.dumps(report))
    assert plot_gpu.merged(tmp_path)["workloads"] == [panel, panel]
    assert plot_gpu.main([str(tmp_path), str(tmp_path / "gpu.png")]) == 0
    assert (tmp_path / "gpu.png").stat().st_size > 1000
    for other in ({"device": "cpu"}, {"machine": {**machine, "gpus": ["H100"]}}):
        (tmp_path / "gpu-video.json").write_text(json.dumps({**report, **other}))
        with pytest.raises(ValueError, match="all must be of one host with a GPU"):
            plot_gpu.merged(tmp_path)
    (tmp_path / "gpu-video.json").write_text(json.dumps({**report, "quick": True}))
    with pytest.raises(ValueError, match="results of a quick run"):
        plot_gpu.merged(tmp_path)
