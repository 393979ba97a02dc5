"""The rest of Energon's error handling, for programs that count failures themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from energon_dali.compat.samples import get_source_info
from energon_dali.errors import FatalSampleError, SampleException, SkipSample, StateError

Handler = Callable[[Exception, Any, Any], None]

SYSTEM_EXCEPTIONS = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
    FatalSampleError,
)
"""Errors that the next sample would meet too; a NameError is also an UnboundLocalError."""


class ErrorContext:
    """Counts consecutive failures of an operation.

    Args:
        name: What is done, for messages.
        handler: Called with (exception, sample, sources) for every failure; None calls nothing.
        tolerance: Consecutive failures after which the run ends; 0 is unlimited.
    """

    def __init__(self, name: str, handler: Handler | None, tolerance: int = 100) -> None:
        self.name = name
        self.handler = handler
        self.tolerance = tolerance
        self._failures = 0

    def reset(self) -> None:
        """Counts from 0 again."""
        self._failures = 0

    @contextmanager
    def handle_errors(self, sample: Any) -> Iterator[None]:
        """Catches and counts errors in the block; success resets the count. SkipSample is silent.

        Args:
            sample: What is worked on, for messages.

        Raises:
            FatalSampleError: The tolerance is used up, or the error would repeat for every sample.
        """
        try:
            yield
            self._failures = 0
        except SkipSample:
            return
        except SYSTEM_EXCEPTIONS as error:
            raise FatalSampleError.from_sample(
                sample, f"{self.name} failed with {type(error).__name__}: {error}. It would fail for every sample."
            ) from error
        except Exception as error:
            if self.handler is not None:
                self.handler(error, sample, get_source_info(sample))
            self._failures += 1
            if 0 < self.tolerance <= self._failures:
                raise FatalSampleError.from_sample(
                    sample, f"{self.name} failed {self._failures} times in a row: correct the code or the data."
                ) from error

    def __repr__(self) -> str:
        return f"ErrorContext(name={self.name!r}, tolerance={self.tolerance}, count={self._failures})"


@contextmanager
def handle_restore_errors(error_handler: Handler, sample: Any) -> Iterator[None]:
    """Passes errors in the block, in which a sample is made again, to a handler.

    Args:
        error_handler: Called with (exception, sample, sources).
        sample: The sample.

    Raises:
        FatalSampleError: The error would repeat for every sample.
    """
    try:
        yield
    except SYSTEM_EXCEPTIONS as error:
        raise FatalSampleError.from_sample(sample, str(error)) from error
    except SkipSample as error:
        skipped = StateError("A hook raised SkipSample when a sample was made again, but not the first time.")
        skipped.__cause__ = error
        error_handler(skipped, sample, get_source_info(sample))
    except Exception as error:
        error_handler(error, sample, get_source_info(sample))


__all__ = [
    "SYSTEM_EXCEPTIONS",
    "ErrorContext",
    "FatalSampleError",
    "SampleException",
    "SkipSample",
    "handle_restore_errors",
]
