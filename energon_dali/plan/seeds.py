"""Seeds of random draws, as functions of what is drawn for."""

from __future__ import annotations

import numpy as np

from energon_dali.plan.rng import Int64Array, mix, mix_arrays, mix_on

# What a random number is for is the first part of its key, so that no two uses share their numbers.
SLICES = 1
SLICE_DRAWS = 2
WINDOW = 3
SAMPLE = 4
STREAM = 5
LEAF = 6
BLEND = 7
INTERLEAVE = 8
BUFFER = 20

_FEW = 16


def sample_seed(seed: int, leaf: int, epoch: int, index: int) -> int:
    """Returns the seed of the random operations on one sample, the same wherever and whenever it is processed.

    Args:
        seed: Seed of the job.
        leaf: Number of the dataset in the tree.
        epoch: Which pass over the data, as `EpochOrder.samples` gives it.
        index: Number of the sample in its dataset.

    Returns:
        0 <= seed < 2**63.
    """
    return mix(SAMPLE, seed, leaf, epoch, index) >> 1


def sample_seeds(seed: int, leaf: int, epochs: Int64Array, indices: Int64Array) -> Int64Array:
    """Returns `sample_seed` of many samples at once.

    Args:
        seed: Seed of the job.
        leaf: Number of the dataset in the tree.
        epochs: int64[n], passes.
        indices: int64[n], numbers of the samples.

    Returns:
        int64[n], not negative.
    """
    state = mix(SAMPLE, seed, leaf)
    if len(epochs) < _FEW:  # small datasets of a blend: arrays would cost more than they save
        rows = zip(epochs.tolist(), indices.tolist(), strict=True)
        return np.array([mix_on(state, epoch, index) >> 1 for epoch, index in rows], np.int64)
    seeds = mix_arrays(epochs, indices, state=state)
    seeds >>= np.uint64(1)
    return seeds.view(np.int64)


def stream_seed(seed: int, stream: int) -> int:
    """Returns the seed of draws that belong to a stream as a whole, 0 <= seed < 2**63."""
    return mix(STREAM, seed, stream) >> 1


def leaf_seed(seed: int, leaf: int) -> int:
    """Returns the seed of draws that belong to a dataset as a whole, 0 <= seed < 2**63."""
    return mix(LEAF, seed, leaf) >> 1
