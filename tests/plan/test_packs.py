"""Packs from known lengths: best fit, windows, and steps that are ranges of packs."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan.global_step import Cursor
from energon_dali.plan.measured_rows import MeasuredRows
from energon_dali.plan.packed_batches import PackedBatchPlan
from energon_dali.plan.packs import PackRule, best_fit
from energon_dali.plan.plan import Plan
from energon_dali.plan.scheduled import OVER, Schedule, ScheduledBlendPlan, WeightChange, WeightPoint
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan
from tests.part import sampled
from tests.plan.schedules import linear


class Values:
    """Lengths in memory."""

    names = ("text_tokens",)

    def __init__(self, lengths: Any, identity: str = "values") -> None:
        self.lengths = np.asarray(lengths, np.int64)
        self.identity = identity
        self.num_samples = len(self.lengths)

    def take(self, name: str, numbers: Any) -> Any:
        return self.lengths[numbers]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def lengths_of(count: int, seed: int = 0) -> Any:
    return 1 + np.random.default_rng(seed).integers(0, 60, count)


def source(count: int, number: int = 0, *, repeat: bool = True, shuffle: bool = True) -> SourcePlan:
    one = Slices(np.zeros(1, np.int32), np.zeros(1, np.int64), np.full(1, count, np.int64))
    options = {"max_samples_per_sequence": 10, "shuffle_buffer_size": 20} if shuffle else {}
    return SourcePlan(one, 1, 5, number, shuffle=shuffle, repeat=repeat, **options)


def packed(units: Plan, counts: list[int], *, rule: PackRule, size: int = 6, **options: Any) -> PackedBatchPlan:
    values = tuple(Values(lengths_of(count, number), str(number)) for number, count in enumerate(counts))
    measured = MeasuredRows(values, tuple(np.zeros(1, np.int64) for _ in counts))
    given: dict[str, Any] = {"micro_batch_size": 1, "world_size": 1, "workers": 1, **options}
    return PackedBatchPlan(units, size, measured=measured, rule=rule, seed=5, **given)


def blend(points: tuple[WeightPoint, ...], over: Any = "steps") -> ScheduledBlendPlan:
    return ScheduledBlendPlan((source(97, 0), source(31, 1)), Schedule(points, over), 5, 6)


def simple_best_fit(lengths: list[int], capacity: int, max_samples: int | None) -> list[list[int]]:
    """Returns the indices in each bin, by the definition: longest first, each into the fullest bin that takes it."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        fitting = [
            (rooms[number], number)
            for number, found in enumerate(bins)
            if rooms[number] >= lengths[index] and len(found) != max_samples
        ]
        if fitting:
            _, number = min(fitting)
        else:
            number = len(bins)
            bins.append([])
            rooms.append(capacity)
        bins[number].append(index)
        rooms[number] -= lengths[index]
    return bins


@given(
    st.lists(st.integers(0, 50), max_size=80),
    st.integers(50, 120),
    st.one_of(st.none(), st.integers(1, 4)),
)
@settings(max_examples=200, deadline=None)
def test_best_fit_is_that_of_the_definition(lengths: list[int], capacity: int, max_samples: int | None) -> None:
    bins, count = best_fit(np.array(lengths, np.int64), capacity, max_samples)
    found = [np.flatnonzero(bins == number).tolist() for number in range(count)]
    assert found == [sorted(group) for group in simple_best_fit(lengths, capacity, max_samples)]


def test_lengths_are_rounded_up_cut_or_left_out() -> None:
    measured = np.array([-1, 0, 1, 8, 9, 60, 64, 65, 200])
    assert PackRule(64, multiple=8).lengths(measured).tolist() == [-1, 0, 8, 8, 16, 64, 64, -1, -1]
    assert PackRule(64, cuts=True).lengths(measured).tolist() == [-1, 0, 1, 8, 9, 60, 64, 64, 64]
    assert PackRule(60, multiple=8, cuts=True).lengths(measured).tolist() == [-1, 0, 8, 8, 16, 56, 56, 56, 56]


