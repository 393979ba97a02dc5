from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.plan.epoch import WindowShuffle


def test_the_shuffle_never_changes() -> None:
    assert WindowShuffle(20, 6, 9).positions(0, 20).tolist() == [
        3,
        1,
        5,
        4,
        2,
        7,
        6,
        10,
        0,
        11,
        14,
        8,
        12,
        9,
        15,
        18,
        16,
        13,
        19,
        17,
    ]


@given(st.integers(0, 400), st.integers(0, 450), st.integers(0, 99))
def test_it_is_a_bijection_that_stays_near(length: int, window: int, key: int) -> None:
    places = WindowShuffle(length, window, key).positions(0, length)
    assert np.array_equal(np.sort(places), np.arange(length))
    if window > 1:
        assert (np.abs(places - np.arange(length)) < 2 * window).all()
    else:
        assert np.array_equal(places, np.arange(length))


@given(st.integers(1, 300), st.integers(2, 320), st.data())
def test_any_part_of_it_is_the_same(length: int, window: int, data: st.DataObject) -> None:
    whole = WindowShuffle(length, window, 3).positions(0, length)
    shuffle = WindowShuffle(length, window, 3)
    for _ in range(3):
        start = data.draw(st.integers(0, length))
        stop = data.draw(st.integers(start, length))
        assert np.array_equal(shuffle.positions(start, stop), whole[start:stop])


@pytest.mark.parametrize("window", [2, 1000, 65_536, 70_000, 150_000])
def test_groups_of_blocks_leave_no_seam(window: int) -> None:
    length = 200_001
    shuffle = WindowShuffle(length, window, 1)
    whole = shuffle.positions(0, length)
    assert np.array_equal(np.sort(whole), np.arange(length))
    for start in (0, 65_530, 131_000, 199_990):
        assert np.array_equal(WindowShuffle(length, window, 1).positions(start, start + 11), whole[start : start + 11])


def test_samples_cross_the_borders_of_blocks() -> None:
    window = 50
    places = WindowShuffle(1000, window, 4).positions(0, 1000)
    moved = np.mean(places // window != np.arange(1000) // window)
    assert 0.25 < moved < 0.75


def test_keys_give_different_shuffles() -> None:
    orders = {tuple(WindowShuffle(100, 40, key).positions(0, 100).tolist()) for key in range(50)}
    assert len(orders) == 50
