"""Describes samples in short: names, types, shapes and beginnings of texts, without their data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from energon_dali.samples.transfer import attributes_of

_MAX_TEXT = 80
_MAX_ITEMS = 16
_MAX_DEPTH = 4


def describe(value: Any, depth: int = 0) -> str:
    """Returns a short description of a sample: names, types, shapes and beginnings of texts, but not its data.

    Args:
        value: Anything. Tensors on a device are not read.
        depth: Nesting depth of this value in the sample.
    """
    if isinstance(value, str):
        return repr(value) if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]!r}... ({len(value)} characters)"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{type(value).__name__}({len(value)} bytes)"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if is_array(value):
        device = f", device={value.device}" if hasattr(value, "device") else ""
        return f"{type(value).__name__}(shape={tuple(value.shape)}, dtype={value.dtype}{device})"
    if depth >= _MAX_DEPTH:
        return f"{type(value).__name__}(...)"
    if isinstance(value, Mapping):
        pairs = [f"{key!s}: {describe(inner, depth + 1)}" for key, inner in _first(value.items())]
        return _items("{", pairs, len(value), "}")
    if isinstance(value, (list, tuple)):
        return _items("[", [describe(inner, depth + 1) for inner in _first(value)], len(value), "]")
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type) and not _describes_itself(value):
        attributes = {name: inner for name, inner in attributes_of(value).items() if name != "__sources__"}
        shown = [f"{name}={describe(inner, depth + 1)}" for name, inner in _first(attributes.items())]
        return _items(f"{type(value).__name__}(", shown, len(attributes), ")")
    try:
        text = repr(value)
    except Exception as error:  # of a user's class, such as a dataclass with unset fields
        text = f"{type(value).__name__}(repr failed: {type(error).__name__})"
    return text if len(text) <= 2 * _MAX_TEXT else f"{text[: 2 * _MAX_TEXT]}..."


def is_array(value: object) -> bool:
    """Returns whether a value is a tensor or an array."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _describes_itself(value: object) -> bool:
    """Returns whether the `repr` of a dataclass is short: media handles, clips, and what front ends make."""
    kind = type(value)
    return kind.__module__.startswith("energon_dali.decode.") or kind.__qualname__ == "Clips"


def _first(values: Iterable[Any]) -> list[Any]:
    return [value for _, value in zip(range(_MAX_ITEMS), values, strict=False)]


def _items(opening: str, inner: list[str], count: int, closing: str) -> str:
    rest = [f"... {count - len(inner)} more"] if count > len(inner) else []
    return opening + ", ".join([*inner, *rest]) + closing
