"""Steps of a job are the same units on any number of ranks, workers and micro-batches, and after every restart."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from energon_dali.errors import ConfigError
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import Cursor, MicroBatch, deal
from energon_dali.plan.mixtures import BlendPlan, EpochizedBlendPlan
from energon_dali.plan.plan import Plan, Rows
from energon_dali.plan.repeated import RepeatedPlan
from energon_dali.plan.scheduled import OVER, Over, ScheduledBlendPlan, WeightChange
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan
from tests.part import sampled
from tests.plan.schedules import linear

MOST = 24
"""Micro-batches of a rank that are looked at in an epoch."""


def source(samples: int, shards: int, *, seed: int = 0, number: int = 0, repeat: bool = True) -> SourcePlan:
    lengths = np.array([samples // shards + (shard < samples % shards) for shard in range(shards)], np.int64)
    slices = Slices(np.arange(shards, dtype=np.int32), np.zeros(shards, np.int64), lengths)
    return SourcePlan(slices, 1, seed, number, repeat=repeat, parallel_shard_iters=8, shuffle_buffer_size=20)


def random_units(draw: random.Random, seed: int) -> Plan:
    repeat = draw.random() < 0.6
    first = source(draw.randint(1, 300), draw.randint(1, 5), seed=seed, repeat=repeat)
    second = source(draw.randint(1, 200), 3, seed=seed, number=1, repeat=repeat)
    if not repeat:
        return EpochizedBlendPlan((RepeatedPlan(first, 1), RepeatedPlan(second, 1.5)), seed, False)
    if draw.random() < 0.5:
        return BlendPlan((first, second), (0.7, 0.3), seed)
    return ScheduledBlendPlan((first, second), linear((0, (1.0, 0.0)), (20, (0.2, 0.8))), seed, 1)


def random_plan(draw: random.Random, units: Plan, size: int, start: Cursor = Cursor()) -> GlobalBatchPlan:  # noqa: B008
    world_size, micro_batch, workers = draw.randint(1, 64), draw.randint(1, 5), draw.randint(1, 4)
    uneven = draw.choice(["ragged", "round_down"])
    if uneven == "ragged":
        world_size = min(world_size, size)
    elif size < world_size * micro_batch:
        world_size, micro_batch = 1, 1
    return GlobalBatchPlan(units, size, micro_batch, world_size, workers, uneven, start=start)  # type: ignore[arg-type]


def delivered(plan: GlobalBatchPlan, rank: int, epoch: int) -> list[MicroBatch]:
    """Returns the micro-batches of a rank in an epoch, in order."""
    count = min(MOST, plan.micro_batches_of_epoch(epoch))
    return [
        plan.micro_batch(rank + plan.world_size * (number % plan.workers), epoch, number // plan.workers)
        for number in range(count)
    ]


@pytest.mark.parametrize("seed", sampled(range(500), 16))
def test_random_jobs(seed: int) -> None:
    draw = random.Random(seed)
    plan = random_plan(draw, random_units(draw, seed), draw.randint(1, 300))
    epochs = 1 if plan.is_endless else 2
    ranks = [[delivered(plan, rank, epoch) for epoch in range(epochs)] for rank in range(plan.world_size)]
    for epoch in range(epochs):
        units: dict[int, list[int]] = defaultdict(list)
        places = [[(one.step.number, one.number) for one in of_rank[epoch]] for of_rank in ranks]
        assert all(of_rank == places[0] for of_rank in places), "all ranks deliver equally many micro-batches"
        for of_rank in ranks:
            for one in of_rank[epoch]:
                assert len(one.units) <= plan.micro_batch_size
                units[one.step.number] += one.units.tolist()
        for one in ranks[0][epoch]:
            step = one.step
            if one.number + 1 == step.micro_batches:
                assert sorted(units[step.number]) == list(range(step.first_unit, step.first_unit + step.size))
    _check_streams(plan, draw, epochs)
    _check_restart(plan, draw, ranks)


def _check_streams(plan: GlobalBatchPlan, draw: random.Random, epochs: int) -> None:
    """The rows of a stream are those of its micro-batches, from any position on."""
    stream = draw.randrange(plan.num_streams)
    for epoch in range(epochs):
        count = min(8, plan.micro_batches_of_stream(stream, epoch))
        made = [plan.micro_batch(stream, epoch, number) for number in range(count)]
        rows = Rows.joined([one.rows for one in made]).as_tuples()
        units = [unit for one in made for unit in one.units.tolist()]
        begin = plan.epoch_start(epoch, stream)
        first = draw.randint(0, len(rows))
        last = draw.randint(first, len(rows))
        assert plan.rows(begin + first, begin + last, stream).as_tuples() == rows[first:last]
        found = plan.places(begin + first, begin + last, stream)
        assert [unit for unit, *_ in found] == units[first:last]


def _check_restart(plan: GlobalBatchPlan, draw: random.Random, ranks: list[list[list[MicroBatch]]]) -> None:
    """A job that continues at a cursor delivers what would have come, on the same ranks and on others."""
    done = draw.randrange(1 + len(ranks[0][0]))
    cursor = plan.cursor(0, done)
    assert plan.cursor_after(cursor.unit) == plan.cursor_after(cursor.unit, cursor.step)
    assert plan.cursor_after(cursor.unit) == replace(cursor, micro_batch=0)
    again = plan.continued(cursor, plan.world_size, draw.randint(1, 4))
    if done < len(ranks[0][0]):
        for rank, of_rank in enumerate(ranks):
            rest = of_rank[0][done:]
            found = delivered(again, rank, 0)[: len(rest)]
            assert [one.units.tolist() for one in found] == [one.units.tolist() for one in rest]
            assert [one.step.number for one in found] == [one.step.number for one in rest]
    size = draw.randint(1, 300)
    start = Cursor(cursor.unit, cursor.step)
    other = random_plan(draw, plan.units, size, start)
    other = other.continued(other.rebased(start, plan.step_size), other.world_size, other.workers)
    first = [delivered(other, rank, 0) for rank in range(other.world_size)]
    units = sorted(
        unit for of_rank in first for one in of_rank if one.step.number == start.step for unit in one.units.tolist()
    )
    if first[0] and first[0][0].step.micro_batches <= len(first[0]):
        assert units == list(range(start.unit, start.unit + len(units)))
        assert len(units) == first[0][0].step.size


@pytest.mark.parametrize(
    ("old", "new", "size", "uneven"), [(64, 56, 448, "error"), (1024, 1016, 4096, "round_down"), (8, 7, 64, "ragged")]
)
def test_a_job_goes_on_with_fewer_ranks(old: int, new: int, size: int, uneven: str) -> None:
    units = BlendPlan((source(5000, 5), source(900, 3, number=1)), (0.6, 0.4), 3)
    before = GlobalBatchPlan(units, size, 1, old, 1, uneven)  # type: ignore[arg-type]
    cursor = before.cursor(0, 3 * before.micro_batches_per_step)
    assert cursor == Cursor(3 * before.step_size, 3)
    after = GlobalBatchPlan(units, size, 1, new, 1, uneven, start=cursor)  # type: ignore[arg-type]
    assert after.step_size == (size if size % new == 0 or uneven == "ragged" else size // new * new)
    step = after.step_at(0, 0)
    dealt = [after.dealt(step, rank).units for rank in range(new)]
    assert sorted(np.concatenate(dealt).tolist()) == list(range(cursor.unit, cursor.unit + after.step_size))
    assert {len(one) for one in dealt} <= {after.step_size // new, after.step_size // new + 1}


def test_units_go_to_the_home_of_their_lane_where_there_is_room() -> None:
    assert deal(np.array([0, 1, 0, 1, 2, 2]), np.array([2, 2, 2])).tolist() == [0, 1, 0, 1, 2, 2]
    assert deal(np.array([0, 0, 0, 1, 0, 2]), np.array([2, 2, 2])).tolist() == [0, 0, 1, 1, 2, 2]
    assert deal(np.array([2, 2, 2, 2]), np.array([2, 1, 1])).tolist() == [2, 0, 0, 1]
    plan = GlobalBatchPlan(source(4000, 40), 64, 8, 4, 1)
    lanes = np.concatenate([plan.dealt(plan.step_at(0, step), 0).rows.lanes for step in range(40)])
    # With eight lanes, rank 0 of 4 is the home of two. The window lets a step have more units of one than of another.
    assert np.isin(lanes, [0, 4]).mean() > 0.8


def test_steps_are_left_out() -> None:
    plan = GlobalBatchPlan(source(100, 3), 10, 5, 2, 1)
    start = Cursor().without_steps(2, 4).without_steps(3, 5).without_steps(7, 8)
    assert start.skipped == ((2, 5), (7, 8))
    skipping = plan.continued(start, 2, 1)
    assert [skipping.step_at(0, number).number for number in range(6)] == [0, 1, 5, 6, 8, 9]
    assert [skipping.step_at(0, number).first_unit for number in range(6)] == [0, 10, 50, 60, 80, 90]
    assert skipping.cursor(0, 2) == Cursor(50, 5, 0, ((7, 8),))
    assert skipping.find_step(3) is None
    assert skipping.find_step(6) == plan.find_step(6)
    assert skipping.find_step(9) == plan.find_step(9)
    within = Cursor(20, 2, 1).without_steps(0, 4)
    assert within.micro_batch == 0


def test_the_last_step_of_an_epoch_is_dealt_evenly_or_dropped() -> None:
    units = source(25, 3, repeat=False)
    plan = GlobalBatchPlan(units, 14, 2, 7, 1, "ragged")
    sizes = [[len(one.units) for one in delivered(plan, rank, 0)] for rank in range(7)]
    assert sizes == [[2, 2]] * 4 + [[2, 1]] * 3
    assert plan.cursor(0, 2) == Cursor(25, 2)
    dropped = GlobalBatchPlan(units, 14, 2, 7, 1, drop_last=True)
    assert [len(one.units) for one in delivered(dropped, 0, 0)] == [2]
    assert dropped.cursor(0, 1) == Cursor(25, 1)


@pytest.mark.parametrize(
    ("size", "ranks", "micro_batch", "uneven", "message"),
    [
        (20, 3, 4, "error", "give 12 or 24"),
        (5, 3, 4, "round_down", "give 12"),
        (
            5,
            3,
            4,
            "error",
            "5 is less than world_size x batch_size = 3 x 4 = 12.*or a smaller batch_size. Or give uneven",
        ),
        (2, 3, 1, "ragged", "at least one sample per rank"),
    ],
)
def test_sizes_that_do_not_fit(size: int, ranks: int, micro_batch: int, uneven: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GlobalBatchPlan(source(10, 1), size, micro_batch, ranks, 1, uneven)  # type: ignore[arg-type]


def test_a_plan_of_several_streams_is_refused() -> None:
    slices = Slices(np.zeros(1, np.int32), np.zeros(1, np.int64), np.array([9], np.int64))
    with pytest.raises(ConfigError, match="num_streams=1"):
        GlobalBatchPlan(SourcePlan(slices, 2, 0, repeat=True), 4, 1, 1, 1)


@pytest.mark.parametrize("over", OVER)
def test_set_weights_take_effect_at_their_step_after_steps_of_another_size(over: Over) -> None:
    members = (source(60, 2), source(25, 1, number=1))
    units = ScheduledBlendPlan(members, linear((0, (1.0, 0.0)), over=over), 3, 1)
    before, plan = GlobalBatchPlan(units, 8, 4, 1, 1), GlobalBatchPlan(units, 24, 4, 1, 1)
    cursor = plan.rebased(before.cursor(0, 12 * before.micro_batches_per_step), before.step_size)
    changed = plan.continued(plan.with_weights(cursor, WeightChange(17, (0.0, 1.0)), "steps"), 1, 1)
    drawn = {number: set(changed.dealt(changed.step_at(0, number - 12), 0).rows.sources) for number in range(12, 22)}
    assert drawn == {number: {int(number >= 17)} for number in range(12, 22)}
    rows = before.resolved_units.rows(0, 96).as_tuples() + changed.resolved_units.rows(96, 400).as_tuples()
    for number, member in enumerate(members):
        own = [row[1:] for row in rows if row[0] == number]
        assert own == [row[1:] for row in member.rows(0, len(own)).as_tuples()]


@pytest.mark.parametrize("seed", sampled(range(40), 8))
def test_random_changes_of_weights_and_sizes_lose_and_repeat_no_row(seed: int) -> None:
    """Weights over steps or samples, changes that are set meanwhile, and steps of other sizes, in random order."""
    draw = random.Random(seed)
    over: Over = draw.choice(OVER)
    members = tuple(source(draw.randint(1, 60), draw.randint(1, 3), seed=seed, number=n) for n in range(3))

    def weights() -> tuple[float, ...]:
        return (draw.choice((0.0, 1.0, 3.0)), draw.random(), draw.choice((0.5, 2.0)))

    scale = 1 if over == "steps" else 60
    points = [(0, weights()), *((at * scale, weights()) for at in sorted(draw.sample(range(1, 60), 3)))]
    schedule = linear(*points, over=over) if draw.random() < 0.7 else linear(points[0])
    units = ScheduledBlendPlan(members, schedule, seed, 1)
    plan = GlobalBatchPlan(units, 60, 5, 1, 1)
    folding = plan
    over_so_far: list[WeightChange] = []
    rows: list[tuple[int, int, int, int]] = []
    wanted = np.zeros(3)
    for _ in range(12):
        count = draw.randint(1, 12)
        for number in range(count):
            step = plan.find_step(plan.start.step + number)
            assert step is not None
            found = plan.dealt(step, 0).rows.as_tuples()
            assert folding.dealt(step, 0).rows.as_tuples() == found
            rows += found
        before, cursor = plan.start, plan.cursor(0, count * plan.micro_batches_per_step)
        compact = folding.cursor(0, count * plan.micro_batches_per_step)
        assert plan.folded(cursor)[0] == plan.folded(compact)[0]
        if draw.random() < 0.5:
            compact, more = plan.folded(compact)
            over_so_far += more
            begun = [one for one in compact.weights if one.at < (cursor.step if over == "steps" else cursor.unit)]
            assert len(begun) <= 1
            earlier = replace(cursor, weights=(*over_so_far, *compact.weights))
            assert plan.folded(earlier)[0] == compact  # what is over can be put before it again
        assert cursor.unit == len(rows)
        resolved = plan.resolved_units
        assert isinstance(resolved, ScheduledBlendPlan)
        part = resolved.wanted_between(before.unit, cursor.unit)
        assert sum(part) == pytest.approx(cursor.unit - before.unit)
        wanted += part
        size = draw.choice((60, 60, 30, 120, 45))
        for turn in ("before", "after"):
            if draw.random() < 0.3:
                later = draw.choice((0, 1, 7)) * (1 if over == "steps" else plan.step_size)
                at = (cursor.step if over == "steps" else cursor.unit) + later
                change = WeightChange(at, weights(), at + draw.randint(1, 20) * scale if draw.random() < 0.5 else None)
                if schedule.changes or not cursor.weights or cursor.weights_over == over:
                    cursor = plan.with_weights(cursor, change, over)
                    compact = plan.with_weights(compact, change, over)
            if turn == "before":
                old_size, plan = plan.step_size, replace(plan, global_batch_size=size)
                cursor, compact = plan.rebased(cursor, old_size), plan.rebased(compact, old_size)
        plan, folding = plan.continued(cursor, 1, 1), plan.continued(compact, 1, 1)
    counts = np.bincount([row[0] for row in rows], minlength=3)
    for number, member in enumerate(members):
        own = [row[1:] for row in rows if row[0] == number]
        assert own == [row[1:] for row in member.rows(0, len(own)).as_tuples()]
    assert np.abs(counts - wanted).max() < 0.06 * len(rows) + 20  # groups that a change cuts short are shuffled
