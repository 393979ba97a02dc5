"""The plain values in JSON by name: what a scan keeps of a JSON part, and what the table shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

Plain: TypeAlias = str | int | float
"""A value of a field. True, false and null are these words."""

MAX_FIELDS = 64
"""Values of one sample that a scan keeps."""
MAX_VALUE = 100
"""Longest text that is a value: longer ones differ from sample to sample, and the text search finds them."""
_MAX_DEPTH = 4
_MAX_NAME = 200
_MAX_NUMBER = 1 << 62


def plain_fields(value: Any) -> Iterator[tuple[str, Plain]]:
    """Yields (name, value) of the plain values in JSON; names of nested ones are joined by dots.

    A list of plain values has each of them under its own name. Lists of objects, such as conversations, are left out.

    Args:
        value: The JSON value.
    """
    yield from _plain("", value, 0)


def _plain(name: str, value: Any, depth: int) -> Iterator[tuple[str, Plain]]:
    if isinstance(value, dict):
        if depth < _MAX_DEPTH:
            for key, inner in value.items():
                yield from _plain(f"{name}.{key}" if name else str(key), inner, depth + 1)
    elif isinstance(value, list):
        if all(item is None or isinstance(item, (str, int, float)) for item in value):
            for item in value:
                yield from _plain(name, item, depth)
    elif len(name) <= _MAX_NAME:
        if value is None or isinstance(value, bool):
            yield name, {None: "null", True: "true", False: "false"}[value]
        elif isinstance(value, (str, float)) or abs(value) < _MAX_NUMBER:
            yield name, value


def stored_fields(value: Any) -> list[tuple[str, Plain]]:
    """Returns the fields that a scan keeps of a JSON value: the first `MAX_FIELDS`, without long texts."""
    found: dict[tuple[str, Plain], None] = {}
    for name, plain in plain_fields(value):
        if not isinstance(plain, str) or len(plain) <= MAX_VALUE:
            found[name, plain] = None
        if len(found) == MAX_FIELDS:
            break
    return list(found)
