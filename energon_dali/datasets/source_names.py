"""Short names of datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def short_names(paths: Sequence[str]) -> list[str]:
    """Returns the last parts of paths, as many as tell them apart; equal paths get a number: "train#2"."""
    twice = Counter(paths)
    parts = {path: path.rstrip("/").split("/") for path in twice}
    names: dict[str, str] = {}
    length = 1
    while len(names) < len(parts):
        tails = {path: "/".join(parts[path][-length:]) for path in parts if path not in names}
        shared = Counter(tails.values())
        names.update({path: tail for path, tail in tails.items() if shared[tail] == 1 or length >= len(parts[path])})
        length += 1
    seen: Counter[str] = Counter()
    result = []
    for path in paths:
        seen[names[path]] += 1
        result.append(names[path] if twice[path] == 1 else f"{names[path]}#{seen[names[path]]}")
    return result
