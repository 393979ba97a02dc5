from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan.repeated import MAX_REPETITIONS, RepeatedPlan
from energon_dali.plan.slices import Slices
from energon_dali.plan.source import SourcePlan
from tests.part import long_property

repetitions = st.one_of(st.integers(0, 3), st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.5, 2.3, 1 / 3]))


def make(total: int, streams: int, repeat: float, over_epochs: int | None = 1, **kwargs: Any) -> RepeatedPlan:
    base = Slices.whole_shards([total // 2, total - total // 2])
    options = {"parallel_shard_iters": 2, "shuffle_buffer_size": 4, "max_samples_per_sequence": 3, **kwargs}
    return RepeatedPlan(
        SourcePlan(base=base, num_streams=streams, seed=3, shuffle_over_epochs=over_epochs, **options), repeat
    )


def samples(plan: RepeatedPlan, stream: int, epoch: int) -> list[tuple[int, ...]]:
    rows = plan.rows(plan.epoch_start(epoch, stream), plan.epoch_start(epoch + 1, stream), stream)
    return [row[1:] for row in rows.as_tuples()]


def epoch_of(plan: RepeatedPlan, epoch: int) -> list[tuple[int, ...]]:
    return [sample for stream in range(plan.num_streams) for sample in samples(plan, stream, epoch)]


def samples_of_epoch(total: int, repeat: float, epoch: int) -> int:
    """Returns the number of samples of an epoch: passes are taken whole, and parts of one are rounded down."""
    rest = Fraction(repr(float(repeat))) % 1
    first, last = (int(total * (rest * number % 1)) + total * int(rest * number) for number in (epoch, epoch + 1))
    return total * int(repeat) + last - first


@long_property()
@given(st.integers(0, 25), st.one_of(st.integers(1, 7), st.just(70)), repetitions, st.integers(0, 12))
def test_whole_passes_and_a_share_of_another(total: int, streams: int, repeat: float, epoch: int) -> None:
    order = make(total, streams, repeat)
    found = epoch_of(order, epoch)
    counts = Counter(sample[:2] for sample in found)
    rest = Fraction(repr(float(repeat))) - int(repeat)
    assert len(found) == len(set(found)) == samples_of_epoch(total, repeat, epoch), "no sample comes twice in one pass"
    assert all(count >= int(repeat) for count in counts.values())
    assert len(counts) == total or repeat < 1
    assert abs(len(found) - int(repeat) * total - rest * total) < 2
    lengths = [order.epoch_length(epoch, stream) for stream in range(streams)]
    assert lengths == [len(samples(order, stream, epoch)) for stream in range(streams)]
    assert max(lengths) - min(lengths) <= 1 + 2 * math.ceil(repeat)


@pytest.mark.parametrize("repeat", [0.5, 0.1, 0.9, 1.75])
def test_all_streams_together_have_exactly_the_share_of_an_epoch(repeat: float) -> None:
    for total, streams in itertools.product(range(1, 30), (2, 3, 5, 7)):
        order = make(total, streams, repeat)
        for epoch in range(4):
            lengths = [order.epoch_length(epoch, stream) for stream in range(streams)]
            assert sum(lengths) == samples_of_epoch(total, repeat, epoch), (total, streams, epoch)


@long_property()
@given(
    st.integers(0, 25),
    st.one_of(st.integers(1, 7), st.just(70)),
    st.sampled_from([(0.5, 2), (1.25, 4), (0.1, 10), (2.75, 4), (3, 1)]),
)
def test_epochs_together_are_exact(total: int, streams: int, case: tuple[float, int]) -> None:
    repeat, epochs = case
    order = make(total, streams, repeat)
    for first in (0, epochs):
        counts = Counter(sample[:2] for epoch in range(first, first + epochs) for sample in epoch_of(order, epoch))
        assert set(counts.values()) <= {round(repeat * epochs)}
        assert len(counts) == total


@long_property()
@given(st.integers(1, 20), st.integers(1, 5), st.sampled_from([2, 3]), st.sampled_from([0.5, 1, 2.5]))
def test_shuffled_over_epochs_the_whole_is_exact(total: int, streams: int, over: int, repeat: float) -> None:
    order = make(total, streams, repeat, over)
    found = [sample for epoch in range(2 * over) for sample in epoch_of(order, epoch)]
    assert set(Counter(sample[:2] for sample in found).values()) == {round(repeat * 2 * over)}
    assert len(set(found)) == len(found)


def test_the_share_is_another_in_each_epoch_and_every_stream_has_its_turn() -> None:
    order = make(12, 3, 0.5)
    halves = [{sample[:2] for sample in epoch_of(order, epoch)} for epoch in range(2)]
    assert not halves[0] & halves[1]
    assert len(halves[0] | halves[1]) == 12
    lone = make(1, 4, 0.5)
    assert {stream for epoch in range(8) for stream in range(4) if samples(lone, stream, epoch)} == {0, 1, 2, 3}


def test_draws_with_replacement_can_be_repeated_too() -> None:
    order = make(20, 2, 1.5, -1)
    assert all(len(set(epoch_of(order, epoch))) == len(epoch_of(order, epoch)) > 0 for epoch in range(4))


@pytest.mark.parametrize("streams", [2, 70])
def test_any_range_of_positions(streams: int) -> None:
    plan = make(23, streams, 2.5)
    whole = plan.rows(0, 120, 1).as_tuples()
    for start in range(0, 121, 7):
        for stop in range(start, 121, 5):
            assert plan.rows(start, stop, 1).as_tuples() == whole[start:stop]
    starts = [plan.epoch_start(epoch, 1) for epoch in range(200)]
    assert starts == sorted(starts)
    assert all(starts[plan.epoch_at(row, 1)] <= row < starts[plan.epoch_at(row, 1) + 1] for row in range(50))


def test_an_epoch_in_full() -> None:
    plan = RepeatedPlan(SourcePlan(Slices.whole_shards([3]), 1, 0, shuffle_over_epochs=None), 1.5)
    assert [row[2:] for row in plan.rows(0, 9).as_tuples()] == [
        *[(0, 0), (1, 0), (2, 0), (0, 1)],  # a whole pass, and half of the next one
        *[(0, 2), (1, 2), (2, 2), (1, 1), (2, 1)],  # a whole pass, and the other half
    ]


@pytest.mark.parametrize("over_epochs", [None, 1, 2, -1])
@pytest.mark.parametrize(("repeat", "streams"), [(0.1, 1), (0.75, 70), (3, 2), (0, 1)])
def test_rows_without_other_passes_in_between_are_those_of_the_passes(
    over_epochs: int | None, repeat: float, streams: int
) -> None:
    plan = make(11, streams, repeat, over_epochs)
    if repeat:
        assert plan.rows(7, 60, streams - 1).as_tuples() == plan.passes.rows(7, 60, streams - 1).as_tuples()
    else:
        assert plan.num_samples == plan.epoch_start(9) == 0
        with pytest.raises(IndexError, match="no samples to repeat"):
            plan.rows(0, 1)


def test_rows_of_very_many_passes_do_not_list_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch of 99,999.5 passes: what a range costs does not depend on how long an epoch is."""
    plan = make(3, 1, MAX_REPETITIONS - 0.5)
    asked: list[int] = []
    taken = RepeatedPlan._taken

    def count(self: RepeatedPlan, number: int, *arguments: int) -> int:
        asked.append(number)
        return taken(self, number, *arguments)

    monkeypatch.setattr(RepeatedPlan, "_taken", count)
    for start in (0, 150_000, plan.epoch_start(1) - 2):
        rows = plan.rows(start, start + 5)
        assert rows.as_tuples()[2:] == plan.rows(start + 2, start + 5).as_tuples()
    assert len(asked) < 1000


@pytest.mark.parametrize("repeat", [1e-3, 1e-9, 1 + 1e-9])
def test_rows_that_are_millions_of_epochs_apart_are_found(repeat: float) -> None:
    plan = RepeatedPlan(SourcePlan(Slices.whole_shards([2]), 3000, 0, window_in_slice=True), repeat)
    rows = plan.rows(0, 12, 2345).as_tuples()
    assert rows[5:] == plan.rows(5, 12, 2345).as_tuples()
    epoch = plan.epoch_at(11, 2345)
    assert plan.epoch_start(epoch, 2345) <= 11 < plan.epoch_start(epoch + 1, 2345)


@pytest.mark.parametrize("repeat", [-1, float("nan"), float("inf"), 1e18])
def test_repetitions_that_cannot_be_are_refused(repeat: float) -> None:
    with pytest.raises(ConfigError, match="a number from 0 to 100000"):
        make(3, 1, repeat)


def test_an_offset_moves_the_remainders() -> None:
    lengths = [
        [make(1, 4, 1, range_offset=offset, shuffle=False).epoch_length(0, stream) for stream in range(4)]
        for offset in range(4)
    ]
    assert [sum(column) for column in zip(*lengths, strict=True)] == [1, 1, 1, 1]
