"""Random permutations of which single places can be computed, for many permutations at once."""

from __future__ import annotations

import numpy as np

from energon_dali.plan.rng import Int64Array, Uint64Array, mix

_ROUNDS = 12
"""Fewer favour some permutations of five or six places visibly."""
_MULTIPLIERS = tuple(np.uint64(mix(number) | 1) for number in range(_ROUNDS))


def permuted(places: Int64Array, keys: Uint64Array, lengths: Int64Array) -> Int64Array:
    """Returns where permutations of 0 ... length - 1 send places.

    A place is a row and a column of a table. Rounds move the rows by random amounts that depend on the column, and the
    columns by amounts that depend on the row; each can be undone, so the whole is a permutation. What falls into the
    part of the table that is beyond the length is moved again.

    Args:
        places: int64[n], from 0 to the length - 1.
        keys: uint64[n]: one per permutation.
        lengths: int64[n], at least 1: number of places of the permutations.

    Returns:
        int64[n], from 0 to the length - 1.
    """
    # A table with a few places more than the length. Rounding may make it one row larger than it has to be.
    rows = np.ceil(np.sqrt(lengths.astype(np.float64))).astype(np.uint64)
    columns = (lengths.astype(np.uint64) + rows - np.uint64(1)) // rows
    moved = _moved_once(places, keys, rows, columns)
    beyond = np.flatnonzero(moved >= lengths)
    while len(beyond):
        moved[beyond] = _moved_once(moved[beyond], keys[beyond], rows[beyond], columns[beyond])
        beyond = beyond[moved[beyond] >= lengths[beyond]]
    return moved


def _moved_once(places: Int64Array, keys: Uint64Array, rows: Uint64Array, columns: Uint64Array) -> Int64Array:
    row, column = np.divmod(places.astype(np.uint64), columns)
    for number in range(0, _ROUNDS, 2):
        row = (row + _scrambled(column, keys, number) % rows) % rows
        column = (column + _scrambled(row, keys, number + 1) % columns) % columns
    moved: Int64Array = (row * columns + column).astype(np.int64)
    return moved


def _scrambled(values: Uint64Array, keys: Uint64Array, number: int) -> Uint64Array:
    """Returns uint64[n], less than 2 ** 32: a hash of values, keys and the number of the round."""
    words: Uint64Array = (values + keys) * _MULTIPLIERS[number]
    words ^= words >> np.uint64(29)
    words *= _MULTIPLIERS[0]
    words >>= np.uint64(32)
    return words
