from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan import Slices, SourcePlan
from energon_dali.plan.draws import floor_sum
from energon_dali.plan.scheduled import FIRST, Base, Schedule, ScheduledBlendPlan, WeightPoint


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
    changed = blend(RAMP.changed(300, (0.0, 0.0, 1.0)))
    assert changed.rows(0, 30_000).as_tuples() == plan.rows(0, 30_000).as_tuples()
    assert set(changed.rows(30_000, 40_000).sources.tolist()) == {2}


def test_late_steps_are_reached_at_once() -> None:
    many = Schedule.linear(*((step * 1000, [float(1 + (step + n) % 7) for n in range(100)]) for step in range(20)))
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
    ],
)
def test_wrong_schedules_are_explained(points: list[WeightPoint], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule(tuple(points))


def test_streams_are_refused() -> None:
    with pytest.raises(ConfigError, match="global_batch_size"):
        ScheduledBlendPlan((source(0, 2), source(1, 2)), Schedule((WeightPoint(0, (1.0, 1.0)),)), 3, 10)
