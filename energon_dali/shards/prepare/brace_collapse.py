"""Writes lists of shard names short: runs of numbered names become one pattern with braces."""

from __future__ import annotations

import re
from collections.abc import Sequence

from braceexpand import braceexpand

_NUMBER = re.compile(r"\d+")
_SPECIAL = re.compile(r"[{},\\]")


def collapse_names(names: Sequence[str]) -> list[str]:
    """Returns patterns that expand to exactly these names in this order.

    `a_00.tar, a_01.tar, a_02.tar` becomes `a_{00..02}.tar`. Names that hold braces, commas or backslashes are escaped.

    Args:
        names: Shard names, in the order they have to keep.
    """
    patterns: list[str] = []
    position = 0
    while position < len(names):
        length, pattern = _run(names, position)
        patterns.append(pattern)
        position += length
    return patterns


def _run(names: Sequence[str], start: int) -> tuple[int, str]:
    """Returns (names covered, pattern) of the longest run that begins at `start`."""
    first = names[start]
    best = (1, _escape(first))
    if _SPECIAL.search(first) or start + 1 == len(names):
        return best
    for match in _NUMBER.finditer(first):
        head, tail, digits = first[: match.start()], first[match.end() :], match[0]
        padded = digits.startswith("0") and len(digits) > 1
        value, count = int(digits), 1
        while start + count < len(names):
            number = str(value + count).zfill(len(digits)) if padded else str(value + count)
            if (padded and len(number) > len(digits)) or names[start + count] != head + number + tail:
                break
            count += 1
        if count > best[0]:
            last = str(value + count - 1).zfill(len(digits)) if padded else str(value + count - 1)
            pattern = f"{head}{{{digits}..{last}}}{tail}"
            if list(braceexpand(pattern)) == list(names[start : start + count]):
                best = (count, pattern)
    return best


def _escape(name: str) -> str:
    return _SPECIAL.sub(lambda match: "\\" + match[0], name)
