"""Warnings about what Energon deprecated."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def warn_deprecated(reason: str, stacklevel: int = 2) -> None:
    """Warns with a FutureWarning, which Python shows by default.

    Args:
        reason: What to do instead.
        stacklevel: Which caller's line the warning names.
    """
    warnings.warn(reason, FutureWarning, stacklevel=stacklevel + 1)


def deprecated(reason: str) -> Callable[[F], F]:
    """Returns a decorator of functions whose calls warn."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            warn_deprecated(f"{function.__name__} is deprecated: {reason}", stacklevel=2)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate
