"""Suggests the name that the user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_NEAR = 0.6
"""Least similarity of a suggested name, from 0 to 1."""
_TIE = 0.04
"""How far below the best similarity a name may be to be suggested too."""


def nearest_names(wrong: str, allowed: Iterable[str]) -> list[str]:
    """Returns the allowed names that are most similar to a wrong one; [] if none is similar enough."""
    similarity = {name: difflib.SequenceMatcher(None, wrong, name).ratio() for name in sorted(set(allowed))}
    best = max(similarity.values(), default=0.0)
    if best < _NEAR:
        return []
    return sorted((name for name in similarity if similarity[name] >= best - _TIE), key=lambda name: -similarity[name])


def describe_nearest(wrong: str, allowed: Iterable[str], before: str = "") -> str:
    """Returns a sentence with the most similar allowed names, or with all allowed names if none is similar.

    Args:
        wrong: The name that was given.
        allowed: The names that are allowed.
        before: Prefix of each name that is shown, such as "trainer.".
    """
    names = sorted(set(allowed))
    near = nearest_names(wrong, names)
    if near:
        return f"Did you mean {' or '.join(before + name for name in near)}?"
    return f"There are: {', '.join(before + name for name in names)}." if names else "There are none."
