from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan.draws import Draws, floor_sum
from energon_dali.plan.mixtures import GROUP_DRAWS, weighted_draws
from tests.part import long_property

lengths_of_sequences = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 3000)), min_size=1, max_size=8).filter(any)


@given(st.integers(0, 60), st.integers(1, 40), st.integers(0, 100), st.integers(0, 100))
def test_floor_sums(count: int, modulus: int, factor: int, offset: int) -> None:
    assert floor_sum(count, modulus, factor, offset) == sum((factor * n + offset) // modulus for n in range(count))


def in_epoch(lengths: list[int], key: int) -> Draws:
    return Draws(np.cumsum(lengths).tolist(), max(1, sum(lengths) // 512), (key,))


@given(lengths_of_sequences, st.integers(0, 100), st.data())
def test_every_element_of_an_epoch_comes_once(lengths: list[int], key: int, data: st.DataObject) -> None:
    total = sum(lengths)
    whole, before = in_epoch(lengths, key).take(0, total)
    assert np.bincount(whole, minlength=len(lengths)).tolist() == lengths
    assert not before.any()
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    part, before = in_epoch(lengths, key).take(start, stop)
    assert part.tolist() == whole[start:stop].tolist()
    assert before.tolist() == np.bincount(whole[:start], minlength=len(lengths)).tolist()


def test_huge_sequences_are_counted_at_once() -> None:
    lengths = [10**12, 3, 10**9 + 7]
    draws = in_epoch(lengths, 1)
    start = 512 * 10**6
    taken, before = draws.take(start, start + 25_600)
    assert before.sum() == start
    expected = np.array(lengths) / sum(lengths)
    assert np.all(np.abs(before - start * expected) <= 512)
    assert np.all(np.abs(np.bincount(taken, minlength=3) - 25_600 * expected) <= 3)


def test_proportions_hold_everywhere() -> None:
    lengths = np.array([6000, 3000, 1000])
    order = in_epoch(lengths.tolist(), 4).take(0, 10_000)[0]
    for end in range(500, 10_001, 500):
        assert np.all(np.abs(np.bincount(order[:end], minlength=3) - end * lengths / 10_000) <= 40)
    assert len({tuple(order[start : start + 10].tolist()) for start in range(0, 10_000, 10)}) > 100


def test_another_key_gives_another_order() -> None:
    assert in_epoch([50, 50], 1).take(0, 100)[0].tolist() != in_epoch([50, 50], 2).take(0, 100)[0].tolist()


@given(st.integers(0, 10**12), st.integers(0, 50), st.integers(0, 50))
def test_a_draw_depends_on_its_number_alone(start: int, skipped: int, count: int) -> None:
    whole = weighted_draws([0.1, 0.5, 3], 1, 2, start, skipped + count)
    assert np.array_equal(whole[skipped:], weighted_draws([0.1, 0.5, 3], 1, 2, start + skipped, count))


def test_draws_never_change() -> None:
    assert weighted_draws([1, 2, 0, 3], 5, 1, 0, 20).tolist() == [
        *[1, 3, 0, 1, 3, 3, 3, 3, 0, 1],
        *[0, 3, 0, 3, 0, 0, 1, 3, 3, 1],
    ]


@long_property()
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=30).filter(any), st.integers(0, 2000)
)
def test_a_group_holds_the_weights_and_groups_together_are_exact(weights: list[float], first: int) -> None:
    shares = np.array(weights) / sum(weights)
    sums = np.zeros(len(weights))
    for group in range(first, first + 20):
        draws = weighted_draws(weights, 9, 3, GROUP_DRAWS * group, GROUP_DRAWS)
        counts = np.bincount(draws, minlength=len(weights))
        assert np.all(np.abs(counts - GROUP_DRAWS * shares) <= 1 + 1e-6)
        sums += counts
    assert np.all(np.abs(sums - 20 * GROUP_DRAWS * shares) <= 4), "rare datasets are spread over the groups"
    assert not sums[np.array(weights) == 0].any()


def test_rare_datasets_come_as_often_as_their_weight_says() -> None:
    weights = np.random.default_rng(5).pareto(1.0, 200) + 0.01
    shares = weights / weights.sum()
    for stream in range(4):
        counts = np.bincount(weighted_draws(weights.tolist(), 1, stream, 0, 100 * GROUP_DRAWS), minlength=200)
        assert np.all(np.abs(counts - 100 * GROUP_DRAWS * shares) < 6)


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e300, 1.7e308])
def test_only_the_ratio_of_weights_counts(scale: float) -> None:
    assert np.array_equal(weighted_draws([scale, scale], 1, 0, 0, 100), weighted_draws([1, 1], 1, 0, 0, 100))


def test_the_sum_of_huge_weights_does_not_overflow() -> None:
    draws = weighted_draws([1.7e308, 0.85e308, 0.0, 1.7e308], 1, 0, 0, 1024)
    assert np.array_equal(draws, weighted_draws([2, 1, 0, 2], 1, 0, 0, 1024))
    assert set(draws.tolist()) == {0, 1, 3}


def test_streams_and_seeds_draw_differently() -> None:
    draws = {tuple(weighted_draws([1, 1], seed, stream, 0, 64).tolist()) for seed in range(4) for stream in range(4)}
    assert len(draws) == 16


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [float("nan")], [float("inf"), 1]])
def test_weights_that_cannot_work_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match="at least one of them positive"):
        weighted_draws(weights, 0, 0, 0, 1)
