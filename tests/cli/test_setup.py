"""`make setup`: what it chooses for a driver, and what remains when it fails. Nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints-ci.txt"):
        shutil.copy(ROOT / name, folder / name)
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"},
    )


@pytest.mark.parametrize(
    ("driver", "torch", "extra"),
    [
        ("echo 570.86.15", "torch==2.10.0", "cuda12"),
        ("echo 580.95.05; echo 580.95.05", "torch==2.13.0", "cuda13"),
        ("exit 9", "torch==2.13.0", "cuda12"),
    ],
)
def test_torch_and_dali_follow_the_driver(driver: str, torch: str, extra: str, tmp_path: Path) -> None:
    program(tmp_path / "bin/nvidia-smi", driver)
    said = make(tmp_path, "-n", "setup").stdout
    assert f" {torch} &&" in said
    assert f"[{extra},dev]" in said
    said = make(tmp_path, "-n", "setup", "TORCH=torch==2.9.1 --index-url https://x", "DALI=cuda12").stdout
    assert "torch==2.9.1 --index-url https://x &&" in said
    assert "[cuda12,dev]" in said


def test_triton_is_the_one_that_torch_wants() -> None:
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints-ci.txt").read_text().splitlines()}
    assert not pinned & {"torch", "triton"}


def test_a_setup_that_fails_leaves_no_environment(tmp_path: Path) -> None:
    program(tmp_path / "fake/python", "exit 1")
    copy = f"mkdir -p .venv/bin; cp {tmp_path}/fake/python .venv/bin/"
    program(tmp_path / "bin/python3", f'[ "$1" = -c ] || {{ {copy}; }}')
    done = make(tmp_path, "setup")
    assert done.returncode != 0
    assert "The environment was not made" in done.stdout
    assert not (tmp_path / ".venv").exists()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/.up-to-date").touch()
    os.utime(tmp_path / ".venv/.up-to-date", (0, 0))
    assert make(tmp_path, "setup").returncode != 0
    assert (tmp_path / ".venv/.up-to-date").exists()  # it was complete once: a failed update removes nothing


def test_the_gpu_script_passes_over_an_environment_without_torch(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks/gpu.sh", tmp_path / "benchmarks")
    program(tmp_path / ".venv/bin/python", "exit 1")
    done = subprocess.run(
        [str(tmp_path / "benchmarks/gpu.sh"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if name != "PYTHON"},
    )
    assert ".venv is not complete" in done.stderr
