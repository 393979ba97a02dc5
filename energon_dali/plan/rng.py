"""Random numbers as functions: the same arguments always give the same values, on every machine.

Only the raw output of numpy's Philox is used. It is specified by its authors (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", 2011) and numpy keeps it stable, while the methods of `numpy.random.Generator` may change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Uint64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

# The first part of every key says what the random numbers are for, so that no two uses share their numbers.
SLICES = 1
SLICE_DRAWS = 2
WINDOW = 3
SAMPLE = 4
BLEND = 7
INTERLEAVE = 8
DEAL = 9
SPARE = 10
SCHEDULE = 11
PACKS = 12
BUFFER = 20

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
    """Returns a 64-bit hash of integers, which depends on each of them, their order and their count.

    Args:
        *values: Integers of any size or sign; each is taken modulo 2**64.

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


def mix_arrays(*values: int | Int64Array | Uint64Array, state: int | Uint64Array = 0) -> Uint64Array:
    """Returns `mix` of each row of numbers.

    Args:
        *values: Integers or integer arrays [n]; they broadcast against each other.
        state: `mix` of the numbers that precede them; uint64[n] if they differ.

    Returns:
        uint64[n], equal to `mix` of the same numbers; uint64[1] if only numbers were given.
    """
    mixed: Uint64Array = np.array([state], np.uint64) if isinstance(state, int) else state
    golden = np.uint64(_GOLDEN)
    for value in values:
        # One-element arrays instead of scalars, because array arithmetic wraps around without a warning.
        numbers = np.array([value & _MASK], np.uint64) if isinstance(value, int) else np.atleast_1d(value)
        column = numbers.astype(np.uint64, copy=False)
        mixed = _finish_array((mixed + golden) ^ _finish_array(column + golden))
    return mixed


def raw_words(start: int, count: int, *key: int) -> Uint64Array:
    """Returns words start, start + 1, ... of the infinite random sequence of a key.

    Args:
        start: Index of the first word, at least 0; any word is reached in O(1).
        count: Number of words.
        *key: Integers that identify the sequence.

    Returns:
        uint64[count].
    """
    counter, skip = divmod(start, _WORDS_PER_COUNTER)
    words = np.random.Philox(key=mix(*key), counter=counter).random_raw(skip + count)
    return words[skip:]


def uniform(start: int, count: int, *key: int) -> npt.NDArray[np.float64]:
    """Returns numbers start, start + 1, ... of the infinite uniform sequence of a key.

    Returns:
        float64[count], multiples of 2**-53 with 0 <= u < 1.
    """
    numbers: npt.NDArray[np.float64] = (raw_words(start, count, *key) >> np.uint64(11)).astype(np.float64)
    numbers *= 2.0**-53
    return numbers


def sort_to_permutations(words: Uint64Array) -> Uint64Array:
    """Returns a random permutation of each row of random words; overwrites them.

    The index of a word replaces its low bits, so that all values of a row differ: any sorting algorithm then gives the
    same result, and sorting values is several times faster than a stable argsort.

    Args:
        words: uint64[..., n], random, n >= 1.

    Returns:
        uint64[..., n]: the same memory, each row a permutation of 0 ... n - 1.
    """
    length = words.shape[-1]
    index_mask = np.uint64((1 << max(1, (length - 1).bit_length())) - 1)
    words &= ~index_mask
    words |= np.arange(length, dtype=np.uint64)
    words.sort(axis=-1)
    words &= index_mask
    return words


def stable_order(keys: Int64Array | npt.NDArray[np.int32]) -> Int64Array:
    """Returns the order that sorts keys, in which equal keys keep their order: int64[n].

    The indices are sorted with the keys in their high bits, which is several times faster than a stable argsort.

    Args:
        keys: int64[n] or int32[n]: at least 0, and below 2 ** 63 / n.
    """
    bits = max(1, (len(keys) - 1).bit_length())
    numbers = keys.astype(np.int64) << bits
    numbers |= np.arange(len(keys))
    numbers.sort()
    numbers &= (1 << bits) - 1
    order: Int64Array = numbers
    return order


def permutation(length: int, *key: int) -> Int64Array:
    """Returns the random permutation of 0 ... length - 1 of a key.

    Args:
        length: At least 0.
        *key: Integers that identify the permutation.

    Returns:
        int64[length].
    """
    if length == 0:
        return np.zeros(0, np.int64)
    return sort_to_permutations(raw_words(0, length, *key)).view(np.int64)


def sample_seed(seed: int, source: int, epoch: int, index: int) -> int:
    """Returns the seed of the random operations on one sample, wherever and whenever it is processed.

    Args:
        seed: Seed of the job.
        source: Number of the source in the tree.
        epoch: Number of the pass over the data, as `EpochOrder.samples` returns it.
        index: Number of the sample in its dataset.

    Returns:
        0 <= seed < 2**63.
    """
    return mix(SAMPLE, seed, source, epoch, index) >> 1


def source_seed(seed: int, source: int) -> int:
    """Returns what the seeds of all samples of a source have in common, for `sample_seeds`.

    Args:
        seed: Seed of the job.
        source: Number of the source in the tree.
    """
    return mix(SAMPLE, seed, source)


def sample_seeds(sources: Uint64Array, epochs: Int64Array, indices: Int64Array) -> Int64Array:
    """Returns `sample_seed` of many samples at once.

    Args:
        sources: uint64[n] or uint64[1]: `source_seed` of their sources.
        epochs: int64[n], numbers of passes.
        indices: int64[n], numbers of the samples.

    Returns:
        int64[n], not negative.
    """
    seeds = mix_arrays(epochs, indices, state=sources)
    seeds >>= np.uint64(1)
    return seeds.view(np.int64)
