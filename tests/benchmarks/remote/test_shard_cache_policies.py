"""The simulation of shard caches against results that are known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.remote.shard_cache_policies import (
    BLOCK_BYTES,
    NEVER,
    Dataset,
    compare,
    following,
    reads_of,
)
from energon_dali.plan.source import SourcePlan

WHOLE_BLOCKS = Dataset(4, 10, BLOCK_BYTES)
"""Each sample is a block."""


@pytest.mark.parametrize("settings", [{"shuffle": False}, {"shuffle_buffer_size": 1 << 20}])
def test_half_of_what_comes_again_is_local_where_each_block_comes_once_per_epoch(settings: dict[str, object]) -> None:
    plan = SourcePlan(WHOLE_BLOCKS.slices, 1, 0, repeat=True, **settings)  # type: ignore[arg-type]
    found = compare(plan, [0], [WHOLE_BLOCKS], 0.5, 3)
    assert found["keep"] == found["by plan"] == found["by epoch"] == pytest.approx(2 / 3, abs=1e-3)
    assert found["LRU"] > found["keep"]


def test_nothing_is_read_again_where_everything_fits() -> None:
    plan = SourcePlan(WHOLE_BLOCKS.slices, 2, 0, repeat=True)
    assert set(compare(plan, [0, 1], [WHOLE_BLOCKS], 1.0, 4).values()) == {0.25}


def test_a_node_of_several_gains_by_what_it_needs_next() -> None:
    dataset = Dataset(40, 10, BLOCK_BYTES)
    plan = SourcePlan(dataset.slices, 2, 0, repeat=True)
    found = compare(plan, [0], [dataset], 0.5, 6)
    assert found["by plan"] < 0.9 * found["keep"]
    assert found["by epoch"] < 0.9 * found["keep"]


def test_samples_are_divided_among_blocks_to_the_byte() -> None:
    dataset = Dataset(2, 7, BLOCK_BYTES // 3 * 2 + 5)
    plan = SourcePlan(dataset.slices, 2, 0, repeat=True)
    reads = reads_of(plan, [0, 1], 14, [dataset])
    bytes_of_blocks = np.bincount(reads.blocks, weights=reads.sizes)
    assert (bytes_of_blocks == 2 * reads.block_sizes).all(), "two epochs"


def test_next_use_at_a_later_time() -> None:
    blocks, times = np.array([3, 1, 3, 3, 1]), np.array([0, 0, 0, 1, 2])
    assert following(blocks, np.arange(5)).tolist() == [2, 4, 3, NEVER, NEVER]
    assert following(blocks, times).tolist() == [1, 2, 1, NEVER, NEVER]
