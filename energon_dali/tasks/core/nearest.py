"""The name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_names(wrong: str, allowed: Iterable[str], count: int = 3) -> list[str]:
    """Returns the allowed names that look most like a wrong one, best first; none if none is near."""
    return difflib.get_close_matches(wrong, sorted(set(allowed)), n=count, cutoff=0.6)


def describe_nearest(wrong: str, allowed: Iterable[str]) -> str:
    """Returns a sentence that names the nearest of the allowed names, or all of them if none is near."""
    names = sorted(set(allowed))
    near = nearest_names(wrong, names)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"There are: {', '.join(names)}." if names else "There are none."
