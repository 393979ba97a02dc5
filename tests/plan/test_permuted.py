from __future__ import annotations

import numpy as np
import pytest

from energon_dali.plan.rng import Int64Array, mix, mix_arrays
from energon_dali.plan.source import permuted


def permuted_places(places: Int64Array, numbers: Int64Array, length: int, *key: int) -> Int64Array:
    """Returns where the permutations with some numbers send places."""
    return permuted(places, mix_arrays(numbers, state=mix(*key)), np.full(len(places), length, np.int64))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 24, 1000])
def test_every_place_is_taken_once_by_each_permutation(length: int) -> None:
    count = 200
    numbers = np.repeat(np.arange(count), length)
    found = permuted_places(np.tile(np.arange(length), count), numbers, length, 5).reshape(count, length)
    assert (np.sort(found, axis=1) == np.arange(length)).all()
    if length > 3:
        assert len(set(map(tuple, found.tolist()))) > 0.7 * min(count, np.prod(np.arange(1, min(length, 10) + 1)))


@pytest.mark.parametrize("length", [2, 3, 5])
def test_all_permutations_of_few_places_come_about_equally_often(length: int) -> None:
    count = 60_000
    numbers = np.arange(count)
    columns = [permuted_places(np.full(count, place), numbers, length, 1, 2) for place in range(length)]
    permutations, counts = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    expected = int(np.prod(np.arange(1, length + 1)))
    assert len(permutations) == expected
    assert counts.max() / counts.min() < 1.5


def test_a_place_is_computed_alone() -> None:
    places, numbers = np.arange(500) % 97, np.arange(500) // 97
    whole = permuted_places(places, numbers, 97, 3)
    assert [permuted_places(places[n : n + 1], numbers[n : n + 1], 97, 3)[0] for n in range(0, 500, 50)] == whole[
        ::50
    ].tolist()
    assert whole.tolist() != permuted_places(places, numbers, 97, 4).tolist()
