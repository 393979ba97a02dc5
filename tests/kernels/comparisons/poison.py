"""What outputs hold before a kernel writes them, so that an element it leaves out differs from the reference."""

from __future__ import annotations

FLOATS = (float("nan"),)
"""Equals nothing, itself included."""
LEVELS = (17, 203)
"""One of them could be right by chance; both cannot."""


def poisons(is_bytes: bool) -> tuple[float, ...]:
    """Returns the values that an output is filled with, one run for each."""
    return LEVELS if is_bytes else FLOATS
