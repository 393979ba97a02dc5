"""Handlers of failed samples, which `WorkerConfig` takes."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from typing import Any

from energon_dali.errors import DecodeError, ShardError
from energon_dali.samples.base import SourceInfo
from energon_dali.samples.description import describe

LOGGER = logging.getLogger("energon_dali")

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
