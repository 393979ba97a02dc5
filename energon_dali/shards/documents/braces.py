"""Expands and collapses patterns with braces, such as `shard_{000..999}.tar`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from braceexpand import braceexpand

MAX_NAMES = 1_000_000
"""Limit of the names from all patterns of a file together."""
MAX_NAME_LETTERS = 4096
"""Longest name, and longest pattern without braces; no file system allows longer paths."""
MAX_PATTERN_LETTERS = 1 << 20
"""Longest pattern: `{...}` may list many names."""
MAX_TOTAL_LETTERS = 1 << 28
"""Limit of the letters of all names together."""
MAX_BRACE_DEPTH = 32
MAX_RANGE_LETTERS = 100

_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.-?(\d+))?$")  # what braceexpand accepts
_NUMBERED = re.compile(r"([^{},\\]*)\{([0-9]{1,18})\.\.([0-9]{1,18})\}([^{},\\]*)")
"""A name with one range of numbers, as `collapse_names` writes it: braceexpand takes ten times as long for it."""
_NUMBER = re.compile(r"\d+")
_SPECIAL = re.compile(r"[{},\\]")


def expand_braces(patterns: Iterable[str]) -> list[str]:
    """Expands patterns with braces to names, in order.

    The names are counted before they are created.

    Args:
        patterns: Names with braces: lists such as `{a,b}`, and ranges such as `{0..9}`, `{00..90..10}` and `{a..f}`.

    Raises:
        ValueError: Braces do not match, or the patterns expand to too many or too long names.
    """
    names: list[str] = []
    letters = 0
    for pattern in patterns:
        if "{" not in pattern and "}" not in pattern and "\\" not in pattern:
            expanded = [pattern]
        else:
            numbered = _NUMBERED.fullmatch(pattern)
            count = _count(pattern) if numbered is None else abs(int(numbered[3]) - int(numbered[2])) + 1
            letters += count * len(pattern)
            if len(names) + count > MAX_NAMES or letters > MAX_TOTAL_LETTERS:
                raise ValueError(f"the pattern {_short(pattern)} gives {count:,} names, and {MAX_NAMES:,} are allowed")
            expanded = _expand(pattern) if numbered is None else _expand_numbered(*numbered.groups())
        if any(len(name) > MAX_NAME_LETTERS for name in expanded):
            raise ValueError(f"the pattern {_short(pattern)} gives names of more than {MAX_NAME_LETTERS} letters")
        names += expanded
        if len(names) > MAX_NAMES:
            raise ValueError(f"there are more than {MAX_NAMES:,} names")
    return names


def _expand_numbered(head: str, first: str, last: str, tail: str) -> list[str]:
    padded = any(end.startswith("0") and end != "0" for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    start, stop = int(first), int(last)
    numbers = range(start, stop + 1) if start < stop else range(start, stop - 1, -1)
    return [f"{head}{number:0{width}d}{tail}" for number in numbers]


def _expand(pattern: str) -> list[str]:
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise ValueError(f"the pattern {_short(pattern)} cannot be expanded: its braces do not match") from error


@dataclass(slots=True, eq=False)
class _Group:
    """An open brace while a pattern is counted."""

    start: int
    product: int = 1
    alternatives: int = 0
    """Number of names of the alternatives before the current one."""


def _count(pattern: str) -> int:
    """Returns how many names a pattern expands to, without creating them.

    Raises:
        ValueError: It is too long, or nested too deeply.
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
    """Returns how many names `first..last..step` expands to; None if it is not a range."""
    match = _RANGE.match(text)
    if match is None:
        return None
    if len(text) > MAX_RANGE_LETTERS:
        raise ValueError(f"the range {_short(text)} has numbers that are too long")
    first, last = ((ord(end) if end.isalpha() else int(end)) for end in match.group(1, 2))
    return abs(last - first) // (int(match[3] or 1) or 1) + 1


def _short(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 100 else f"{pattern[:97]}...")


def collapse_names(names: Sequence[str]) -> list[str]:
    """Returns short patterns that expand to exactly these names in this order.

    `a_00.tar, a_01.tar, a_02.tar` becomes `a_{00..02}.tar`. Braces, commas and backslashes in names are escaped.

    Args:
        names: Shard names.
    """
    patterns: list[str] = []
    position = 0
    while position < len(names):
        length, pattern = _run(names, position)
        patterns.append(pattern)
        position += length
    return patterns


def _run(names: Sequence[str], start: int) -> tuple[int, str]:
    """Returns (number of names, pattern) of the longest run of numbered names that begins at `start`."""
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
