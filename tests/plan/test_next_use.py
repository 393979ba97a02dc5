"""When blocks are needed next, against a walk through the plan."""

from __future__ import annotations

import numpy as np
import pytest

from energon_dali.plan import RepeatedPlan, Slices, SourcePlan
from energon_dali.plan.next_use import NEVER, PlannedUses, UseTable, block_ids, planned_uses
from energon_dali.plan.rng import Int64Array

SAMPLES_PER_BLOCK = 4


def blocks_of(shard: int, samples: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Sample i is in block i // 4; every seventh one reaches into the next block."""
    which = np.arange(len(samples))
    longer = samples % 7 == 0
    first = samples // SAMPLES_PER_BLOCK
    return np.concatenate([which, which[longer]]), np.concatenate([first, first[longer] + 1])


@pytest.mark.parametrize("window", [1, 10, 1000])
@pytest.mark.parametrize("repetitions", [None, 2.5])
def test_uses_are_those_of_the_plan(window: int, repetitions: float | None) -> None:
    source = SourcePlan(Slices.whole_shards([40, 25, 33]), 2, 5, max_samples_per_sequence=9, shuffle_buffer_size=window)
    plan = source if repetitions is None else RepeatedPlan(source, repetitions)
    origin = plan.epoch_start(3, 1)
    expected = []
    for position, (_, shard, sample, _) in enumerate(plan.rows(0, origin, 1).as_tuples()):
        expected.append((position, shard, sample // SAMPLES_PER_BLOCK))
        if sample % 7 == 0:
            expected.append((position, shard, sample // SAMPLES_PER_BLOCK + 1))
    pieces = []
    for start in range(0, origin, 11):
        stop = min(origin, start + 11)
        rows = plan.rows(start, stop, 1)
        pieces.append(planned_uses(rows.shards, rows.indices, np.arange(start, stop), blocks_of))
    uses = PlannedUses.joined(pieces)
    assert sorted(zip(uses.positions.tolist(), uses.shards.tolist(), uses.blocks.tolist(), strict=True)) == sorted(
        expected
    )
    keys = np.array([11, 22, 33], np.uint64)
    table = UseTable.of(block_ids(keys[uses.shards], uses.blocks), uses.positions)
    known = {(shard, block): int(block_ids(keys[[shard]], np.array([block]))[0]) for _, shard, block in expected}
    assert sorted(table.ids.tolist()) == sorted(known.values())
    for now in (0, 1, 17, origin // 2, origin - 1, origin, origin + 5):
        following = dict.fromkeys(known.values(), NEVER)
        for position, shard, block in reversed(expected):
            if position >= now:
                following[known[shard, block]] = position
        found_uses = dict(zip(table.ids.tolist(), table.next_uses(now).tolist(), strict=True))
        assert found_uses == following
        some = next(iter(known.values()))
        assert table.next_use(some, now) == following[some]
    assert table.next_use(12345, 0) == NEVER


def test_merged_uses_keep_the_first_and_the_last_of_each_range() -> None:
    positions = np.arange(100)
    uses = PlannedUses(np.zeros(100, np.int64), positions % 2, positions)
    merged = uses.merged(10)
    assert merged.positions.tolist() == [p for p in range(100) if p % 10 in (0, 1, 8, 9)]
    assert len(PlannedUses.none().merged(10)) == 0
    assert uses.since(97).positions.tolist() == [97, 98, 99]


def test_contradicting_tables_are_refused() -> None:
    table = UseTable.of(np.array([5, 3, 5], np.uint64), np.array([1, 2, 7]))
    assert (table.ids.tolist(), table.starts.tolist()) == ([3, 5], [0, 1, 3])
    for ids, starts, keys in (
        (table.ids[::-1], table.starts, table.keys),
        (table.ids, np.array([0, 2, 3]), table.keys),
        (table.ids, np.array([0, 0, 3]), table.keys),
        (table.ids, table.starts, table.keys[::-1]),
        (table.ids, table.starts, table.keys[:2]),
    ):
        with pytest.raises(ValueError, match="block"):
            UseTable(ids, starts, keys, table.span)
    assert len(UseTable.of(np.zeros(0, np.uint64), np.zeros(0, np.int64)).next_uses(3)) == 0
