"""`benchmarks/gpu.sh`: what it starts, where, and how it treats failures.

A program that replaces Python records the calls.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTING = """#!/usr/bin/env bash
[[ $1 != -V ]] || exit 0
[[ $1 != -c ]] || exit 1
test -f energon_dali/kernels/pad_stack/kernel.py && test ! -e kernels || exit 9
echo "$PWD ${PYTHONPATH%%:*} ${FAIL_WITHOUT_CUDA:-} $*" >>"$NOTES"
[[ $2 != pytest ]] || exit 3
"""


def run(tmp_path: Path, *words: str) -> tuple[int, str, list[list[str]]]:
    """Returns the exit status, the output, and the arguments of each program that was started."""
    python, notes = tmp_path / "python", tmp_path / "notes"
    python.write_text(NOTING)
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python), "NOTES": str(notes)}
    done = subprocess.run(
        ["bash", str(ROOT / "benchmarks" / "gpu.sh"), *words],
        env=environment,
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    started = [line.split(" ") for line in notes.read_text().splitlines()] if notes.exists() else []
    return done.returncode, done.stdout + done.stderr, started


def test_every_stage_runs_in_a_copy_and_a_failure_stops_no_other(tmp_path: Path) -> None:
    status, said, started = run(tmp_path, "out")
    assert status == 1
    tree = str(tmp_path / "out" / "work" / "tree")
    assert {(words[0], words[1], words[2]) for words in started} == {(tree, tree, ""), (tree, tree, "1")}
    assert [words[4] for words in started] == [
        "energon_dali",
        "pytest",
        "benchmarks.kernels",
        *["benchmarks.run"] * 5,
        "benchmarks.tuning",
        "benchmarks.run",
        "benchmarks.gpu_report",
    ]
    suites = [words[5] for words in started if words[4] == "benchmarks.run"]
    assert suites == ["gpu-images", "gpu-mixed", "gpu-video", "gpu-vision", "gpu-ranks", "growth"]
    assert started[-1][5:] == [str(tmp_path / "out"), "--device", "gpu"]  # also after a failure
    assert [words[2] for words in started if words[4] == "pytest"] == ["1"]  # a missing GPU is a failure
    assert started[1][-2:] == ["-W", "default"]  # versions other than CI's give other warnings
    files = {word for words in started for word in words if word.endswith((".json", ".xml"))}
    assert {Path(file).parent for file in files} == {tmp_path / "out"}
    assert all(Path(file).name.startswith("gpu-") for file in files)
    summary = (tmp_path / "out" / "summary.txt").read_text().splitlines()[1:]
    stages = ["doctor", "tests", "kernels", "images", "mixed", "video", "vision", "ranks", "profile", "growth"]
    assert [line.split()[0] for line in summary] == stages
    assert [line.split()[-1] for line in summary] == ["ok", "FAILED", *["ok"] * 8]
    assert "summary" in said
    assert not (tmp_path / "out" / "work").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "python", "notes"}  # nothing is written elsewhere


def test_chosen_stages_of_a_dry_run_keep_their_work(tmp_path: Path) -> None:
    status, _, started = run(
        tmp_path, "out", "--stage", "images", "kernels", "--device", "cpu", "--quick", "--work", "w"
    )
    assert status == 0
    *stages, report = started
    assert [words[4] for words in stages] == ["benchmarks.run", "benchmarks.kernels"]
    assert all("--quick" in words and words[words.index("--device") + 1] == "cpu" for words in stages)
    assert all(any(word.startswith(f"{tmp_path}/out/cpu-") for word in words) for words in stages)
    assert report[4:] == ["benchmarks.gpu_report", f"{tmp_path}/out", "--device", "cpu"]
    assert (tmp_path / "w" / "tree" / "COMMIT").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Give the folder"),
        (["out", "--stage", "none"], "there are: doctor tests"),
        (["a", "b"], "too much"),
        (["out", "--device", "tpu"], "neither gpu nor cpu"),
        (["out", "--fast"], "not an option"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, words: list[str], message: str) -> None:
    status, said, started = run(tmp_path, *words)
    assert (status, started) == (2, [])
    assert message in said
    assert not (tmp_path / "out").exists()
