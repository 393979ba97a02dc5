"""Which source the k-th draw of a blend takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError
from energon_dali.plan.rng import BLEND, Int64Array, raw_words, sort_to_permutations

GROUP_DRAWS = 1024
"""Number of draws that are stratified together; a power of two."""

_GROUP_BITS = 10
_FRACTION_BITS = 53
"""Bits of a draw: as many as a float64 holds exactly."""


def blend_draws(weights: Sequence[float], seed: int, stream: int, start: int, count: int) -> Int64Array:
    """Returns which source the draws start, start + 1, ... of a stream take.

    A draw depends only on (weights, seed, stream, its number), so a position is all the state that a blend has. The
    draws are stratified: each group of 1,024 takes 1,024 equal strata of the weights, one each, in random order. A
    source of proportion p is drawn 1,024 p times per group, give or take one: far closer than independent draws.

    Args:
        weights: One per source, finite and not negative; they need not sum to 1. A weight of 0 is never drawn.
        seed: Seed of the blend.
        stream: Number of the stream.
        start: Number of the first draw, at least 0.
        count: How many draws.

    Returns:
        int64[count], indices of sources.

    Raises:
        ConfigError: There is no positive weight, or a weight is negative, infinite or not a number.
    """
    values = np.asarray(weights, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise ConfigError(
            f"The blend weights {list(weights)} are invalid: give one finite number of at least 0 per dataset, at "
            "least one of them positive."
        )
    # Scaled by the largest weight first, so that sums of huge or tiny weights neither overflow nor vanish.
    cumulative = np.cumsum(values / values.max())  # [n]
    cumulative /= cumulative[-1]
    # u < 1 and the last positive weight ends at exactly 1, so a trailing weight of 0 is never drawn.
    return np.searchsorted(cumulative, _stratified(start, count, seed, stream), side="right").astype(np.int64)


def _stratified(start: int, count: int, seed: int, stream: int) -> npt.NDArray[np.float64]:
    """Returns float64[count], 0 <= u < 1: numbers start, start + 1, ... of a sequence stratified group by group."""
    first = start // GROUP_DRAWS
    groups = -(-(start + count) // GROUP_DRAWS) - first
    size = groups * GROUP_DRAWS
    # Two words per draw: the first decides its stratum, the second its position within the stratum.
    words = raw_words(2 * first * GROUP_DRAWS, 2 * size, BLEND, seed, stream).reshape(groups, 2, GROUP_DRAWS)
    inside = words[:, 1] >> np.uint64(64 - _FRACTION_BITS + _GROUP_BITS)  # [groups, 1024], 43 bits
    strata = sort_to_permutations(np.ascontiguousarray(words[:, 0]))  # [groups, 1024]
    numbers = (strata << np.uint64(_FRACTION_BITS - _GROUP_BITS)) | inside
    offset = start - first * GROUP_DRAWS
    uniform: npt.NDArray[np.float64] = numbers.reshape(-1)[offset : offset + count].astype(np.float64)
    uniform *= 2.0**-_FRACTION_BITS
    return uniform
