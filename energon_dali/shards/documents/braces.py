"""Expands braces such as `shard_{000..999}.tar`, after counting what that gives."""

from __future__ import annotations

import re
from collections.abc import Iterable

from braceexpand import braceexpand

MAX_NAMES = 1_000_000
"""Names that all patterns of a file give together."""
MAX_NAME_LETTERS = 4096
"""Length of a pattern without its braces, and of a name; no file system allows longer paths."""
MAX_PATTERN_LETTERS = 1 << 20
"""Length of a pattern: `{...}` may list many names."""
MAX_TOTAL_LETTERS = 1 << 28
"""Letters of all names together, at most."""
MAX_BRACE_DEPTH = 32
MAX_RANGE_LETTERS = 100

_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.-?(\d+))?$")  # as braceexpand takes it


def expand_braces(patterns: Iterable[str]) -> list[str]:
    """Returns the names that patterns give, in order.

    Args:
        patterns: Names with braces: `{a,b}` lists, `{0..9}`, `{00..90..10}` and `{a..f}` count.

    Raises:
        ValueError: Braces do not match, or the patterns give too many or too long names; says so in words.
    """
    names: list[str] = []
    letters = 0
    for pattern in patterns:
        if "{" not in pattern and "}" not in pattern and "\\" not in pattern:
            expanded = [pattern]
        else:
            count = _count(pattern)
            letters += count * len(pattern)
            if len(names) + count > MAX_NAMES or letters > MAX_TOTAL_LETTERS:
                raise ValueError(f"the pattern {_short(pattern)} gives {count:,} names, and {MAX_NAMES:,} are allowed")
            try:
                expanded = list(braceexpand(pattern))
            except ValueError as error:
                raise ValueError(
                    f"the pattern {_short(pattern)} cannot be expanded: its braces do not match"
                ) from error
        if any(len(name) > MAX_NAME_LETTERS for name in expanded):
            raise ValueError(f"the pattern {_short(pattern)} gives names of more than {MAX_NAME_LETTERS} letters")
        names += expanded
        if len(names) > MAX_NAMES:
            raise ValueError(f"there are more than {MAX_NAMES:,} names")
    return names


class _Group:
    """Braces that are being read: what their alternatives give so far."""

    __slots__ = ("alternatives", "product", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.product = 1
        self.alternatives = 0
        """Names of the alternatives before the running one."""


def _count(pattern: str) -> int:
    """Returns how many names a pattern gives, without making them.

    Raises:
        ValueError: It is too long or too deep.
    """
    if len(pattern) > MAX_PATTERN_LETTERS:
        raise ValueError(f"the pattern {_short(pattern)} has {len(pattern):,} letters")
    groups = [_Group(0)]
    position = 0
    while position < len(pattern):
        letter = pattern[position]
        if letter == "\\":
            position += 1
        elif letter == "{":
            if len(groups) > MAX_BRACE_DEPTH:
                raise ValueError(f"the pattern {_short(pattern)} has braces in more than {MAX_BRACE_DEPTH} levels")
            groups.append(_Group(position + 1))
        elif letter == "," and len(groups) > 1:
            groups[-1].alternatives += groups[-1].product
            groups[-1].product = 1
        elif letter == "}":
            done = groups.pop()
            if not groups:
                raise ValueError(f"the pattern {_short(pattern)} cannot be expanded: its braces do not match")
            inside = _range_length(pattern[done.start : position])
            groups[-1].product *= inside or done.alternatives + done.product
            if groups[-1].product > MAX_NAMES:
                return groups[-1].product
        position += 1
    return groups[0].product


def _range_length(text: str) -> int | None:
    """Returns how many names `first..last..step` counts; None if it is not a range."""
    match = _RANGE.match(text)
    if match is None:
        return None
    if len(text) > MAX_RANGE_LETTERS:
        raise ValueError(f"the range {_short(text)} has numbers that are too long")
    first, last = ((ord(end) if end.isalpha() else int(end)) for end in match.group(1, 2))
    return abs(last - first) // (int(match[3] or 1) or 1) + 1


def _short(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 100 else f"{pattern[:97]}...")
