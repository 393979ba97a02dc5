from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan import blend_draws


def test_draws_never_change() -> None:
    assert blend_draws([1, 2, 0, 3], 5, 1, 0, 20).tolist() == [
        1,
        1,
        1,
        3,
        3,
        1,
        1,
        0,
        3,
        1,
        1,
        3,
        3,
        1,
        1,
        3,
        1,
        3,
        1,
        3,
    ]


@given(st.integers(0, 10**9), st.integers(0, 50), st.integers(0, 50))
def test_a_draw_depends_on_its_number_alone(start: int, skipped: int, count: int) -> None:
    whole = blend_draws([0.1, 0.5, 3], 1, 2, start, skipped + count)
    assert np.array_equal(whole[skipped:], blend_draws([0.1, 0.5, 3], 1, 2, start + skipped, count))


def test_shares_follow_the_weights() -> None:
    weights = np.array([0.0, 1.0, 2.0, 0.0, 5.0, 0.0])
    counts = np.bincount(blend_draws(weights.tolist(), 3, 0, 0, 80_000), minlength=6)
    assert counts[[0, 3, 5]].tolist() == [0, 0, 0]
    assert np.allclose(counts / 80_000, weights / weights.sum(), atol=0.01)


def test_every_share_holds_in_every_stream() -> None:
    """Over 100,000 draws, the counts of 200 datasets are within three standard deviations of independent draws."""
    weights = np.random.default_rng(5).pareto(1.0, 200) + 0.01
    shares = weights / weights.sum()
    deviation = np.sqrt(100_000 * shares * (1 - shares))
    for stream in range(8):
        counts = np.bincount(blend_draws(weights.tolist(), 1, stream, 0, 100_000), minlength=200)
        assert np.all(np.abs(counts - 100_000 * shares) < 3 * deviation)


def test_a_block_holds_the_shares_to_the_draw() -> None:
    weights = [1.0, 2.0, 3.5, 0.25, 0.0]
    for block in range(20):
        counts = np.bincount(blend_draws(weights, 9, 3, 1024 * block, 1024), minlength=5)
        assert np.all(np.abs(counts - 1024 * np.array(weights) / sum(weights)) < 2)


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e300, 1.7e308])
def test_only_the_ratio_of_weights_counts(scale: float) -> None:
    assert np.array_equal(blend_draws([scale, scale], 1, 0, 0, 100), blend_draws([1, 1], 1, 0, 0, 100))


def test_the_sum_of_huge_weights_does_not_overflow() -> None:
    draws = blend_draws([1.7e308, 0.85e308, 0.0, 1.7e308], 1, 0, 0, 1024)
    assert np.array_equal(draws, blend_draws([2, 1, 0, 2], 1, 0, 0, 1024))
    assert set(draws.tolist()) == {0, 1, 3}


def test_streams_and_seeds_draw_differently() -> None:
    draws = {tuple(blend_draws([1, 1], seed, stream, 0, 64).tolist()) for seed in range(4) for stream in range(4)}
    assert len(draws) == 16


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [float("nan")], [float("inf"), 1]])
def test_weights_that_cannot_work_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match="at least one of them positive"):
        blend_draws(weights, 0, 0, 0, 1)
