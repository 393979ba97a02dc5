"""The runner from the command line to the plot, with few samples; its numbers mean nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environments, plot, run, workload_run
from benchmarks.candidates.task import RESULT, Task
from benchmarks.contestants import BLOCK, CEILING
from benchmarks.data.recipe import make_dataset
from benchmarks.environments import CandidateError, Outcome, python_of, run_candidate

pytestmark = pytest.mark.timeout(400)  # a program per candidate on what may be a busy machine


@pytest.fixture(scope="module")
def report_path(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    path = folder / "cpu.json"
    candidates = ["--candidates", "bare DALI, HWC", "energon_dali PIL", "megatron"]
    arguments = ["cpu", "--quick", "--only", "uint8", "import", *candidates]
    for work in run.choose(run.parse(arguments)):
        make_dataset(work.recipe, folder, progress=False, processes=1)  # starting others takes longer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm_python)
        code = run.main([*arguments, "--json", str(path), "--cache", str(folder)])
    assert code == 0
    return path


def test_every_candidate_was_checked_and_timed(report_path: Path) -> None:
    report = json.loads(report_path.read_text())
    assert report["machine"]["cores"] >= 1
    assert report["command"].startswith("python -m benchmarks.run cpu --quick")
    assert report["versions"]["own"]["torch"]
    uint8 = next(work for work in report["workloads"] if work["name"] == "uint8")
    ran = {one["name"]: one for one in uint8["candidates"] if not one["left_out"]}
    assert {"bare DALI, HWC", "energon_dali PIL, 2 workers"} <= set(ran)
    for one in ran.values():
        assert one["samples_checked"] >= 128
        assert len(one["runs"]) == 1
        assert one["summary"]["samples_per_second"]["median"] > 0


def test_a_run_that_is_ended_leaves_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a machine is lent for short: `timeout` sends SIGTERM, which raises SystemExit here."""
    ran: list[str] = []

    def ends_in_the_second(task: Task, python: Path, **options: Any) -> Outcome:
        if ran:
            raise SystemExit(143)
        ran.append(task.program)
        return Outcome({"samples_per_second": 7.0, "samples_checked": 1.0}, {})

    monkeypatch.setattr(workload_run, "run_candidate", ends_in_the_second)
    path = tmp_path / "gpu.json"
    words = ["gpu-images", "--quick", "--only", "imagenet-uint8", "--cache", str(tmp_path), "--json", str(path)]
    with pytest.raises(SystemExit):
        run.main([*words, "--candidates", CEILING, BLOCK])
    (work,) = json.loads(path.read_text())["workloads"]
    rates = {one["name"]: [each["samples_per_second"] for each in one["runs"]] for one in work["candidates"]}
    assert rates == {CEILING: [7.0], BLOCK: []}


def test_the_report_becomes_a_chart(report_path: Path, tmp_path: Path) -> None:
    png = tmp_path / "deep" / "cpu.png"
    assert plot.main([str(report_path), str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("trainer", set()),
        (
            "video",
            {
                "megatron-energon AVDecoder",
                "megatron-energon loader",
                "torchcodec",
                "PyAV, seeking",
                "PyAV, decoding up to it",
            },
        ),
    ],
)
def test_a_chart_tells_ours_from_others(name: str, others: set[str]) -> None:
    report = json.loads((environments.ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    candidates = [one for work in report["workloads"] for one in work["candidates"]]
    assert {one["name"] for one in candidates if not plot.is_ours(one)} == others


def test_a_report_without_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every candidate was left out"):
        plot.plot({"workloads": []}, tmp_path / "x.png")


def test_a_candidate_that_fails_says_why(tmp_path: Path) -> None:
    python = python_of("own")
    assert python is not None
    task = Task(
        program="pil_memory",
        action="check",
        dataset=str(tmp_path),
        output="uint8",
        batch_size=1,
        warmup_samples=1,
        samples=1,
    )
    with pytest.raises(CandidateError, match=r"ended with 1:(.|\n)*facts\.json"):
        run_candidate(task, python)


def test_a_candidate_finds_what_lies_on_the_python_path_and_another_python_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host without an index everything but torch is carried there, and named by PYTHONPATH."""
    program, carried, other = tmp_path / "benchmarks" / "candidates", tmp_path / "site", tmp_path / "python"
    for folder in (program, carried):
        folder.mkdir(parents=True)
    (program / "__main__.py").write_text(
        f'import carried_here\nprint("{RESULT}" + \'{{"numbers": {{"found": 1.0}}, "versions": {{}}}}\')\n'
    )
    (carried / "carried_here.py").touch()
    other.symlink_to(sys.executable)
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(carried))
    task = Task(program="any", action="time", dataset="", output="none", batch_size=1, warmup_samples=0, samples=0)
    python = python_of("own")
    assert python is not None
    assert run_candidate(task, python).numbers == {"found": 1.0}
    with pytest.raises(CandidateError, match="No module named 'carried_here'"):
        run_candidate(task, other)


def test_without_its_environment_energon_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENERGON_PYTHON", "/nowhere/python")
    assert python_of("energon") is None


def test_against_another_checkout_our_candidates_run_twice_and_others_once(tmp_path: Path) -> None:
    (workload,) = (one for one in run.SUITES["cpu"] if one.name == "uint8")
    both = run.against(workload, tmp_path / "before")
    ours = [one.name for one in workload.candidates if one.options.get("library") == "energon_dali"]
    assert ours
    assert [one.name for one in both.candidates if one.checkout] == [f"{name} (before)" for name in ours]
    assert {one.name for one in both.candidates} == {one.name for one in workload.candidates} | {
        f"{name} (before)" for name in ours
    }
    assert {(bar.of, bar.to) for bar in both.bars} >= {(name, f"{name} (before)") for name in ours}


def test_a_new_checkout_is_compiled_before_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "energon_dali").mkdir()
    (tmp_path / "energon_dali" / "loader.py").write_text("x = 1\n")
    run.compile_modules(tmp_path)
    assert list((tmp_path / "energon_dali" / "__pycache__").glob("loader.*.pyc"))
