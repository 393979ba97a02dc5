"""The example on Ray: two workers, of which one fails, and a run that goes on from the last checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.core.tiny_run import NumbersDataModule, data_config, numbers_dataset

ROOT = Path(__file__).parents[3]


@pytest.mark.sweep  # a cluster takes as long as hundreds of other tests
@pytest.mark.timeout(600)  # a cluster of a dozen processes on what may be a busy machine
def test_the_example_trains_and_continues_after_a_worker_failed(tmp_path: Path) -> None:
    numbers_dataset(tmp_path / "data", 60)
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "500",  # a busy machine is not a failure
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    done = subprocess.run(
        [sys.executable, "-m", "tests.tasks.distributed.on_ray", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    ranks = [lines_of(tmp_path / "seen" / f"rank-{rank}.jsonl") for rank in (0, 1)]
    for lines in ranks:
        # The epochs of three steps: the second failed after its second step, and ran again from its beginning.
        steps = [step for step, _, _ in lines]
        assert steps in ([1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 4, 5, 6, 7, 8, 9])
        again = steps.index(4, 4)
        assert lines[again : 2 * again - 3] == lines[3:again]
        del lines[3:again]

    whole = NumbersDataModule(data_config(tmp_path / "data", virtual_epoch_length=0)).train_dataloader()
    expected = [list(batch.__key__) for batch in islice(whole, 18)]
    whole.close()
    assert [keys for pair in zip(*ranks, strict=True) for _, keys, _ in pair] == expected
    check_global_batches(tmp_path)


def check_global_batches(folder: Path) -> None:
    """Checks that steps of two workers, and of one that continued, are those of one loader."""
    steps: dict[int, list[str]] = defaultdict(list)
    for file in (*(folder / "global-2").iterdir(), *(folder / "global-1").iterdir()):
        previous = 0 if file.parent.name == "global-2" else 6
        for number, (_, keys, _) in enumerate(lines_of(file)):
            steps[previous + number // (1 if previous == 0 else 2)] += keys
    config = data_config(folder / "data", batch_size=8, global_batch_size=8, num_streams=None, virtual_epoch_length=0)
    whole = NumbersDataModule(config).train_dataloader()
    expected = {number: sorted(batch.__key__) for number, batch in enumerate(islice(whole, 12))}
    whole.close()
    assert {number: sorted(keys) for number, keys in steps.items()} == expected


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]
