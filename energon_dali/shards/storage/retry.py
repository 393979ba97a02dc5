"""Repeats what a network may spoil: a few attempts with growing pauses, then one clear error."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from energon_dali.errors import StorageError

T = TypeVar("T")

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

TRANSIENT_ERRNOS = frozenset({
    errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED,
    errno.EPIPE, errno.ECONNABORTED, errno.ENETUNREACH, errno.EHOSTUNREACH,
})  # fmt: skip
"""Error numbers that a network file system or a connection gives for a moment."""


def is_transient(error: Exception) -> bool:
    """Returns whether another attempt may help: not for a missing file, a refused permission or a wrong argument."""
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, StorageError)):
        return False
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    if isinstance(error, OSError):
        return error.errno is None or error.errno in TRANSIENT_ERRNOS
    return isinstance(error, RuntimeError)  # what multi-storage-client raises for anything that a server answered


def with_retries(call: Callable[[], T], doing: str, *, attempts: int = ATTEMPTS) -> T:
    """Returns what `call` returns, after repeating it where its error may be transient.

    Args:
        call: Makes one attempt.
        doing: What is attempted, for the message, such as "read s3://bucket/a.tar".
        attempts: Attempts in all, at least 1.

    Raises:
        FileNotFoundError: The file is not there.
        StorageError: Every attempt failed, or the first one failed for good.
    """
    pause = FIRST_PAUSE_SECONDS
    for attempt in range(1, attempts + 1):
        try:
            return call()
        except (FileNotFoundError, StorageError):
            raise
        except Exception as error:
            if attempt < attempts and is_transient(error):
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                continue
            tried = f" ({attempt} attempts)" if attempt > 1 else ""
            raise StorageError(
                f"Could not {doing}{tried}: {type(error).__name__}: {error}. Check that the path is right, that it "
                "may be "
                "accessed, and that the storage answers."
            ) from error
    raise AssertionError("unreachable: the loop returns or raises")
