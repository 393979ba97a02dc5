from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.plan.rng import (
    mix,
    mix_arrays,
    permutation,
    raw_words,
    sample_seed,
    sample_seeds,
    source_seed,
    uniform,
)


def test_philox_is_the_published_one() -> None:
    # Known answer of philox4x64-10 for counter 0, key 0, from the authors' Random123 distribution. numpy counts up
    # before it generates.
    words = np.random.Philox(key=0, counter=2**256 - 1).random_raw(4)
    assert [hex(word) for word in words.tolist()] == [
        "0x16554d9eca36314c",
        "0xdb20fe9d672d0fdc",
        "0xd7e772cee186176b",
        "0x7e68b68aec7ba23b",
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), 0x0),
        ((0,), 0x397AB29740681D9),
        ((1, 2, 3), 0x3F53A1FE784BBF),
        ((-1,), 0x42D30092DCD06D20),
        ((2**64 + 5,), 0x5ACAF5D5BB3427D9),
    ],
)
def test_mix_never_changes(values: tuple[int, ...], expected: int) -> None:
    assert mix(*values) == expected


def test_mix_depends_on_order_and_count() -> None:
    results = {mix(*values) for values in ((0,), (0, 0), (1, 0), (0, 1), (1,), (0, 0, 0))}
    assert len(results) == 6


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3), min_size=1, max_size=9))
def test_mix_arrays_equals_mix(rows: list[list[int]]) -> None:
    columns = np.array(rows, np.int64).T
    assert mix_arrays(columns[0], 7, columns[1], columns[2]).tolist() == [mix(a, 7, b, c) for a, b, c in rows]


def test_mix_arrays_of_numbers_alone() -> None:
    assert mix_arrays(3, 4).tolist() == [mix(3, 4)]


def test_permutation_never_changes() -> None:
    assert permutation(10, 1, 2).tolist() == [5, 0, 7, 4, 2, 1, 9, 6, 3, 8]


@given(st.integers(0, 3000), st.integers(0, 2**64 - 1))
def test_permutation_has_each_place_once(length: int, key: int) -> None:
    places = permutation(length, key)
    assert places.dtype == np.int64
    assert np.array_equal(np.sort(places), np.arange(length))


def test_permutation_is_uniform() -> None:
    # 6 orders of 3 elements, 3000 keys: 500 each are expected, with a standard deviation of 20.
    seen: dict[tuple[int, ...], int] = {}
    for key in range(3000):
        order = tuple(permutation(3, key).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    assert all(400 < count < 600 for count in seen.values())


@given(st.integers(0, 10**12), st.integers(0, 40), st.integers(0, 40))
def test_any_word_is_reached_at_once(start: int, first: int, count: int) -> None:
    whole = raw_words(start, first + count, 5)
    assert np.array_equal(whole[first:], raw_words(start + first, count, 5))


def test_uniform_never_changes_and_stays_in_range() -> None:
    assert uniform(5, 3, 7).tolist() == [0.853924723655868, 0.9197648590068797, 0.05855463159789842]
    many = uniform(0, 100_000, 1)
    assert 0 <= many.min() < many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01


def test_seeds_never_change() -> None:
    assert sample_seed(1, 2, 3, 4) == 3192912025575003880


def test_every_argument_changes_the_seed() -> None:
    seeds = {sample_seed(s, source, e, i) for s in range(3) for source in range(3) for e in range(3) for i in range(3)}
    assert len(seeds) == 81
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_many_seeds_at_once_equal_single_seeds() -> None:
    epochs, indices = np.array([0, 5, 5]), np.array([9, 0, 10**12])
    rows = list(zip(epochs.tolist(), indices.tolist(), strict=True))
    one = np.array([source_seed(7, 1)], np.uint64)
    assert sample_seeds(one, epochs, indices).tolist() == [sample_seed(7, 1, e, i) for e, i in rows]
    several = np.array([source_seed(7, source) for source in (1, 2, 1)], np.uint64)
    expected = [sample_seed(7, source, e, i) for source, (e, i) in zip((1, 2, 1), rows, strict=True)]
    assert sample_seeds(several, epochs, indices).tolist() == expected
