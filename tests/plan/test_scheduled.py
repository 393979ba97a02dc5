from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan.draws import floor_sum
from energon_dali.plan.scheduled import FIRST, Base, Schedule, ScheduledBlendPlan, WeightChange, WeightPoint
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan
from tests.plan.schedules import linear


def source(number: int, num_streams: int = 1) -> SourcePlan:
    slices = Slices(np.arange(3, dtype=np.int32), np.zeros(3, np.int64), np.array([40, 40, 20 + number], np.int64))
    return SourcePlan(slices, num_streams, seed=5, source=number, repeat=True, shuffle_buffer_size=10)


def blend(schedule: Schedule, step_size: int = 100, base: Base = FIRST) -> ScheduledBlendPlan:
    members = tuple(source(number) for number in range(len(schedule.points[0].weights)))
    return ScheduledBlendPlan(members, schedule, 3, step_size, base)


_RISE = WeightPoint(500, (0.2, 0.8, 0.0))
_LEVEL = WeightPoint(1000, (1.0, 1.0, 1.0))
RAMP = Schedule((WeightPoint(0, (0.8, 0.1, 0.1), _RISE), _RISE, WeightPoint(700, (1.0, 0.0, 3.0), _LEVEL), _LEVEL))


@given(st.integers(0, 60), st.integers(1, 40), st.integers(-100, 100), st.integers(0, 100))
def test_floor_sums_of_functions_that_fall(count: int, modulus: int, factor: int, offset: int) -> None:
    assert floor_sum(count, modulus, factor, offset) == sum((factor * n + offset) // modulus for n in range(count))


def test_shares_follow_the_schedule() -> None:
    plan = blend(RAMP)
    sources = plan.rows(0, 120_000).sources
    for first in range(0, 120_000, 10_000):
        wanted = np.mean([RAMP.shares((first + n + 0.5) / 100) for n in range(0, 10_000, 10)], axis=0)
        given_ = np.bincount(sources[first : first + 10_000], minlength=3) / 10_000
        assert np.abs(given_ - wanted).max() < 0.01
    integral = np.mean([RAMP.shares((n + 0.5) / 100) for n in range(100_000)], axis=0)
    assert np.abs(np.bincount(sources[:100_000], minlength=3) / 100_000 - integral).max() < 0.001


def test_members_lose_and_repeat_no_row() -> None:
    plan = blend(RAMP)
    rows = plan.rows(0, 60_000)
    for number in range(3):
        own = rows.take(np.flatnonzero(rows.sources == number))
        expected = plan.members[number].rows(0, len(own))
        assert own.indices.tolist() == expected.indices.tolist()
        assert own.passes.tolist() == expected.passes.tolist()


@given(st.integers(0, 119_999), st.integers(0, 3000))
def test_any_range_is_the_same(start: int, count: int) -> None:
    plan = blend(RAMP)
    whole = _whole()
    found = plan.rows(start, min(start + count, 120_000))
    assert found.as_tuples() == whole[start : start + count]
    sources = [row[0] for row in whole[:start]]
    assert plan.counts_at(start) == tuple(sources.count(number) for number in range(3))


def _whole(kept: list[list[tuple[int, int, int, int]]] = []) -> list[tuple[int, int, int, int]]:  # noqa: B006
    if not kept:
        kept.append(blend(RAMP).rows(0, 120_000).as_tuples())
    return kept[0]


def test_steps_of_another_size_continue_at_the_next_row_of_each_plan() -> None:
    first = blend(RAMP)
    unit = 312 * 100
    base = first.rebased(312, unit)
    assert base == Base(312, unit, unit, first.counts_at(unit))
    second = replace(first, base=base, step_size=250)
    assert second.unit_of(700) == unit + (700 - 312) * 250
    both = np.concatenate([first.rows(0, unit).indices, second.rows(unit, unit + 40_000).indices])
    sources = np.concatenate([first.rows(0, unit).sources, second.rows(unit, unit + 40_000).sources])
    for number in range(3):
        own = both[sources == number]
        assert own.tolist() == first.members[number].rows(0, len(own)).indices.tolist()
    wanted = np.mean([RAMP.shares(312 + n / 25) for n in range(1000)], axis=0)
    assert np.abs(np.bincount(second.rows(unit, unit + 10_000).sources, minlength=3) / 10_000 - wanted).max() < 0.01
    with pytest.raises(IndexError, match="before unit 31200"):
        second.rows(0, 10)


def test_weights_that_hold_go_on_as_they_began() -> None:
    first = blend(RAMP)
    base = first.rebased(600, 60_000)
    assert base == Base(600, 60_000, 50_000, first.counts_at(50_000))
    second = replace(first, base=base, step_size=250)
    assert second.rows(60_000, 70_000).as_tuples() == first.rows(60_000, 70_000).as_tuples()
    assert set(second.rows(60_000, 85_000).sources.tolist()) == {0, 1}  # until step 700
    assert 2 in second.rows(85_000, 85_100).sources


def test_weights_that_are_set_change_nothing_before_their_step() -> None:
    plan = blend(RAMP)
    changed = blend(RAMP.changed(WeightChange(300, (0.0, 0.0, 1.0))))
    assert changed.rows(0, 30_000).as_tuples() == plan.rows(0, 30_000).as_tuples()
    assert set(changed.rows(30_000, 40_000).sources.tolist()) == {2}


def test_points_over_samples_stay_where_they_are_whatever_the_size_of_steps() -> None:
    over_samples = linear((0, (0.8, 0.1, 0.1)), (3_000, (0.0, 1.0, 0.0)), (5_500, (0.2, 0.2, 0.6)), over="samples")
    plan = blend(over_samples)
    expected = plan.rows(0, 12_000).as_tuples()
    assert plan.rebased(31, 3_100) == FIRST
    for size in (1, 250, 4096):
        other = replace(plan, step_size=size)
        assert other.rows(0, 12_000).as_tuples() == expected
        assert other.wanted_between(100, 5_000) == plan.wanted_between(100, 5_000)
    sources = np.array([row[0] for row in expected])
    wanted = np.mean([over_samples.shares(n + 0.5) for n in range(12_000)], axis=0)
    assert np.abs(np.bincount(sources, minlength=3) / 12_000 - wanted).max() < 0.002
    # A change begins with its sample.
    changed = replace(plan, schedule=over_samples.changed(WeightChange(777, (0.0, 0.0, 1.0))))
    assert changed.rows(0, 777).as_tuples() == expected[:777]
    assert set(changed.rows(777, 9_000).sources.tolist()) == {2}


@pytest.mark.parametrize("over", ["steps", "samples"])
def test_weights_without_a_change_have_the_base_of_steps_whatever_their_point_counts(over: Any) -> None:
    plan = blend(Schedule((WeightPoint(0, (0.8, 0.1, 0.1)),), over))
    base = plan.rebased(12, 1_200)
    assert base == Base(12, 1_200)
    other = replace(plan, step_size=250, base=base)
    assert other.rows(1_200, 9_000).as_tuples() == plan.rows(1_200, 9_000).as_tuples()
    assert other.rebased(14, 1_700) == Base(14, 1_700)


@given(st.integers(0, 90_000), st.integers(0, 40_000))
def test_what_is_wanted_is_the_integral_of_the_shares(start: int, count: int) -> None:
    plan = blend(RAMP)
    places = (np.arange(start, start + count) + 0.5) / 100
    shares = np.array([RAMP.shares(at) for at in places.tolist()]).reshape(-1, 3)
    assert plan.wanted_between(start, start + count) == pytest.approx(shares.sum(0).tolist(), abs=0.02)
    assert sum(plan.wanted_between(start, start + count)) == pytest.approx(count)


def test_what_is_wanted_is_counted_from_the_base_on() -> None:
    first = blend(RAMP)
    second = replace(first, base=first.rebased(312, 31_200), step_size=250)
    wanted = [RAMP.shares(312 + (n + 0.5) / 250) for n in range(0, 100_000, 10)]
    assert second.wanted_between(31_200, 131_200) == pytest.approx((np.sum(wanted, axis=0) * 10).tolist(), abs=5)
    with pytest.raises(IndexError, match="before unit 31200"):
        second.wanted_between(31_199, 40_000)


def test_weights_that_are_set_may_be_reached_later() -> None:
    schedule = RAMP.changed(WeightChange(250, (0.0, 0.0, 1.0), 350))
    assert schedule.shares(249.99) == pytest.approx(RAMP.shares(249.99))
    assert schedule.shares(250) == pytest.approx(RAMP.shares(250))
    middle = [(a + b) / 2 for a, b in zip(RAMP.shares(250), (0.0, 0.0, 1.0), strict=True)]
    assert schedule.shares(300) == pytest.approx(middle)
    assert schedule.shares(350) == schedule.shares(10_000) == [0.0, 0.0, 1.0]
    again = schedule.changed(WeightChange(300, (1.0, 0.0, 0.0), 320))
    assert again.shares(299) == pytest.approx(schedule.shares(299))
    assert again.shares(310) == pytest.approx([middle[0] / 2 + 0.5, middle[1] / 2, middle[2] / 2])
    plan = blend(again)
    assert plan.rows(0, 25_000).as_tuples() == blend(RAMP).rows(0, 25_000).as_tuples()
    assert sum(plan.counts_at(40_000)) == 40_000
    assert set(plan.rows(32_000, 33_000).sources.tolist()) == {0}


def test_late_steps_are_reached_at_once() -> None:
    many = linear(*((step * 1000, [float(1 + (step + n) % 7) for n in range(100)]) for step in range(20)))
    plan = blend(many, step_size=4096)
    assert len(plan.rows(10**7 * 4096, 10**7 * 4096 + 100)) == 100
    assert sum(plan.counts_at(10**7 * 4096)) == 10**7 * 4096


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([WeightPoint(5, (1.0,))], "begin with step 0"),
        ([WeightPoint(0, (1.0,)), WeightPoint(0, (1.0,))], "let the steps rise"),
        ([WeightPoint(0, (1.0, -1.0))], "finite numbers of at least 0"),
        ([WeightPoint(0, (1.0, 1.0)), WeightPoint(3, (1.0,))], "give 2 finite numbers"),
        ([WeightPoint(0, (1.0, 1.0), WeightPoint(3, (0.0, 0.0)))], "give 2 finite numbers"),
        ([WeightPoint(0, (1.0,), WeightPoint(3, (1.0,)))], "Let another point follow where they arrive"),
        ([WeightPoint(0, (1.0,), WeightPoint(3, (1.0,))), WeightPoint(4, (1.0,))], "hold from step 4 on"),
        ([WeightPoint(0, (1.0,), WeightPoint(0, (1.0,))), WeightPoint(4, (1.0,))], "move from step 0 to step 0"),
    ],
)
def test_wrong_schedules_are_explained(points: list[WeightPoint], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule(tuple(points))


def test_streams_are_refused() -> None:
    with pytest.raises(ConfigError, match="global_batch_size"):
        ScheduledBlendPlan((source(0, 2), source(1, 2)), Schedule((WeightPoint(0, (1.0, 1.0)),)), 3, 10)
