"""Random numbers that are functions: the same arguments give the same values, everywhere and for ever.

Only the raw output of numpy's Philox is used. It is specified by its authors (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", 2011) and numpy keeps it stable, while the methods of `numpy.random.Generator` may change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Uint64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_WORDS_PER_COUNTER = 4


def _finish(value: int) -> int:
    """Returns the output function of splitmix64 (Steele et al., "Fast splittable pseudorandom number generators")."""
    value = ((value ^ (value >> 30)) * _MULTIPLIER_1) & _MASK
    value = ((value ^ (value >> 27)) * _MULTIPLIER_2) & _MASK
    return value ^ (value >> 31)


def mix(*values: int) -> int:
    """Returns a 64-bit hash of whole numbers, which depends on each of them, their order and their count.

    Args:
        *values: Whole numbers of any size or sign; each counts modulo 2**64.

    Returns:
        0 <= hash < 2**64.
    """
    state = 0
    for value in values:
        state = _finish(((state + _GOLDEN) & _MASK) ^ _finish((value + _GOLDEN) & _MASK))
    return state


def _finish_array(value: Uint64Array) -> Uint64Array:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(_MULTIPLIER_1)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(_MULTIPLIER_2)
    value ^= value >> np.uint64(31)
    return value


def mix_on(state: int, first: int, second: int) -> int:
    """Returns `mix(*values, first, second)`, where `state` is `mix(*values)`: what many hashes share is made once."""
    state = _finish(((state + _GOLDEN) & _MASK) ^ _finish((first + _GOLDEN) & _MASK))
    return _finish(((state + _GOLDEN) & _MASK) ^ _finish((second + _GOLDEN) & _MASK))


def mix_arrays(*values: int | Int64Array | Uint64Array, state: int = 0) -> Uint64Array:
    """Returns `mix` of each row of numbers.

    Args:
        *values: Whole numbers or integer arrays [n]; they broadcast against each other.
        state: `mix` of the numbers that stand before all of them.

    Returns:
        uint64[n], equal to `mix` of the same numbers; uint64[1] if only numbers were given.
    """
    mixed: Uint64Array = np.array([state], np.uint64)
    golden = np.uint64(_GOLDEN)
    for value in values:
        # One-element arrays instead of scalars: array arithmetic wraps around without a warning.
        numbers = np.array([value & _MASK], np.uint64) if isinstance(value, int) else np.atleast_1d(value)
        column = numbers.astype(np.uint64, copy=False)
        mixed = _finish_array((mixed + golden) ^ _finish_array(column + golden))
    return mixed


def raw_words(start: int, count: int, *key: int) -> Uint64Array:
    """Returns words start, start + 1, ... of the endless random sequence that belongs to `key`.

    Args:
        start: Number of the first word, at least 0; any word is reached at once.
        count: How many words.
        *key: Whole numbers that name the sequence.

    Returns:
        uint64[count].
    """
    counter, skip = divmod(start, _WORDS_PER_COUNTER)
    words = np.random.Philox(key=mix(*key), counter=counter).random_raw(skip + count)
    return words[skip:]


def uniform(start: int, count: int, *key: int) -> npt.NDArray[np.float64]:
    """Returns numbers start, start + 1, ... of the endless uniform sequence that belongs to `key`.

    Returns:
        float64[count], multiples of 2**-53 with 0 <= u < 1.
    """
    numbers: npt.NDArray[np.float64] = (raw_words(start, count, *key) >> np.uint64(11)).astype(np.float64)
    numbers *= 2.0**-53
    return numbers


def sort_places(words: Uint64Array) -> Uint64Array:
    """Returns a random permutation of each row of random words; overwrites them.

    The place of a word is put into its low bits, so that all values of a row differ: any sorting algorithm then
    gives the same result, and sorting values is several times faster than a stable argsort.

    Args:
        words: uint64[..., n], random, n >= 1.

    Returns:
        uint64[..., n]: the same memory, each row a permutation of 0 ... n - 1.
    """
    length = words.shape[-1]
    place_mask = np.uint64((1 << max(1, (length - 1).bit_length())) - 1)
    words &= ~place_mask
    words |= np.arange(length, dtype=np.uint64)
    words.sort(axis=-1)
    words &= place_mask
    return words


def permutation(length: int, *key: int) -> Int64Array:
    """Returns the random permutation of 0 ... length - 1 that belongs to `key`.

    Args:
        length: At least 0.
        *key: Whole numbers that name the permutation.

    Returns:
        int64[length].
    """
    if length == 0:
        return np.zeros(0, np.int64)
    return sort_places(raw_words(0, length, *key)).view(np.int64)
