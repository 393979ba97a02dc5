"""What test_ray runs in a process of its own: the example, on a small cluster of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import ray

from examples.ray_train import main
from tests.tasks.distributed.numbers_task import overrides


def train(folder: Path) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    arguments = overrides(folder, "seen", epochs=3, fails_at=5)
    result = main(["--workers", "2", "--storage", str(folder / "storage"), "--name", "numbers", *arguments])
    assert result.metrics is not None
    assert result.metrics["step"] == 9


if __name__ == "__main__":
    train(Path(sys.argv[1]))
