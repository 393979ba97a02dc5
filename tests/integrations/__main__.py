"""Runs every recipe at every step of an epoch, with and without workers, and kills its processes each time.

python -m tests.integrations [--part 1/4]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.integrations.phases import (
    FEW,
    check_global_steps,
    check_resume,
    global_jobs,
    killed_global_jobs,
    number_shards,
    phases_of,
)
from tests.integrations.test_trainers import GLOBAL_NAMES, NAMES, ROOT, steps_of_one_rank
from tests.part import WHOLE, Part


def main() -> int:
    """Prints a line for each combination; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=Part.parse, default=WHOLE, help="such as 1/4: every fourth combination")
    part: Part = parser.parse_args().part
    began, failed = time.monotonic(), 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for workers, save_at in part.of([(workers, save_at) for workers in (0, 1) for save_at in (1, 3, 5, 6, 7, 10)]):
        with tempfile.TemporaryDirectory(prefix="energon-dali-trainers-") as folder:
            root = Path(folder)
            data = number_shards(root / "data")
            number_shards(root / "few", FEW)
            phases = phases_of(NAMES, save_at=save_at, kill_at=save_at + 1, workers=workers, kill_each=True)
            command = [sys.executable, "-m", "tests.integrations.pair", str(data), str(root), json.dumps(phases)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            wrong = [name for name in NAMES if not _is_exact(root / name)] if done.returncode == 0 else list(NAMES)
        failed += bool(wrong)
        print(f"saved after step {save_at}, {workers} workers: {', '.join(wrong) or 'all exact'}", flush=True)
        if done.returncode:
            print(done.stderr.partition("nanobind")[0][-4000:])
    for workers, save_at in part.of([(workers, save_at) for workers in (0, 1) for save_at in (1, 2, 3, 5)]):
        wrong = _wrong_global_recipes(workers, save_at, environment)
        failed += bool(wrong)
        print(
            f"global batches saved after step {save_at}, {workers} workers: {', '.join(wrong) or 'all exact'}",
            flush=True,
        )
    print(f"{failed} combinations failed. {time.monotonic() - began:.0f} s in all.")
    return 1 if failed else 0


def _wrong_global_recipes(workers: int, save_at: int, environment: dict[str, str]) -> list[str]:
    """Returns the recipes with global batches that do not continue a checkpoint of two ranks on 1, 2 and 4."""
    with tempfile.TemporaryDirectory(prefix="energon-dali-trainers-") as folder:
        root, fields = Path(folder), {"save_at": save_at, "workers": workers}
        data = number_shards(root / "data")
        phases = [killed_global_jobs(GLOBAL_NAMES, **fields)]
        phases += [global_jobs(GLOBAL_NAMES, world, resume=True, **fields) for world in (1, 2, 4)]
        command = [sys.executable, "-m", "tests.integrations.pair", str(data), str(root), json.dumps(phases)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr.partition("nanobind")[0][-4000:])
            return list(GLOBAL_NAMES)
        expected = steps_of_one_rank(data)
        return [
            f"{name} on {world}"
            for name in GLOBAL_NAMES
            for world in (1, 2, 4)
            if not _passes(lambda: check_global_steps(root / name, expected, world, save_at))  # noqa: B023
        ]


def _is_exact(folder: Path) -> bool:
    return _passes(lambda: check_resume(folder))


def _passes(check: Callable[[], None]) -> bool:
    try:
        check()
    except AssertionError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
