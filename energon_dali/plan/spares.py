"""What takes the place of a sample that fails in a step of fixed samples: a function of its unit alone."""

from __future__ import annotations

from energon_dali.plan.rng import SPARE, mix

SPARES = 3
"""Spares that are tried for a unit that failed."""
_UNIT_BITS = 52
"""Units are below 2 ** 48, so that further bits can say which spare of a unit is meant."""


def spare_number(seed: int, unit: int, attempt: int, num_samples: int) -> int:
    """Returns which sample of a source takes the place of a unit that failed.

    Args:
        seed: Seed of the job.
        unit: The unit.
        attempt: How many spares of it failed before.
        num_samples: Number of samples of the source, at least 1.

    Returns:
        Its number in the source, 0 <= number < num_samples.
    """
    return mix(SPARE, seed, unit, attempt) % num_samples


def spare_pass(unit: int, attempt: int) -> int:
    """Returns the number of the pass of a spare: an extra repeat, which no row of a plan has."""
    return (1 << 61) + unit * 64 + attempt


def spare_unit(unit: int, attempt: int) -> int:
    """Returns the number by which hooks draw random numbers for a spare: that of no unit."""
    return unit + ((attempt + 1) << _UNIT_BITS)


def attempts_of(number: int) -> int:
    """Returns which spare of a unit has a number, from 1 on; 0 for the unit itself."""
    return number >> _UNIT_BITS


def unit_of_number(number: int) -> int:
    """Returns the unit of which a number is, or a spare of which it is."""
    return number & ((1 << _UNIT_BITS) - 1)
