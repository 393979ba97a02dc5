from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan.slices import Slices, cut_slices


def ranges(slices: Slices) -> list[tuple[int, int, int]]:
    return list(zip(slices.shard.tolist(), slices.start.tolist(), slices.stop.tolist(), strict=True))


def test_a_long_range_is_cut_to_equal_slices() -> None:
    base = Slices(np.array([3]), np.array([100]), np.array([110]))
    assert ranges(cut_slices(base, 3)) == [(3, 100, 103), (3, 103, 106), (3, 106, 110)]


def test_up_to_one_and_a_half_times_the_length_stays_whole() -> None:
    base = Slices.whole_shards([15, 16])
    assert ranges(cut_slices(base, 10)) == [(0, 0, 15), (1, 0, 8), (1, 8, 16)]


def test_none_keeps_shards_whole_and_empty_ones_are_left_out() -> None:
    for length in (None, sys.maxsize, 10**30):
        assert ranges(cut_slices(Slices.whole_shards([4, 0, 2]), length)) == [(0, 0, 4), (2, 0, 2)]


@given(st.lists(st.integers(0, 200), max_size=8), st.integers(1, 50))
def test_cutting_keeps_every_sample_in_order(counts: list[int], limit: int) -> None:
    cut = cut_slices(Slices.whole_shards(counts), limit)
    samples = [(shard, index) for shard, first, last in ranges(cut) for index in range(first, last)]
    assert samples == [(shard, index) for shard, count in enumerate(counts) for index in range(count)]
    assert (cut.lengths > 0).all()
    assert (2 * cut.lengths <= 3 * limit).all()


def test_slices_know_their_size_and_equality() -> None:
    slices = Slices.whole_shards([2, 3])
    assert (len(slices), slices.num_samples) == (2, 5)
    assert slices == Slices.whole_shards([2, 3])
    assert hash(slices) == hash(Slices.whole_shards([2, 3]))
    assert slices != Slices.whole_shards([3, 2])
    assert slices != 5
    assert repr(slices) == "Slices(2 slices, 5 samples)"


def test_wrong_slices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Slice 1 is \[5, 4\) of shard 1"):
        Slices(np.array([0, 1]), np.array([0, 5]), np.array([3, 4]))
    with pytest.raises(ConfigError, match="the same length"):
        Slices(np.array([0, 1]), np.array([0]), np.array([3]))
    with pytest.raises(ConfigError, match="max_samples_per_sequence=0"):
        cut_slices(Slices.whole_shards([1]), 0)
