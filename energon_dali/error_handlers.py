"""Handlers of failed samples, which `WorkerConfig` takes."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from energon_dali.errors import DecodeError, ShardError
from energon_dali.samples import SourceInfo
from energon_dali.samples.transfer import attributes_of

LOGGER = logging.getLogger("energon_dali")

_MAX_TEXT = 80
_MAX_ITEMS = 16
_MAX_DEPTH = 4
_MAX_SOURCES = 8


def log_exception(exception: Exception, sample: Any, sources: Sequence[SourceInfo] | None = None) -> None:
    """Logs a failed sample as an error: the traceback, the sources of the sample, and its shapes without its data.

    A damaged file (DecodeError, ShardError) is logged in one line, since its traceback says nothing about the file; the
    rest is logged at the level DEBUG. Python prints errors of the logger "energon_dali" on stderr, unless logging is
    configured.

    Args:
        exception: The exception that was raised.
        sample: The sample, list of samples, or batch that was in work; None if there was none yet.
        sources: The sources of the sample.
    """
    is_damage = isinstance(exception, (DecodeError, ShardError))
    if is_damage:
        LOGGER.error("A sample was dropped: %s (%s)", " ".join(str(exception).split()), _place(sample, sources))
        if not LOGGER.isEnabledFor(logging.DEBUG):
            return
    lines = ["A sample was dropped because of this error:"]
    trace = traceback.format_exception(type(exception), exception, exception.__traceback__)
    lines += "".join(trace).rstrip().splitlines()
    for source in list(sources or ())[:_MAX_SOURCES]:
        lines.append(f"source: {source}")
    if sources and len(sources) > _MAX_SOURCES:
        lines.append(f"source: ... and {len(sources) - _MAX_SOURCES} more")
    if sample is not None:
        lines.append(f"sample: {describe(sample)}")
    LOGGER.log(logging.DEBUG if is_damage else logging.ERROR, "\n".join(lines))


def _place(sample: Any, sources: Sequence[SourceInfo] | None) -> str:
    """Returns where a sample was read, for one line of the log."""
    if not sources:
        return describe(sample)
    first = sources[0]
    more = f", and {len(sources) - 1} more sources" if len(sources) > 1 else ""
    names = ", ".join(first.file_names[:_MAX_SOURCES]) or f"sample {first.index}"
    return f"{names} in {first.shard_name} of {first.dataset_path}{more}"


def reraise_exception(exception: Exception, sample: Any, sources: Sequence[SourceInfo] | None = None) -> None:
    """Raises the exception, so that the first failed sample ends the run.

    Args:
        exception: The exception that was raised.
        sample: Not used.
        sources: Not used.

    Raises:
        Exception: The given one.
    """
    raise exception


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
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        device = f", device={value.device}" if hasattr(value, "device") else ""
        return f"{type(value).__name__}(shape={tuple(value.shape)}, dtype={value.dtype}{device})"
    if depth >= _MAX_DEPTH:
        return f"{type(value).__name__}(...)"
    if isinstance(value, Mapping):
        pairs = [f"{key!s}: {describe(inner, depth + 1)}" for key, inner in _first(value.items())]
        return _items("{", pairs, len(value), "}")
    if isinstance(value, (list, tuple)):
        return _items("[", [describe(inner, depth + 1) for inner in _first(value)], len(value), "]")
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        attributes = {name: inner for name, inner in attributes_of(value).items() if name != "__sources__"}
        shown = [f"{name}={describe(inner, depth + 1)}" for name, inner in _first(attributes.items())]
        return _items(f"{type(value).__name__}(", shown, len(attributes), ")")
    try:
        text = repr(value)
    except Exception as error:  # of a user's class, such as a dataclass with unset fields
        text = f"{type(value).__name__}(repr failed: {type(error).__name__})"
    return text if len(text) <= 2 * _MAX_TEXT else f"{text[: 2 * _MAX_TEXT]}..."


def _first(values: Any) -> list[Any]:
    return [value for _, value in zip(range(_MAX_ITEMS), values, strict=False)]


def _items(opening: str, inner: list[str], count: int, closing: str) -> str:
    rest = [f"... {count - len(inner)} more"] if count > len(inner) else []
    return opening + ", ".join([*inner, *rest]) + closing
