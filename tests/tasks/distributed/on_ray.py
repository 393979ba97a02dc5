"""What test_ray runs in a process of its own, on a small cluster of this machine: the example, and `prepare`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import ray

from energon_dali.errors import ShardError
from energon_dali.shards import prepare_dataset
from examples.ray_train import main
from tests.shards.deadly_check import DeadlyCheck
from tests.shards.tars import captions, index_files, write_tar
from tests.tasks.distributed.numbers_task import overrides


def train(folder: Path) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    arguments = overrides(folder, "seen", epochs=3, fails_at=5)
    result = main(["--workers", "2", "--storage", str(folder / "storage"), "--name", "numbers", *arguments])
    assert result.metrics is not None
    assert result.metrics["step"] == 9


def train_with_global_batches(folder: Path) -> None:
    """Trains two epochs of three steps on two workers, and two more on one, which accumulates over two batches."""
    for workers, epochs in ((2, 2), (1, 4)):
        arguments = overrides(folder, f"global-{workers}", epochs=epochs, fails_at=0, global_batch=8)
        arguments += [f"trainer.accumulate_grad_batches={2 // workers}"]
        command = ["--workers", str(workers), "--storage", str(folder / "storage"), "--name", "global"]
        result = main([*command, *arguments])
        assert result.metrics is not None
        assert result.metrics["step"] == 3 * epochs


def prepare(folder: Path) -> None:
    """Prepares the same shards here and on the cluster, where one task ends its process and one always does."""
    here, there, times = folder / "here", folder / "there", folder / "times"
    for root in (here, there):
        captions(root, shards=5)
        write_tar(root / "shard_5.tar", {"x.txt": b"", "x.kill": b""})
    times.write_text("0")
    prepare_dataset(here, split_ratio={"train": 2, "val": 1}, check_part=DeadlyCheck(times))
    times.write_text("1")
    prepare_dataset(there, split_ratio={"train": 2, "val": 1}, check_part=DeadlyCheck(times), ray_address="auto")
    assert times.read_text() == "0"
    assert index_files(there) == index_files(here)
    times.write_text("100")
    with pytest.raises(ShardError, match=r"1 of 6 shards(?s:.*)- shard_5\.tar ended each process"):
        prepare_dataset(there, check_part=DeadlyCheck(times), ray_address="auto")
    assert times.read_text() == "97"


if __name__ == "__main__":
    train(Path(sys.argv[1]))
    train_with_global_batches(Path(sys.argv[1]))
    prepare(Path(sys.argv[1]) / "prepare")
