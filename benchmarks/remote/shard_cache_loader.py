"""Bytes that the ranks of a node read from an S3 server through a shard cache, epoch by epoch.

    python -m benchmarks.remote.shard_cache_loader [--nodes 2] [--ranks 1] [--room 0.5] [--batch-seconds 0.04]

What is printed is bytes read from the store / bytes of the shards that the node reads in an epoch. How slowly batches
are taken would matter to a cache that fetches ahead. `shard_cache_policies` computes what a policy can reach.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from random import Random

from benchmarks.remote.s3_server import S3Server
from energon_dali import DefaultTaskEncoder, ShardCache, WorkerConfig, get_savable_loader, get_train_dataset
from tests.loader.dataset_folder import prepare, write_shards

BLOCK_BYTES = 64 << 10
SMALL_FILES_BYTES = 400_000
"""What a cache of this size writes besides blocks."""
BATCH_SIZE = 4


def write_dataset(folder: Path, shards: int, samples: int, sample_bytes: int) -> int:
    """Writes a dataset of random text; returns the size of its shards in bytes."""
    random = Random(0)
    content = {
        f"k{number:06d}": {"txt": random.randbytes(sample_bytes // 2).hex().encode()}
        for number in range(shards * samples)
    }
    write_shards(folder, content, shards)
    prepare(folder, {"text": "txt"}, "TextSample")
    return sum(path.stat().st_size for path in folder.glob("*.tar"))


def main() -> None:
    """Prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2, help="of the job; one of them is measured")
    parser.add_argument("--ranks", type=int, default=1, help="on each node, which share its cache")
    parser.add_argument("--room", type=float, default=0.5, help="of the data, on each node")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-seconds", type=float, default=0.04, help="pause after each batch")
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--samples", type=int, default=20, help="in each shard")
    parser.add_argument("--sample-bytes", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    streams = options.nodes * options.ranks
    with tempfile.TemporaryDirectory() as scratch, S3Server(Path(scratch) / "buckets") as server:
        os.environ.update(server.environment())
        total = write_dataset(server.folder / "data" / "texts", options.shards, options.samples, options.sample_bytes)
        loaders = []
        for rank in range(options.ranks):
            dataset = get_train_dataset(
                "s3://data/texts",
                worker_config=WorkerConfig(
                    rank=rank, world_size=streams, num_workers=0, num_streams=streams, seed_offset=options.seed
                ),
                batch_size=BATCH_SIZE,
                shuffle_buffer_size=options.window,
                max_samples_per_sequence=None,
                task_encoder=DefaultTaskEncoder(),
                repeat=True,
            )
            cache = ShardCache(
                Path(scratch) / "cache",
                max_bytes=int(options.room * total) + SMALL_FILES_BYTES,
                block_bytes=BLOCK_BYTES,
            )
            loaders.append(get_savable_loader(dataset, shard_cache=cache, read_ahead_bytes=2 << 20))
        iterators = [iter(loader) for loader in loaders]
        shares, before = [], 0
        for _ in range(options.epochs):
            for _ in range(options.shards * options.samples // BATCH_SIZE // streams):
                for iterator in iterators:
                    next(iterator)
                time.sleep(options.batch_seconds)
            remote = sum(loader.stats().counts.get("shard_cache.bytes_remote", 0) for loader in loaders)
            shares.append(round((remote - before) * options.nodes / total, 3))
            before = remote
        for loader in loaders:
            loader.close()
    mean = round(sum(shares) / len(shares), 3)
    print(json.dumps({**vars(options), "remote bytes by epoch": shares, "remote bytes": mean}))


if __name__ == "__main__":
    main()
