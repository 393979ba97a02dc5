from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.plan import Interleave

lengths_of_sequences = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 3000)), min_size=1, max_size=8)


def merged(interleave: Interleave) -> list[int]:
    return [number for window in range(interleave.windows) for number in interleave.draws(window).tolist()]


@given(lengths_of_sequences, st.integers(0, 100))
def test_every_element_comes_once(lengths: list[int], key: int) -> None:
    interleave = Interleave(lengths, key)
    assert np.bincount(merged(interleave), minlength=len(lengths)).tolist() == lengths
    assert interleave.total == sum(lengths)


def test_huge_sequences_lose_nothing_at_the_borders_of_windows() -> None:
    interleave = Interleave([10**12, 3, 10**9 + 7], 1)
    draws = [interleave.draws(window) for window in range(10**6, 10**6 + 50)]
    counts = np.bincount(np.concatenate(draws), minlength=3)
    expected = 50 * np.array([10**12, 3, 10**9 + 7]) / interleave.windows
    assert np.all(np.abs(counts - expected) <= 2)


def test_shares_hold_everywhere() -> None:
    lengths = np.array([6000, 3000, 1000])
    order = np.array(merged(Interleave(lengths.tolist(), 4)))
    for end in range(500, 10_001, 500):
        assert np.all(np.abs(np.bincount(order[:end], minlength=3) - end * lengths / 10_000) <= 40)
    assert len({tuple(order[start : start + 10].tolist()) for start in range(0, 10_000, 10)}) > 100


def test_another_key_gives_another_order() -> None:
    assert merged(Interleave([50, 50], 1)) != merged(Interleave([50, 50], 2))
