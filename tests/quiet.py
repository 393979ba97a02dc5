"""An error handler that logs nothing, in a module that workers load quickly."""

from __future__ import annotations

from typing import Any


def quiet(error: Exception, sample: Any, sources: Any) -> None:
    """Logs nothing."""
