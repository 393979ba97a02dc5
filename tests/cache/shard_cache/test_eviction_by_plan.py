"""Eviction by plan: as many hits as any cache of the same size could have, found by trying everything."""

from __future__ import annotations

import io
import tarfile
from functools import cache as memoized
from pathlib import Path

import pytest

from energon_dali.cache.shard_cache.block_file import PAGE_BYTES, file_bytes
from energon_dali.plan import Slices, SourcePlan
from energon_dali.shards.folder import WebdatasetFolder
from energon_dali.shards.reader import ShardReader
from tests.cache.shard_cache.shards import BLOCK, cache_of, counted, files_in
from tests.loader.dataset_folder import prepare


def block_dataset(folder: Path, shards: int, samples: int) -> WebdatasetFolder:
    """Creates a dataset in which sample i of a shard is exactly block i of it."""
    folder.mkdir()
    for shard in range(shards):
        with tarfile.open(folder / f"shard_{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard * samples, (shard + 1) * samples):
                member = tarfile.TarInfo(f"k{number:03d}.txt")
                member.size = BLOCK - 512
                tar.addfile(member, io.BytesIO(bytes([number]) * member.size))
    prepare(folder, {"text": "txt"}, "TextSample")
    return WebdatasetFolder(str(folder))


def most_hits(requests: list[tuple[int, int]], capacity: int) -> int:
    """Returns the most hits of a cache that starts empty and may or may not keep what it fetched: tries everything."""

    @memoized
    def best(position: int, kept: frozenset[tuple[int, int]]) -> int:
        if position == len(requests):
            return 0
        block = requests[position]
        if block in kept:
            return 1 + best(position + 1, kept)
        choices = [kept]
        if len(kept) < capacity:
            choices.append(kept | {block})
        else:
            choices += [kept - {victim} | {block} for victim in kept]
        return max(best(position + 1, choice) for choice in choices)

    return best(0, frozenset())


def lru_hits(requests: list[tuple[int, int]], capacity: int) -> int:
    """Returns the hits of a cache that evicts what was not used for longest."""
    kept: dict[tuple[int, int], None] = {}
    hits = 0
    for block in requests:
        hits += block in kept
        kept.pop(block, None)
        kept[block] = None
        if len(kept) > capacity:
            kept.pop(next(iter(kept)))
    return hits


def room_for(blocks: int) -> int:
    """Returns the size of a cache with room for a number of blocks, and for what else it writes."""
    return blocks * file_bytes(BLOCK) + file_bytes(BLOCK) - PAGE_BYTES


@pytest.mark.parametrize(("window", "lanes", "seed"), [(1, 1, 0), (4, 1, 1), (100, 1, 2), (6, 3, 3)])
def test_half_the_data_has_the_hits_of_the_optimum(tmp_path: Path, window: int, lanes: int, seed: int) -> None:
    folder = block_dataset(tmp_path / "far", 2, 6)
    order = SourcePlan(
        Slices.whole_shards([6, 6]),
        1,
        seed,
        max_samples_per_sequence=2,
        shuffle_buffer_size=window,
        parallel_shard_iters=lanes,
    )
    rows = order.rows(0, order.epoch_start(4))
    blocks = list(zip(rows.shards.tolist(), rows.indices.tolist(), strict=True))
    hits = {}
    for followed in (True, False):
        home = tmp_path / f"cache-{followed}"
        cache = cache_of(home, room_for(6), fill_requests=0)
        reader = ShardReader(folder)
        files = [cache.open(folder.root / name, None) for name in folder.shard_names]
        follower = cache.follow(order, 0, {0: (reader.folder, None)}, 0) if followed else None
        with counted() as counts:
            for number, (shard, block) in enumerate(blocks):
                if follower is not None:
                    follower.advance(number + 1)
                    assert cache.wait_until_planned(10)
                content = files[shard].read_at(block * BLOCK + 512, 100)
                assert content == bytes([shard * 6 + block]) * 100
        if follower is not None:
            follower.close()
        hits[followed] = counts["hits"]
        assert sum(files_in(home).values()) <= room_for(6)
    # What is read after the last epoch counts for the cache, and not for the optimum: the last epoch may differ.
    assert hits[False] == lru_hits(blocks, 6)
    assert hits[True] == most_hits(blocks, 6), "more or fewer hits than the optimum"
    assert hits[True] > hits[False]
