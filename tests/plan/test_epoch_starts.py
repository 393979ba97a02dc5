"""The starts of the epochs of many plans are those that each plan returns by itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.plan.epoch_starts import EpochStarts, dealt_source
from energon_dali.plan.mixtures import ConcatPlan, EpochizedBlendPlan, Members
from energon_dali.plan.plan import Plan
from energon_dali.plan.repeated import RepeatedPlan
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan

REPETITIONS = st.sampled_from([0.0, 1.0, 2.0, 0.5, 1.5, 2.25, 0.3, 1 / 3, 1e-9, 12_345.678, 1e-30])


def source(samples: int, streams: int, number: int, **options: object) -> SourcePlan:
    return SourcePlan(Slices.whole_shards([samples]), streams, seed=1, source=number, **options)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 7, 500, 4096, 100_000]), REPETITIONS, st.sampled_from([None, 1, 3, -1])),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 63),
    st.sampled_from([0, 1, 2, 3, 17, 1000, 10**6, 10**12, 10**18, 2**90]),
)
def test_starts_are_those_of_each_plan(members: list[tuple[int, float, int | None]], stream: int, epoch: int) -> None:
    plans: list[Plan] = [
        RepeatedPlan(source(samples, 64, number, shuffle_over_epochs=epochs).rotated(number * 5), repetitions)
        for number, (samples, repetitions, epochs) in enumerate(members)
    ]
    plans.append(source(77, 64, len(plans)))
    assert EpochStarts(plans).at(epoch, stream) == [plan.epoch_start(epoch, stream) for plan in plans]


def test_small_sources_are_dealt_and_large_ones_are_not() -> None:
    small, large = source(100, 64, 0), source(10_000, 64, 1)
    assert dealt_source(RepeatedPlan(small, 2.0)) is small
    assert dealt_source(RepeatedPlan(large, 2.0)) is None
    assert dealt_source(ConcatPlan((small,))) is None


@pytest.mark.parametrize("repetitions", [1.0, 2.0, 0.5, 1.5, 2.25])
def test_rows_of_repeated_sources_are_theirs(repetitions: float) -> None:
    plans = [RepeatedPlan(source(90 + number, 64, number), repetitions) for number in range(3)]
    mixed = EpochizedBlendPlan(tuple(plans), seed=3, repeat=True)
    rows = mixed.rows(0, 300, 5)
    for number, plan in enumerate(plans):
        own = [row[1:] for row in rows.as_tuples() if row[0] == number]
        assert own == [row[1:] for row in plan.rows(0, len(own), 5).as_tuples()]
        assert len(own) > 50
    assert Members(plans).rows(rows.sources.astype("int64"), [0, 0, 0], 5).as_tuples() == rows.as_tuples()
