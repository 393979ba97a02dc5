"""Hits of a shard cache with room for a part of the data: by plan, by least recent use, and the most possible.

    python -m benchmarks.remote.shard_cache [--blocks 400] [--epochs 4] [--share 0.5]

Counts, not times: the result is the same on every machine.
"""

from __future__ import annotations

import argparse
import heapq
import io
import json
import tarfile
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from energon_dali import ShardCache
from energon_dali.cache.shard_cache.block_file import PAGE_BYTES, file_bytes
from energon_dali.plan import Slices, SourcePlan
from energon_dali.shards import WebdatasetFolder, prepare_dataset
from energon_dali.shards.storage.store import ReadScope, read_scope

BLOCK_BYTES = 64 << 10
SHARDS = 4
ORDERS: dict[str, dict[str, Any]] = {
    "file order": {"shuffle": False},
    "shuffled slices of 10": {"max_samples_per_sequence": 10},
    "slices, window 100": {"max_samples_per_sequence": 10, "shuffle_buffer_size": 100},
    "window over everything": {"shuffle_buffer_size": 1 << 20},
}


def write_shards(folder: Path, blocks: int) -> WebdatasetFolder:
    """Writes a dataset in which each sample is one block of its shard."""
    folder.mkdir()
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(blocks // SHARDS):
                member = tarfile.TarInfo(f"{shard}-{number:05}.bin")
                member.size = BLOCK_BYTES - 512
                tar.addfile(member, io.BytesIO(bytes(member.size)))
    prepare_dataset(str(folder), split_patterns=[("train", ".*")])
    return WebdatasetFolder(str(folder))


def requests_of(order: SourcePlan, epochs: int) -> list[tuple[int, int]]:
    """Returns (shard, block) of what a stream reads."""
    rows = order.rows(0, order.epoch_start(epochs))
    return list(zip(rows.shards.tolist(), rows.indices.tolist(), strict=True))


def hits_of_cache(folder: WebdatasetFolder, order: SourcePlan, epochs: int, room: int, *, by_plan: bool) -> int:
    """Returns the hits of the cache."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as home:
        limit = room * file_bytes(BLOCK_BYTES) + file_bytes(BLOCK_BYTES) - PAGE_BYTES
        cache = ShardCache(home, max_bytes=limit, block_bytes=BLOCK_BYTES, fill_requests=0, cache_local=True)
        with read_scope(ReadScope(count=lambda name, amount: counts.update({name: amount}), shard_cache=cache)):
            files = [cache.open(folder.root / name) for name in folder.shard_names]
            follower = cache.follow(order, 0, {0: (folder, None)}, 0) if by_plan else None
            for row, (shard, block) in enumerate(requests_of(order, epochs)):
                if follower is not None:
                    follower.advance(row + 1)
                    assert cache.wait_until_planned(60)
                files[shard].read_at(block * BLOCK_BYTES + 512, 100)
            if follower is not None:
                follower.close()
    return counts["shard_cache.hits"]


def most_hits(requests: list[tuple[int, int]], room: int) -> int:
    """Returns the most hits of any cache, by Belady's rule applied to the list of requests itself."""
    positions: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for position, block in enumerate(requests):
        positions[block].append(position)
    kept: dict[tuple[int, int], int] = {}
    order: list[tuple[int, tuple[int, int]]] = []
    hits = 0
    for position, block in enumerate(requests):
        hits += block in kept
        later = positions[block]
        index = bisect_right(later, position)
        following = later[index] if index < len(later) else len(requests) + position
        kept[block] = following
        heapq.heappush(order, (-following, block))
        while len(kept) > room:
            negative, last = heapq.heappop(order)
            if kept.get(last) == -negative:
                del kept[last]
    return hits


def main() -> None:
    """Prints a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.5)
    options = parser.parse_args()
    rows = []
    room = int(options.blocks * options.share)
    with tempfile.TemporaryDirectory() as home:
        folder = write_shards(Path(home) / "data", options.blocks)
        base = Slices.whole_shards([options.blocks // SHARDS] * SHARDS)
        for name, settings in ORDERS.items():
            order = SourcePlan(base, 1, 0, **settings)
            requests = requests_of(order, options.epochs)
            by_plan = hits_of_cache(folder, order, options.epochs, room, by_plan=True)
            by_use = hits_of_cache(folder, order, options.epochs, room, by_plan=False)
            row = {"order": name, "requests": len(requests), "by plan": by_plan, "least recent use": by_use}
            rows.append({**row, "most possible": most_hits(requests, room)})
            print(rows[-1], flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
