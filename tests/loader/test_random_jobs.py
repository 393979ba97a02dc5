"""Steps of random jobs with global batches in real processes; see `random_jobs`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.loader.random_jobs import write_damaged
from tests.part import sampled

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_damaged(tmp_path_factory.mktemp("damaged"))


@pytest.mark.timeout(300)  # on a busy machine
@pytest.mark.parametrize("seed", sampled(range(30), 30))
def test_a_random_job_has_the_steps_of_one_rank(folder: Path, warm_python: str, seed: int) -> None:
    """In its own process, because it forks, which a process with threads should not do."""
    command = [warm_python, "-m", "tests.loader.random_jobs", str(folder), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.startswith(f"job {seed}: ")
