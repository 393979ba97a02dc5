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
from energon_dali.plan import OrderSpec, RepeatedOrder, Slices

repetitions = st.one_of(st.integers(0, 3), st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.5, 2.3, 1 / 3]))


def make(total: int, streams: int, repeat: float, over_epochs: int | None = 1, **kwargs: Any) -> RepeatedOrder:
    base = Slices.whole_shards([total // 2, total - total // 2])
    options = {"parallel_shard_iters": 2, "shuffle_buffer_size": 4, "max_samples_per_sequence": 3, **kwargs}
    return RepeatedOrder(
        OrderSpec(base=base, num_streams=streams, seed=3, shuffle_over_epochs=over_epochs, **options), repeat
    )


def samples(order: RepeatedOrder, stream: int, epoch: int) -> list[tuple[int, int, int]]:
    of_epoch = order.stream(stream).epoch(epoch)
    columns = of_epoch.samples(0, len(of_epoch))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def epoch_of(order: RepeatedOrder, epoch: int) -> list[tuple[int, int, int]]:
    return [sample for stream in range(order.spec.num_streams) for sample in samples(order, stream, epoch)]


@given(st.integers(0, 25), st.integers(1, 7), repetitions, st.integers(0, 12))
def test_whole_passes_and_a_share_of_another(total: int, streams: int, repeat: float, epoch: int) -> None:
    order = make(total, streams, repeat)
    found = epoch_of(order, epoch)
    counts = Counter(sample[:2] for sample in found)
    rest = Fraction(repr(float(repeat))) - int(repeat)
    assert len(found) == len(set(found)) == order.total_samples(epoch), "no sample comes twice in one pass"
    assert all(count >= int(repeat) for count in counts.values())
    assert len(counts) == total or repeat < 1
    assert abs(len(found) - int(repeat) * total - rest * total) < 2
    lengths = [order.stream(stream).num_samples(epoch) for stream in range(streams)]
    assert lengths == [len(samples(order, stream, epoch)) for stream in range(streams)]
    assert max(lengths) - min(lengths) <= 1 + 2 * math.ceil(repeat)


@pytest.mark.parametrize("repeat", [0.5, 0.1, 0.9, 1.75])
def test_all_streams_together_have_exactly_the_share_of_an_epoch(repeat: float) -> None:
    for total, streams in itertools.product(range(1, 30), (2, 3, 5, 7)):
        order = make(total, streams, repeat)
        for epoch in range(4):
            lengths = [order.stream(stream).num_samples(epoch) for stream in range(streams)]
            assert sum(lengths) == order.total_samples(epoch), (total, streams, epoch)


@given(st.integers(0, 25), st.integers(1, 7), st.sampled_from([(0.5, 2), (1.25, 4), (0.1, 10), (2.75, 4), (3, 1)]))
def test_epochs_together_are_exact(total: int, streams: int, case: tuple[float, int]) -> None:
    repeat, epochs = case
    order = make(total, streams, repeat)
    for first in (0, epochs):
        counts = Counter(sample[:2] for epoch in range(first, first + epochs) for sample in epoch_of(order, epoch))
        assert set(counts.values()) <= {round(repeat * epochs)}
        assert len(counts) == total


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


def test_any_range_of_positions() -> None:
    of_epoch = make(23, 2, 2.5).stream(1).epoch(3)
    whole = list(zip(*(column.tolist() for column in of_epoch.samples(0, len(of_epoch))), strict=True))
    for start in range(len(of_epoch) + 1):
        for stop in range(start, len(of_epoch) + 1):
            part = list(zip(*(column.tolist() for column in of_epoch.samples(start, stop)), strict=True))
            assert part == whole[start:stop]
    with pytest.raises(IndexError, match="leave an epoch"):
        of_epoch.samples(0, len(of_epoch) + 1)


@pytest.mark.parametrize("repeat", [-1, float("nan"), float("inf"), 1e18])
def test_repetitions_that_cannot_be_are_refused(repeat: float) -> None:
    with pytest.raises(ConfigError, match="a number from 0 to 100000"):
        make(3, 1, repeat)


def test_an_offset_moves_the_remainders() -> None:
    lengths = [
        [make(1, 4, 1, range_offset=offset, shuffle=False).stream(stream).num_samples(0) for stream in range(4)]
        for offset in range(4)
    ]
    assert [sum(column) for column in zip(*lengths, strict=True)] == [1, 1, 1, 1]
