"""Which dataset the k-th draw of a blend takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError
from energon_dali.plan.rng import Int64Array, raw_words, sort_places
from energon_dali.plan.seeds import BLEND

BLOCK_DRAWS = 1024
"""Draws that are spread evenly together; a power of two."""

_BLOCK_BITS = 10
_FRACTION_BITS = 53
"""Bits of a draw: as many as a float64 holds exactly."""


def blend_draws(weights: Sequence[float], seed: int, stream: int, start: int, count: int) -> Int64Array:
    """Returns which dataset the draws start, start + 1, ... of a stream take.

    A draw depends on (weights, seed, stream, its number) alone, so a position is all the state a blend has. The 1,024
    draws of a block take 1,024 equal strata of the weights, one each, in random order: a dataset of share p comes in
    each block 1,024 p times, give or take one, and so its share wanders far less than that of independent draws.

    Args:
        weights: One per dataset, finite and not negative; they need not sum to 1. A weight of 0 is never drawn.
        seed: Seed of the blend.
        stream: Number of the stream.
        start: Number of the first draw, at least 0.
        count: How many draws.

    Returns:
        int64[count], numbers of datasets.

    Raises:
        ConfigError: There is no positive weight, or a weight is negative, infinite or not a number.
    """
    values = np.asarray(weights, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise ConfigError(
            f"The blend weights {list(weights)} cannot work: give one finite number of at least 0 per dataset, and at "
            "least one that is positive."
        )
    # Scaled by the largest first: sums of huge or tiny weights neither overflow nor vanish.
    cumulative = np.cumsum(values / values.max())  # [n]
    cumulative /= cumulative[-1]
    # u < 1 and the last positive weight ends at exactly 1, so a trailing weight of 0 is out of reach.
    return np.searchsorted(cumulative, _stratified(start, count, seed, stream), side="right").astype(np.int64)


def _stratified(start: int, count: int, seed: int, stream: int) -> npt.NDArray[np.float64]:
    """Returns float64[count], 0 <= u < 1: numbers start, start + 1, ... of a sequence that fills each block evenly."""
    first = start // BLOCK_DRAWS
    blocks = -(-(start + count) // BLOCK_DRAWS) - first
    size = blocks * BLOCK_DRAWS
    # Two words per draw: its stratum is decided by the first, its place inside it by the second.
    words = raw_words(2 * first * BLOCK_DRAWS, 2 * size, BLEND, seed, stream).reshape(blocks, 2, BLOCK_DRAWS)
    inside = words[:, 1] >> np.uint64(64 - _FRACTION_BITS + _BLOCK_BITS)  # [blocks, 1024], 43 bits
    strata = sort_places(np.ascontiguousarray(words[:, 0]))  # [blocks, 1024]
    numbers = (strata << np.uint64(_FRACTION_BITS - _BLOCK_BITS)) | inside
    place = start - first * BLOCK_DRAWS
    uniform: npt.NDArray[np.float64] = numbers.reshape(-1)[place : place + count].astype(np.float64)
    uniform *= 2.0**-_FRACTION_BITS
    return uniform