@pytest.mark.parametrize("window", [1, 7, 50, 400])
def test_windows_hold_the_rows_of_the_plan_and_packs_fit(window: int) -> None:
    units = source(97)
    plan = packed(units, [97], rule=PackRule(64, window=window, multiple=4))
    for start in range(0, 600, window):
        stop = start + window
        ordered = sorted(plan.resolved_units.rows(start, stop).as_tuples())
        assert ordered == sorted(units.rows(start, stop).as_tuples())
    for number in range(20):
        items = plan.micro_batch_of_step(plan.step_at(0, number), 0, 0).items
        lengths = lengths_of(97)[items.rows.indices]
        assert items.sums(-(-lengths // 4) * 4).max() <= 64


@pytest.mark.parametrize("over", ["steps", "samples"])
@pytest.mark.parametrize("window", [7, 50])
def test_a_plan_continues_at_every_step(over: Any, window: int) -> None:
    points = (
        WeightPoint(0, (1.0, 0.2), WeightPoint(9, (0.1, 1.0))),
        WeightPoint(9, (0.1, 1.0)),
        WeightPoint(15, (1.0, 1.0)),
    )
    if over == "samples":
        points = tuple(
            replace(
                point,
                at=point.at * 15,
                towards=None if point.towards is None else replace(point.towards, at=point.towards.at * 15),
            )
            for point in points
        )
    plan = packed(blend(points, over), [97, 31], rule=PackRule(64, window=window))
    steps = [plan.step_at(0, number) for number in range(30)]
    expected = [plan.dealt(step, 0).rows.as_tuples() for step in steps]
    for number in range(25):
        cursor = plan.cursor(0, number * plan.micro_batches_per_step)
        other = pickle.loads(pickle.dumps(plan)).continued(cursor, 3, 1)
        for later in range(number, min(number + 4, 29)):
            step = other.step_at(0, later - number)
            assert (step.number, step.first_unit, step.size) == (later, steps[later].first_unit, steps[later].size)
            rows = [row for rank in range(3) for row in other.dealt(step, rank).rows.as_tuples()]
            assert sorted(rows) == sorted(expected[later])
        assert plan.cursor_after(number * 6) == cursor


def test_weights_over_steps_are_those_of_the_step_in_which_a_window_begins() -> None:
    points = (WeightPoint(0, (1.0, 0.0)), WeightPoint(4, (0.0, 1.0)))
    plan = packed(blend(points), [97, 31], rule=PackRule(64, window=50))
    packs = plan.resolved_units.packs_of(0)
    late = set()
    for number in range(12):
        window = packs.window(number)
        is_late = plan.step_of(window.start) >= 4
        assert set(window.rows.sources.tolist()) == {int(is_late)}
        late.add(is_late)
    assert late == {False, True}


def test_set_weights_takes_effect_at_a_window() -> None:
    plan = packed(blend((WeightPoint(0, (1.0, 0.0)),)), [97, 31], rule=PackRule(64, window=50))
    cursor = plan.cursor(0, 3 * plan.micro_batches_per_step)
    changed = plan.with_weights(cursor, WeightChange(5, (0.0, 1.0)), "steps")
    other = plan.continued(changed, 1, 1)
    packs = other.resolved_units.packs_of(0)
    for number in range(8):
        window = packs.window(number)
        begun = other.step_of(max(window.start, cursor.unit))
        assert set(window.rows.sources.tolist()) == ({1} if begun >= 5 and window.start > cursor.unit else {0})
    with pytest.raises(ConfigError, match="from_step=2 has begun"):
        plan.with_weights(cursor, WeightChange(2, (0.0, 1.0)), "steps")
    # What is over is folded, and nothing that comes changes.
    later = other.cursor(0, 10 * other.micro_batches_per_step)
    folded, _ = other.folded(later)
    assert folded.base.counts
    for one in (later, folded):
        rows = plan.continued(one, 1, 1)
        assert (
            rows.dealt(rows.step_at(0, 0), 0).rows.as_tuples() == other.dealt(other.step_at(0, 10), 0).rows.as_tuples()
        )


@pytest.mark.parametrize("until", [None, 9])
@pytest.mark.parametrize(
    ("over", "later"),
    [("steps", ()), ("samples", ()), ("steps", (WeightPoint(3, (0.5, 0.5)),))],
    ids=["constant", "constant over samples", "changed before"],
)
def test_weights_set_for_a_step_that_begins_with_a_window_lose_and_repeat_no_sample(
    over: Any, later: tuple[WeightPoint, ...], until: int | None
) -> None:
    units = blend((WeightPoint(0, (1.0, 0.2)), *later), over)
    plan = packed(units, [97, 31], rule=PackRule(64, window=48), micro_batch_size=2)  # a window is two steps
    plan = replace(plan, measured=MeasuredRows((Values([16] * 97), Values([16] * 31)), (np.zeros(1, np.int64),) * 2))
    cursor = plan.cursor(0, 6 * plan.micro_batches_per_step)
    assert cursor.unit % 48 == 0
    changed = plan.with_weights(cursor, WeightChange(6, (0.1, 1.0), until), "steps")
    assert plan.with_weights(changed, WeightChange(6, (0.1, 1.0), until), "steps") == changed
    other = plan.continued(changed, 1, 1)
    rows = plan.resolved_units.rows(0, cursor.unit).as_tuples()
    rows += other.resolved_units.rows(cursor.unit, cursor.unit + 480).as_tuples()
    for number, member in enumerate(units.members):
        own = sorted(row[1:] for row in rows if row[0] == number)
        assert own == sorted(row[1:] for row in member.rows(0, len(own)).as_tuples())
    for passed in range(8):
        later_cursor = other.cursor(0, passed * other.micro_batches_per_step)
        assert other.cursor_after(later_cursor.packs) == later_cursor
        for start in (later_cursor, other.folded(later_cursor)[0]):
            units_after = other.continued(start, 3, 1).resolved_units
            assert units_after.rows(start.unit, cursor.unit + 480).as_tuples() == rows[start.unit :]


def test_weights_set_for_the_first_step_draw_from_the_first_sample() -> None:
    plan = packed(blend((WeightPoint(0, (1.0, 0.2)),)), [97, 31], rule=PackRule(64, window=50))
    cursor = plan.with_weights(plan.start, WeightChange(0, (0.0, 1.0), 9), "steps")
    assert cursor.base == plan.start.base
    plan.continued(cursor, 1, 1).step_at(0, 5)


def test_an_epoch_ends_with_a_smaller_step_or_without_it() -> None:
    for drop_last in (False, True):
        plan = packed(source(97, repeat=False, shuffle=False), [97], rule=PackRule(64, window=40), drop_last=drop_last)
        for epoch in range(3):
            steps = [plan.step_at(epoch, number) for number in range(plan.steps_of_epoch(epoch))]
            units = [unit for step in steps for unit in plan.dealt(step, 0).units.tolist()]
            assert all(step.num_items == 6 for step in steps[:-1])
            if drop_last:
                assert steps[-1].num_items == 6
                assert len(units) < 97
            else:
                assert sorted(units) == list(range(epoch * 97, epoch * 97 + 97))


def test_after_the_last_whole_step_of_an_epoch_the_next_one_follows() -> None:
    plan = packed(source(97, repeat=False), [97], rule=PackRule(64, window=40), drop_last=True)
    packs, steps = plan.resolved_units.packs_of(0).count(), plan.steps_of_epoch(0)
    assert steps * 6 < packs
    cursor = plan.cursor(0, steps * 6)
    assert plan.cursor_after(steps * 6) == cursor == plan.cursor_after(packs)
    assert (cursor.unit, cursor.step, cursor.packs) == (97, steps, packs)
    assert plan.cursor_after(packs + 6) == plan.cursor(1, 6)


def test_rows_of_streams_are_those_of_their_micro_batches() -> None:
    plan = packed(source(97), [97], rule=PackRule(64, window=40), size=12, world_size=2, workers=3, micro_batch_size=2)
    for stream in range(6):
        start = 0
        for number in range(10):
            micro_batch = plan.micro_batch(stream, 0, number)
            stop = start + len(micro_batch.units)
            assert plan.rows(start, stop, stream).as_tuples() == micro_batch.rows.as_tuples()
            places = plan.places(start, stop, stream)
            assert [place[0] for place in places] == micro_batch.units.tolist()
            assert {place[1] for place in places} == {number}
            start = stop


def test_a_dataset_of_which_nothing_fits_is_an_error() -> None:
    plan = packed(source(97), [97], rule=PackRule(1, window=7))
    plan = replace(plan, measured=MeasuredRows((Values(np.full(97, 5)),), (np.zeros(1, np.int64),)))
    with pytest.raises(ConfigError, match="The last 100 windows have no pack"):
        plan.step_at(0, 0)


def lengths_with_gap(count: int, gap: slice) -> Values:
    lengths = np.full(count, 16)
    lengths[gap] = 99
    return Values(lengths, f"{count} {gap}")


@pytest.mark.parametrize("repeat", [True, False])
def test_many_windows_without_a_pack_are_passed_if_packs_follow(repeat: bool) -> None:
    plan = packed(source(3000, repeat=repeat, shuffle=False), [3000], rule=PackRule(64, window=20))
    values = lengths_with_gap(3000, slice(480, 2600))
    plan = replace(plan, measured=MeasuredRows((values,), (np.zeros(1, np.int64),)))
    steps = [plan.step_at(0, number) for number in range(22)]
    assert [step.first_unit for step in steps[:21]] == [*range(0, 480, 24), 2600]
    later = plan.continued(plan.cursor(0, 19 * 6), 1, 1)
    assert [later.step_at(0, number) for number in range(3)] == steps[19:]


def test_windows_without_a_pack_last_long_where_the_samples_that_fit_have_a_small_weight() -> None:
    units = ScheduledBlendPlan(
        (source(40, 0), source(300, 1, shuffle=False)), Schedule((WeightPoint(0, (0.98, 0.02)),)), 5, 6
    )
    plan = packed(units, [40, 300], rule=PackRule(64, window=20))
    values = (lengths_with_gap(40, slice(None)), lengths_with_gap(300, slice(30, 290)))
    plan = replace(plan, measured=MeasuredRows(values, (np.zeros(1, np.int64),) * 2))
    first = [plan.step_at(0, number).first_unit for number in range(7)]
    assert max(np.diff(first)) > 10_000


def test_a_part_of_a_dataset_of_which_nothing_fits_is_an_error() -> None:
    plan = packed(source(3000, shuffle=False), [3000], rule=PackRule(64, window=20))
    values = lengths_with_gap(90_000, slice(3000))  # the others are not of this part
    plan = replace(plan, measured=MeasuredRows((values,), (np.zeros(1, np.int64),)))
    with pytest.raises(ConfigError, match="The last 300 windows have no pack"):
        plan.step_at(0, 0)


def test_an_epoch_without_a_pack_is_an_error() -> None:
    plan = packed(source(97, repeat=False), [97], rule=PackRule(64, window=20))
    plan = replace(plan, measured=MeasuredRows((lengths_with_gap(97, slice(None)),), (np.zeros(1, np.int64),)))
    for use in (lambda: plan.step_at(0, 0), lambda: plan.steps_of_epoch(0), lambda: plan.cursor_after(6)):
        with pytest.raises(ConfigError, match="An epoch has no pack"):
            use()


def test_a_cursor_of_other_windows_is_refused() -> None:
    points = (WeightPoint(0, (1.0, 0.5)), WeightPoint(4, (0.5, 1.0)))
    plan = packed(blend(points), [97, 31], rule=PackRule(64, window=50))
    with pytest.raises(ConfigError, match="the window begins at unit 50"):
        plan.continued(Cursor(unit=60, step=3), 1, 1).step_at(0, 0)


@pytest.mark.parametrize("seed", sampled(range(300), 30))
def test_random_changes_of_weights_and_sizes_lose_and_repeat_no_sample(seed: int) -> None:
    draw = random.Random(seed)

    def weights() -> tuple[float, float]:
        return draw.choice((0.1, 1.0)), draw.choice((0.0, 0.5, 3.0))

    over: Any = draw.choice(OVER)
    scale = 1 if over == "steps" else 40
    points = [(0, weights()), *((at * scale, weights()) for at in sorted(draw.sample(range(1, 40), 3)))]
    schedule = linear(*points[: draw.choice((1, 1, 4))], over=over)
    units = ScheduledBlendPlan((source(97, 0), source(31, 1)), schedule, seed, 1)
    window = draw.choice((5, 24, 48))
    plan = packed(units, [97, 31], rule=PackRule(64, window=window), uneven="ragged")
    if draw.random() < 0.7:  # a step often begins with a window
        plan = replace(
            plan, measured=MeasuredRows((Values([16] * 97), Values([16] * 31)), (np.zeros(1, np.int64),) * 2)
        )
    rows: list[tuple[int, int, int, int]] = []
    for _ in range(8):
        number = draw.randint(0, 9) * plan.micro_batches_per_step
        cursor = plan.cursor(0, number)
        rows += plan.resolved_units.rows(plan.start.unit, cursor.unit).as_tuples()
        folded, _ = plan.folded(cursor)
        for start in (cursor, folded):
            after = plan.continued(start, 1, 1).resolved_units.rows(cursor.unit, cursor.unit + 200)
            assert after.as_tuples() == plan.resolved_units.rows(cursor.unit, cursor.unit + 200).as_tuples()
        cursor = draw.choice((cursor, folded))
        if draw.random() < 0.6:
            of_change: Any = draw.choice(OVER)
            if cursor.weights or schedule.changes:
                of_change = cursor.weights_over if cursor.weights else over
            unit = 1 if of_change == "steps" else 40
            at = plan.first_change(cursor, of_change) + draw.choice((0, 0, 3)) * unit
            until = draw.choice((None, at + draw.randint(1, 20) * unit))
            cursor = plan.with_weights(cursor, WeightChange(at, weights(), until), of_change)
        old, plan = plan.step_size, replace(plan, global_batch_size=draw.choice((6, 6, 12, 3)))
        plan = plan.continued(plan.rebased(cursor, old), 1, 1)
    packs = plan.resolved_units.packs_of(0)
    rows += plan.resolved_units.rows(plan.start.unit, packs.start_of(plan.start.unit) + window).as_tuples()
    for number, member in enumerate(units.members):
        own = sorted(row[1:] for row in rows if row[0] == number)
        assert own == sorted(row[1:] for row in member.rows(0, len(own)).as_tuples())
