"""The example of ranks that share their batches: a mesh of four trains, and two of them read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(command: list[str], folder: Path) -> str:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.sweep
@pytest.mark.timeout(400)  # interpreters with torch, perhaps on a busy machine
def test_a_mesh_trains_and_tensor_parallel_ranks_follow(warm_python: str, tmp_path: Path) -> None:
    run([warm_python, "-m", "energon_dali", "demo-data", "data"], tmp_path)
    program = [str(ROOT / "examples" / "shared_ranks.py"), "data/captions"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    printed = run([*torchrun, *program, "--tensor-parallel", "2"], tmp_path)
    kinds = dict(re.findall(r"^rank (\d): (\w+)$", printed, re.MULTILINE))
    assert kinds == {"0": "ReaderLoader", "1": "FollowerLoader", "2": "ReaderLoader", "3": "FollowerLoader"}
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 3
    alone = run([warm_python, *program], tmp_path)
    assert "rank 0: SavableDataLoader" in alone
