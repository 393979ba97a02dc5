"""Reads JSON of limited depth, without infinite numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

MAX_DEPTH = 64
"""Levels of nesting in one document."""

_Scan = Callable[[str, int], tuple[Any, int]]
_OPENING = (b"{"[0], b"["[0])


def parse_json(text: bytes | str, *, max_depth: int = MAX_DEPTH, any_number: bool = False) -> Any:
    """Parses a JSON text.

    Args:
        text: The text; bytes are UTF-8, UTF-16 or UTF-32, detected as in RFC 4627.
        max_depth: Maximum nesting, which later recursive code can also handle.
        any_number: Also accept numbers beyond float64 (as infinity), NaN and Infinity.

    Raises:
        ValueError: It is not JSON, is nested too deeply, or contains such a number.
    """
    try:
        value = _scanned(text, _SCAN_ANY if any_number else _SCAN)
        if value is _NOT_PLAIN:
            value = json.loads(text, **({} if any_number else _OPTIONS))
    except RecursionError:
        raise ValueError(f"values are nested in more than {max_depth} levels") from None
    # A few brackets cannot nest deeply, so most texts need no walk.
    opening: tuple[Any, Any] = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    brackets = text.count(opening[0]) + text.count(opening[1])
    if brackets > max_depth:
        _check_depth(value, max_depth)
    return value


_NOT_PLAIN: Any = object()


def _scanned(text: bytes | str, scan: _Scan) -> Any:
    """Returns the value of an object or array in UTF-8 without space around it; _NOT_PLAIN for any other text.

    `json.loads` guesses the encoding and looks for space, which takes longer than scanning a text of 200 bytes.
    """
    if isinstance(text, bytes):
        # RFC 4627 distinguishes encodings by zeros among the first bytes.
        if len(text) < 2 or text[0] not in _OPENING or not text[1]:
            return _NOT_PLAIN
        text = text.decode("utf-8", "surrogatepass")
    elif not isinstance(text, str) or not text.startswith(("{", "[")):
        return _NOT_PLAIN
    try:
        value, end = scan(text, 0)
    except StopIteration:
        return _NOT_PLAIN  # not JSON: `json.loads` says so
    return value if end == len(text) else _NOT_PLAIN


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


_OPTIONS: dict[str, Any] = {"parse_float": _number, "parse_constant": _refuse}
_SCAN: _Scan = json.JSONDecoder(**_OPTIONS).scan_once  # type: ignore[attr-defined]
_SCAN_ANY: _Scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
