"""Samples that cannot be read are dropped by name: the dataset, the shard and the key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from energon_dali import TaskEncoder, WorkerConfig, get_savable_loader, get_val_dataset
from tests.loader.dataset_folder import prepare, write_shards


class Bytes(TaskEncoder[Any, Any, Any, Any]):
    decoder = None


def test_what_a_truncated_shard_lost_is_named(tmp_path: Path) -> None:
    samples = {f"k{number}": {"txt": b"x" * 3000} for number in range(8)}
    folder = prepare(write_shards(tmp_path / "data", samples, shards=2), {"text": "txt"}, "TextSample")
    told: list[tuple[str, Any]] = []
    config = WorkerConfig(
        rank=0, world_size=1, num_workers=0, global_error_handler=lambda error, sample, sources: told.append(
            (sample.__key__, sources)
        ),
    )  # fmt: skip
    loader = get_savable_loader(get_val_dataset(folder, batch_size=None, task_encoder=Bytes(), worker_config=config))
    found = iter(loader)
    first = next(found).__key__
    loader.close()  # lets the shards go
    os.truncate(folder / "shard_001.tar", 2 * 4096)
    assert [first, *(sample.__key__ for sample in found)] == ["k0", "k1", "k2", "k3"]
    failures = loader.stats().failures
    assert [(f["stage"], f["dataset"], f["shard"], f["key"]) for f in failures] == [
        ("read", str(folder), "shard_001.tar", key) for key in ("k4", "k5", "k6", "k7")
    ]
    assert [key for key, _ in told] == ["k4", "k5", "k6", "k7"]
    assert [source.index for _, sources in told for source in sources] == [4, 5, 6, 7]
