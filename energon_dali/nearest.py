"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_NEAR = 0.6
"""Least likeness of names that may be meant, from 0 to 1."""
_AS_NEAR = 0.04
"""How much less like than the best a name may be to be named beside it."""


def nearest_names(wrong: str, allowed: Iterable[str]) -> list[str]:
    """Returns the allowed name that looks most like a wrong one, and those that look nearly as much so; none if none
    is near.
    """
    likeness = {name: difflib.SequenceMatcher(None, wrong, name).ratio() for name in sorted(set(allowed))}
    best = max(likeness.values(), default=0.0)
    if best < _NEAR:
        return []
    return sorted((name for name in likeness if likeness[name] >= best - _AS_NEAR), key=lambda name: -likeness[name])


def describe_nearest(wrong: str, allowed: Iterable[str], before: str = "") -> str:
    """Returns a sentence that names the nearest of the allowed names, or all of them if none is near.

    Args:
        wrong: What was given.
        allowed: What may be given in its place.
        before: What to write before each name that is shown, such as "trainer.".
    """
    names = sorted(set(allowed))
    near = nearest_names(wrong, names)
    if near:
        return f"Did you mean {' or '.join(before + name for name in near)}?"
    return f"There are: {', '.join(before + name for name in names)}." if names else "There are none."
