"""The example of planned and balanced packs: its losses do not depend on the ranks, and it continues on fewer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.examples.packed_ranks import LEFT, STEPS

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(400)  # forked processes with torch, perhaps on a busy machine
def test_losses_are_those_of_one_process_on_four_and_then_on_two(warm_python: str, tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [warm_python, "-m", "tests.examples.packed_ranks", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    whole, four, two = lines[:STEPS], lines[STEPS : STEPS + LEFT], lines[STEPS + LEFT :]
    assert [line["step"] for line in whole] == [*range(STEPS)]
    assert [(line["step"], len(line["costs"])) for line in four] == [(step, 4) for step in range(LEFT)]
    assert [(line["step"], len(line["costs"])) for line in two] == [(step, 2) for step in range(LEFT, STEPS)]
    assert [line["tokens"] for line in [*four, *two]] == [line["tokens"] for line in whole]
    assert [line["loss"] for line in [*four, *two]] == pytest.approx([line["loss"] for line in whole], rel=1e-9)
    assert whole[-1]["loss"] < whole[0]["loss"]
    for line in [*four, *two]:  # relative to the mean of the ranks
        assert sum(line["costs"]) == pytest.approx(len(line["costs"]), abs=0.03)
