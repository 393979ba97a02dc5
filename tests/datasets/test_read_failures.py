"""Samples that cannot be read are dropped, and named by dataset, shard and key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    DaliDecoder,
    DefaultTaskEncoder,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_dali.cli.media_options import check_image
from energon_dali.datasets.native_rows import RowPlanner
from energon_dali.errors import DatasetFormatError
from energon_dali.shards import ShardReader, prepare_dataset
from tests.loader.dataset_folder import captioning_dataset, prepare, write_shards
from tests.quiet import quiet


class Bytes(TaskEncoder[Any, Any, Any, Any]):
    decoder = None


def test_samples_lost_in_a_truncated_shard_are_named(tmp_path: Path) -> None:
    samples = {f"k{number}": {"txt": b"x" * 3000} for number in range(8)}
    folder = prepare(write_shards(tmp_path / "data", samples, shards=2), {"text": "txt"}, "TextSample")
    told: list[tuple[str, Any]] = []
    config = WorkerConfig(
        rank=0,
        world_size=1,
        num_workers=0,
        global_error_handler=lambda error, sample, sources: told.append((sample.__key__, sources)),
    )
    loader = get_savable_loader(get_val_dataset(folder, batch_size=None, task_encoder=Bytes(), worker_config=config))
    found = iter(loader)
    first = next(found).__key__
    loader.close()  # closes the shards
    os.truncate(folder / "shard_001.tar", 2 * 4096)
    assert [first, *(sample.__key__ for sample in found)] == ["k0", "k1", "k2", "k3"]
    failures = loader.stats().failures
    assert [(f["stage"], f["dataset"], f["shard"], f["key"]) for f in failures] == [
        ("read", str(folder), "shard_001.tar", key) for key in ("k4", "k5", "k6", "k7")
    ]
    assert [key for key, _ in told] == ["k4", "k5", "k6", "k7"]
    assert [source.index for _, sources in told for source in sources] == [4, 5, 6, 7]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_invalid_index_ends_the_run(tmp_path: Path, workers: int) -> None:
    samples = {f"k{number}": {"txt": b"x"} for number in range(8)}
    folder = prepare(write_shards(tmp_path / "data", samples, shards=2), {"text": "txt"}, "TextSample")
    for name in ("extents.bin", "index.sqlite"):
        (folder / ".nv-meta" / name).unlink()
    index = folder / "shard_001.tar.idx"
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=1, global_error_handler=quiet)
    dataset = get_val_dataset(folder, batch_size=1, task_encoder=Bytes(), worker_config=config)
    index.write_bytes(index.read_bytes()[:-3])
    with get_loader(dataset, start_method="fork") as loader, pytest.raises(DatasetFormatError, match="shard_001"):
        list(loader)
    assert loader.stats().counts.get("samples.failed", 0) == 0, "if one sample were dropped, all of them would be"


def test_the_native_feed_ends_the_run_for_such_an_index_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = captioning_dataset(tmp_path / "data", 8)
    prepare_dataset(str(folder), split_ratio={"train": 1.0}, check_part=check_image)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=quiet)
    encoder = DefaultTaskEncoder()
    encoder.decoder = DaliDecoder(feed="native", image_decode_device="cpu")
    dataset = get_train_dataset(folder, task_encoder=encoder, worker_config=config, parallel_shard_iters=1)
    monkeypatch.setattr(RowPlanner, "add", lambda *_: None)  # the samples that DALI does not read come from the reader
    monkeypatch.setattr(ShardReader, "read", lambda *_: [DatasetFormatError("the index is damaged")])
    with pytest.raises(DatasetFormatError, match="the index is damaged"):
        next(iter(get_loader(dataset)))
