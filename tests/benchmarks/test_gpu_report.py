"""The report of a GPU host: what it says of missed bars, failed tests and stages, and that it needs no other file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_report, run
from benchmarks.contestants import BLOCK, CEILING
from benchmarks.gpu_causes import likely_causes
from benchmarks.results import judge_bar, judge_limit, summarise

MACHINE = {
    "processor": "Processor <A&B>",
    "cores": 16,
    "memory_gib": 128,
    "system": "Linux",
    "load_average": [1.0, 1.0, 1.0],
    "gpus": ["NVIDIA H100"],
}
DOCTOR = {
    "checks": [
        {"state": "ok", "name": "driver", "found": "580", "needed_for": "the GPU path", "remedy": ""},
        {
            "state": "missing",
            "name": "NVDEC",
            "found": "no libnvcuvid.so.1",
            "needed_for": "videos on the GPU",
            "remedy": "Set NVIDIA_DRIVER_CAPABILITIES.",
        },
    ]
}


def result(suite: str, name: str, ours: float = 50.0, **numbers: float) -> dict[str, Any]:
    """Returns a workload's result in which our loader reaches a share of a ceiling of 100."""
    (work,) = run.choose(run.parse([suite, "--device", "gpu", "--only", name]))
    usual = {"cpu_milliseconds_per_sample": 1.0, "trainer_blocked_share": 0.01, "slowest_rank_share": 0.95}
    runs = {
        one.name: [{"samples_per_second": ours if one.name == BLOCK else 100.0, **usual, **numbers}] * 2
        for one in work.candidates
    }
    return {
        "name": name,
        "title": work.title,
        "metric": work.metric,
        "unit": work.unit,
        "output": work.output,
        "bytes_per_sample": 1e5,
        "recipe": {"style": work.recipe.style, "mixed_sizes": work.recipe.mixed_sizes},
        "candidates": [
            {"name": one, "left_out": "", "summary": summarise(found), "runs": found} for one, found in runs.items()
        ],
        "bars": [judge_bar(bar, work, runs) for bar in work.bars],
        "limits": [judge_limit(limit, runs) for limit in work.limits],
    }


def missed(work: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(bar for bar in work["bars"] if (bar["of"], bar["to"]) == (BLOCK, CEILING))
    return found


def causes(work: dict[str, Any], doctor: dict[str, Any] | None = None) -> list[str]:
    found = likely_causes(work, missed(work), doctor or {}, MACHINE)
    assert len(found) == 3
    assert len({cause.what for cause in found}) == 3
    assert all(cause.remedy for cause in found)
    return [cause.what for cause in found]


def test_the_numbers_decide_which_causes_are_likely() -> None:
    idle = result("gpu-images", "imagenet-uint8", gpu_percent=20.0, cpu_cores=3.0, trainer_blocked_share=0.4)
    assert causes(idle)[0].startswith("Python, not a decoder")
    full = result("gpu-images", "imagenet-uint8", gpu_percent=20.0, cpu_cores=15.8)
    assert causes(full)[0] == "All cores are busy."
    busy = result("gpu-images", "imagenet-uint8", gpu_percent=99.0, cpu_cores=3.0)
    assert causes(busy)[0] == "The GPU is busy."
    assert causes(result("gpu-video", "short-frames224"), DOCTOR)[0] == "NVDEC is missing."
    assert causes(result("gpu-images", "imagenet-uint8"), DOCTOR)[0] != "NVDEC is missing."
    assert causes(result("gpu-mixed", "webp"))[0].startswith("What no GPU decodes")
    assert causes(result("gpu-mixed", "clips-sizes"))[0].startswith("Videos whose coded size differs")
    ranks = result("gpu-ranks", "all-gpus", slowest_rank_share=0.6, cpu_cores=3.0)
    assert causes(ranks)[0].startswith("Ranks are not equally fast")


def test_runs_that_differ_point_to_other_programs() -> None:
    work = result("gpu-images", "imagenet-uint8")
    work["candidates"][0]["summary"]["samples_per_second"] |= {"low": 50.0, "high": 100.0}
    assert causes(work)[0] == "Something else used the machine."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a call left behind in which a bar was missed, a test failed, and a stage was stopped."""
    report = {"machine": MACHINE, "commit": "abc", "versions": {"own": {"torch": "2.13"}}, "quick": False}
    works = [result("gpu-images", "imagenet-uint8"), result("gpu-images", "imagenet-float224", 95.0)]
    (tmp_path / "gpu-images.json").write_text(json.dumps({**report, "workloads": works}))
    (tmp_path / "gpu-doctor.json").write_text(json.dumps(DOCTOR))
    (tmp_path / "gpu-tests.xml").write_text(
        '<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1"><testcase name="test_colours">'
        "<failure>assert 3 &lt; 2</failure></testcase></testsuite></testsuites>"
    )
    (tmp_path / "gpu-observations.json").write_text(json.dumps({"seen": {"test_codec": {"nvjpeg": [13, 3]}}}))
    (tmp_path / "summary.txt").write_text("device gpu\nvideo  480 s  exit 124  FAILED: stopped after 480 s\n")
    (tmp_path / "video.log").write_text("the last line of the log")
    return tmp_path


def test_the_page_holds_everything_and_refers_to_nothing(folder: Path) -> None:
    assert gpu_report.main([str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "Processor &lt;A&amp;B&gt;" in page
    assert f"{BLOCK} / {CEILING}: 0.50, wanted at least 0.9" in page
    assert page.count("The likeliest causes") == len(
        gpu_report.shortfalls({"images": gpu_report.read_json(folder / "gpu-images.json")})
    )
    assert "Set NVIDIA_DRIVER_CAPABILITIES." in page
    assert "3 tests, 1 failures, 0 errors, 1 skipped" in page
    assert "assert 3 &lt; 2" in page
    assert "the last line of the log" in page
    assert "nvjpeg: [13, 3]" in page
    assert "dry run" not in page
    assert re.findall(r"(?:src|href)=|url\(", page) == []


def test_a_folder_with_little_in_it_gives_a_page_that_says_so(tmp_path: Path, folder: Path) -> None:
    (folder / "gpu-images.json").write_text("{")  # a stage that was killed
    (folder / "gpu-tests.xml").unlink()
    (folder / "gpu-doctor.json").unlink()
    page = "".join(gpu_report.render(folder, "gpu"))
    assert page.count("No result:") == 2
    assert "A dry run" in "".join(gpu_report.render(folder, "cpu"))
