"""Reads JSON of limited depth, without infinite numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

MAX_DEPTH = 64
"""Levels of nesting in one document."""


def parse_json(text: bytes | str, *, max_depth: int = MAX_DEPTH, any_number: bool = False) -> Any:
    """Parses a JSON text.

    Args:
        text: The text; bytes are UTF-8, UTF-16 or UTF-32, detected as in RFC 4627.
        max_depth: Maximum nesting, which later recursive code can also handle.
        any_number: Also accept numbers beyond float64 (as infinity), NaN and Infinity.

    Raises:
        ValueError: It is not JSON, is nested too deeply, or contains such a number.
    """
    options: dict[str, Any] = {}
    if not any_number:
        options = {"parse_float": _number, "parse_constant": _refuse}
    try:
        value = json.loads(text, **options)
    except RecursionError:
        raise ValueError(f"values are nested in more than {max_depth} levels") from None
    # A few brackets cannot nest deeply, so most texts need no walk.
    brackets = [text.count(b) for b in "[{"] if isinstance(text, str) else [text.count(b) for b in (b"[", b"{")]
    if sum(brackets) > max_depth:
        _check_depth(value, max_depth)
    return value


def _check_depth(value: Any, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth):
        level = [inner for outer in level for inner in _members(outer) if type(inner) in (dict, list)]
        if not level:
            return
    raise ValueError(f"values are nested in more than {max_depth} levels")


def _members(value: Any) -> Iterable[Any]:
    if type(value) is dict:
        return value.values()
    return value if type(value) is list else ()


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:30]} does not fit a float of 64 bits")
    return number


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")
