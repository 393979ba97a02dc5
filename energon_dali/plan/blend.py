"""Which dataset the k-th draw of a blend takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.rng import Int64Array, uniform
from energon_dali.plan.seeds import BLEND


def blend_draws(weights: Sequence[float], seed: int, stream: int, start: int, count: int) -> Int64Array:
    """Returns which dataset the draws start, start + 1, ... of a stream take.

    A draw depends on (weights, seed, stream, its number) alone, so a position is all the state a blend has.

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
    return np.searchsorted(cumulative, uniform(start, count, BLEND, seed, stream), side="right").astype(np.int64)
