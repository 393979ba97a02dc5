"""Loaders whose statistics hold something of everything."""

from __future__ import annotations

from typing import Any

from energon_dali import WorkerConfig, get_loader
from energon_dali.loader.statistics import LoaderStatistics
from tests.loader.numbers_dataset import tree


def everything() -> LoaderStatistics:
    """Returns statistics in which no field is empty."""
    counts = {
        "samples.read": 1000,
        "bytes.read": 5_000_000,
        "blocks": 40,
        "samples.skipped": 7,
        "skipped.encode_sample": 5,
        "skipped.filter": 2,
        "samples.failed": 3,
        "failed.decode": 3,
        "shard_cache.hits": 30,
        "shard_cache.misses": 10,
        "shard_cache.bytes_local": 3_000,
        "shard_cache.bytes_remote": 1_000,
        "shard_cache.evicted_bytes": 500,
        "decode_process.batches": 20,
        "decode_process.bytes": 9_000,
        'made by a "user\'s" dataset\\\n': 11,
    }
    failure = {"stage": "decode", "reason": "[red]not an image[/]\nat all", "shard": "a.tar", "key": "k1"}
    return LoaderStatistics(
        batches=21,
        elapsed_seconds=12.5,
        blocked_seconds=0.5,
        first_batch_seconds=2.5,
        starting_seconds=2.5,
        stage_seconds={"read": 1.5, "load": 4.0, "encode_sample": 6.5, "rank": 3.0},
        cpu_seconds={"read": 0.5, "load": 3.5, "encode_sample": 6.0, "rank": 2.0},
        core_wait_seconds=0.75,
        idle_seconds={"worker 0": 1.25, "worker 1": 0.5},
        routes={"pil": 900, "dali-cpu": 97},
        block_bytes=4_000_000,
        blend={
            "/data/a": {"samples": 750, "share": 0.75, "units": 3000, "unit_share": 0.6},
            "/data/b": {"samples": 250, "share": 0.25, "units": 2000, "unit_share": 0.4},
        },
        planned_blend={
            "/data/a": {"wanted": 76.5, "planned": 75, "wanted_share": 0.765, "planned_share": 0.75},
            "/data/b": {"wanted": 23.5, "planned": 25, "wanted_share": 0.235, "planned_share": 0.25},
        },
        retries={"s3://bucket": 2},
        requests={"requests": 100, "bytes_wanted": 4_000, "bytes_fetched": 5_000, "in_flight": 3.5},
        counts=counts,
        failures=[failure],
        failure_kinds={"decode: DecodeError at x.py:1": 3},
        gpu_memory_bytes={"allocated": 1 << 30, "reserved": 2 << 30},
    )


def numbers_loader(*, rank: int = 0, world_size: int = 1, length: int = 100) -> Any:
    """Returns a loader of numbers in this process."""
    config = WorkerConfig(rank=rank, world_size=world_size, num_workers=0, num_streams=2 * world_size)
    return get_loader(tree(config, lengths=[length] * 2 * world_size))


def full_loader(**options: Any) -> Any:
    """Returns a loader whose statistics are `everything`."""
    loader = numbers_loader(**options)
    loader.stats = everything
    return loader
