"""Loaders with a cache of shards, on an object store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.remote.s3_server import S3Server
from energon_dali import DefaultTaskEncoder, ShardCache, WorkerConfig, get_savable_loader, get_train_dataset
from energon_dali.shards.storage import StoragePath, buckets
from tests.cache.shard_cache.shards import BLOCK, block_files, counted
from tests.loader.dataset_folder import prepare, write_shards

SAMPLES = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("buckets")
    samples = {f"k{number:03d}": {"txt": f"{number} ".encode() * 3000} for number in range(SAMPLES)}
    write_shards(folder / "data" / "texts", samples, 3)
    prepare(folder / "data" / "texts", {"text": "txt"}, "TextSample")
    with S3Server(folder) as running:
        yield running


@pytest.fixture(autouse=True)
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name in [name for name in os.environ if name.startswith(("AWS_", "MSC_"))]:
        monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(buckets, "_buckets", {})
    server.reset()
    return server


def loader_of(cache: ShardCache | None, num_workers: int = 0, **options: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_streams=2)
    dataset = get_train_dataset(
        "s3://data/texts",
        worker_config=config,
        batch_size=4,
        shuffle_buffer_size=8,
        max_samples_per_sequence=10,
        task_encoder=DefaultTaskEncoder(),
        repeat=True,
    )
    # The data is small: by default, dozens of epochs of it would be requested ahead.
    return get_savable_loader(dataset, shard_cache=cache, read_ahead_bytes=1 << 20, **options)


def cache_at(folder: Path, size: int | str = "64MiB", **options: Any) -> ShardCache:
    return ShardCache(folder, max_bytes=size, block_bytes=BLOCK, **options)


def contents(batches: Any) -> list[tuple[list[str], list[str]]]:
    return [(list(batch.__key__), list(batch.text)) for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_second_epoch_reads_no_remote_byte(tmp_path: Path, server: S3Server, num_workers: int) -> None:
    with loader_of(None) as plain:
        expected = contents(islice(plain, 3 * SAMPLES // 4))
    server.reset()
    with loader_of(cache_at(tmp_path / "cache"), num_workers) as loader:
        found = contents(islice(loader, SAMPLES // 4 + 8))  # what workers make ahead is of the second epoch by then
        first = loader.stats().counts
        found += contents(islice(loader, 3 * SAMPLES // 4 - len(found)))
        last = loader.stats().counts
    shards = sum(StoragePath.of(f"s3://data/texts/shard_{number:03d}.tar").size() for number in range(3))
    assert found == expected
    # A worker that waited too long for a block that another one fetches reads past the cache.
    assert 0 < last["shard_cache.bytes_remote"] <= shards * max(1, num_workers)
    assert last["shard_cache.bytes_remote"] == first["shard_cache.bytes_remote"]
    assert last["shard_cache.hits"] > first["shard_cache.hits"]
    with loader_of(cache_at(tmp_path / "cache"), num_workers) as again:
        assert contents(islice(again, len(expected))) == expected
        assert again.stats().counts.get("shard_cache.bytes_remote", 0) == 0


def test_a_restore_at_any_batch_continues_exactly(tmp_path: Path) -> None:
    with loader_of(None) as plain:
        expected = contents(islice(plain, 46))
    cache = cache_at(tmp_path / "cache", 5 * (BLOCK + 4096))  # less than half of the data
    with loader_of(cache) as loader:
        found, states = [], []
        for batch in islice(loader, 40):
            found += contents([batch])
            states.append(loader.save_state_rank())
    assert found == expected[:40]
    for number in range(1, 40, 8):
        with loader_of(cache) as loader:
            loader.restore_state_rank(states[number])
            assert contents(islice(loader, 5)) == expected[number + 1 : number + 6]


def test_a_replaced_object_is_never_mixed_with_its_old_blocks(tmp_path: Path, server: S3Server) -> None:
    file = server.folder / "data" / "object"
    path = StoragePath.of("s3://data/object")
    contents = [bytes([number]) * (6 * BLOCK) for number in range(3)]
    file.write_bytes(contents[0])
    cache = cache_at(tmp_path / "cache", cache_local=True)
    reader = cache.open(path, 6 * BLOCK)
    assert reader.read_at(0, 2 * BLOCK) == contents[0][: 2 * BLOCK]
    file.write_bytes(contents[1])
    # The first request after the change notices it: no block of the old version is used with one of the new.
    assert reader.read_at(BLOCK, 3 * BLOCK) == contents[1][: 3 * BLOCK]
    assert reader.read_at(0, 6 * BLOCK) == contents[1]
    assert len(block_files(tmp_path / "cache")) == 6
    file.write_bytes(contents[2])
    with counted() as counts:
        assert cache_at(tmp_path / "cache").open(path, 6 * BLOCK).read_at(0, 6 * BLOCK) == contents[2]
    assert counts["bytes_remote"] == 6 * BLOCK


def test_a_shard_in_the_cache_needs_one_request_per_job(tmp_path: Path, server: S3Server) -> None:
    path = StoragePath.of("s3://data/texts/shard_000.tar")
    size = path.size()
    cache_at(tmp_path / "cache").open(path, size).read_at(0, size)
    server.reset()
    for _ in range(3):
        reader = cache_at(tmp_path / "cache").open(path, size)
        reader.read_at(0, size)
        reader.read_at(0, 10)
    assert server.counters()["requests"] == {"HEAD": 3}
