"""Retries: which errors are transient, how often a request is repeated, and when a store counts as down.

A request is repeated a few times with growing pauses, within a budget (`RetryPolicy`). When the budget is used up, the
store decides what happens:

- The store answers, before the last attempt and after it: only this file is affected. The request raises StorageError,
  which costs a sample.
- Nothing can be read from the store: no sample is dropped. While a loader runs, the request is repeated until the store
  answers again, or until it raises StoreUnavailableError, which ends the run.

After all attempts for a file have failed, further requests for it get one attempt each for a while, so that a lost
shard costs one budget and not one per sample.
"""

from __future__ import annotations

import errno
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from energon_dali.errors import StorageError, StoreUnavailableError
from energon_dali.shards.storage.store import PROBE_BYTES, Store, clock, current_scope, error_text, store_of

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
RECENT_SECONDS = 1.0
"""For a file that is known to fail, a store that answered this recently is not probed."""

TRANSIENT_ERRNOS = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.EAGAIN,
        errno.EINTR,
        errno.ETIMEDOUT,
        errno.ECONNRESET,
        errno.ECONNREFUSED,
        errno.EPIPE,
        errno.ECONNABORTED,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.EHOSTDOWN,
        errno.ENETRESET,
        errno.ENOTCONN,
        errno.EREMOTEIO,
        errno.ECOMM,
        errno.EMFILE,
        errno.ENFILE,
    }
)
"""Error numbers that may be transient on a disk, a network file system or a connection."""


def is_transient(error: Exception) -> bool:
    """Returns whether another attempt may help: not for a missing file, a denied permission or a wrong argument."""
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)):
        return False
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, ssl.SSLCertVerificationError)
    return isinstance(error, OSError) and (error.errno is None or error.errno in TRANSIENT_ERRNOS)


def with_retries(call: Callable[[], T], doing: str, path: str = "", *, failed: OSError | None = None) -> T:
    """Calls `call`, repeats it after transient errors, and returns its result.

    Args:
        call: Makes one attempt.
        doing: What is attempted, for the message, such as "read".
        path: The local path or URL that is accessed.
        failed: The error of a first attempt that the caller already made.

    Raises:
        FileNotFoundError: The file is not there.
        StorageError: Every attempt failed with a transient OSError, or one with a permanent OSError.
        StoreUnavailableError: The store returned only errors for longer than the loader's policy allows.
    """
    scope = current_scope()
    policy = scope.policy
    what = f"{doing} {path}".rstrip()
    store = store_of(path)
    began = clock.now()
    failed_at = scope.failed_files.get(path)
    has_failed = failed_at is not None and began - failed_at < policy.request_seconds
    allowed = 1 if has_failed else policy.attempts
    tried = total = 0
    pause = FIRST_PAUSE_SECONDS
    store_was_down = False
    answered = (
        allowed == 1
    )  # whether the store answered just before the last attempt; of a single one, nothing is known
    while True:
        tried, total = tried + 1, total + 1
        attempted = clock.now()
        try:
            if failed is not None:
                raise failed
            result = call()
        except FileNotFoundError:
            raise
        except OSError as error:
            failed = None
            if not is_transient(error):
                raise _storage_error(what, total, error) from error
            now = clock.now()
            seconds_down = scope.seconds_down(store, now)
            over = tried >= allowed or now + pause - began > policy.request_seconds
            if over and not scope.outlasts_stores:
                scope.mark_failed(path, now)
                raise _storage_error(what, total, error) from error
            # Only an attempt that fails while the store answers, before it and after it, says something about the file.
            if scope.outlasts_stores and (over or tried == allowed - 1):
                # A file that keeps failing needs no probe each time.
                recently = attempted - RECENT_SECONDS if has_failed else attempted
                counts = has_failed or "://" in path  # other threads may have read local files from memory
                answers = (counts and store.last_success > recently) or store.responds(now)
                if answers and answered and over:
                    scope.mark_failed(path, now)
                    raise _storage_error(what, total, error) from error
                if not answers and over and seconds_down >= policy.store_seconds:
                    raise _store_error(store, what, seconds_down, error) from error
                if answers and over:  # it answers again
                    began, tried, allowed = now, 0, policy.attempts if store_was_down else 1
                    pause = FIRST_PAUSE_SECONDS
                answered, store_was_down = answers, not answers
            scope.pause(pause, store, what, error)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        else:
            store.last_success = clock.now()
            if has_failed:
                scope.failed_files.pop(path, None)
            return result


def repeated(call: Callable[[], T], doing: str, path: str) -> T:
    """Calls `call`, repeats it after transient errors as `with_retries` does, and returns its result.

    Raises:
        OSError: One that stays: the file is not there, or may not be read.
        StorageError: Every attempt failed.
    """
    try:
        return call()
    except OSError as error:
        if not is_transient(error):
            raise
        return with_retries(call, doing, path, failed=error)


class RemoteReader(ABC):
    """A remote file, read by ranges. Its connections belong to the process.

    Args:
        url: Its URL.
        size: Its size in bytes.
    """

    def __init__(self, url: str, size: int) -> None:
        self.url = url
        self.size = size
        self._store = store_of(url)

    def read_at(self, offset: int, size: int) -> bytes:
        data = self.read_view(offset, size)
        return data if isinstance(data, bytes) else bytes(data)

    def read_view(self, offset: int, size: int) -> bytes | memoryview:
        size = min(size, self.size - offset)  # a server refuses a range that begins at the end
        if size <= 0:
            return b""
        try:
            data = self._fetch(offset, size)
        except OSError as error:
            doing = f"read bytes {offset} to {offset + size} of"
            data = with_retries(partial(self._fetch, offset, size), doing, self.url, failed=error)
        self._store.succeeded(self.url, self._probe, offset)
        return data

    @abstractmethod
    def _fetch(self, offset: int, size: int) -> bytes | memoryview:
        """Makes one attempt."""

    def _probe(self, offset: int) -> None:
        """Reads a little; raises if that fails."""
        self._fetch(offset, min(PROBE_BYTES, self.size - offset))

    def close(self) -> None:  # noqa: B027 - not abstract: no reader has anything to close
        """Does nothing: the connections belong to the process."""


def _storage_error(what: str, attempts: int, error: Exception) -> StorageError:
    tried = f" ({attempts} attempts)" if attempts > 1 else ""
    return StorageError(
        f"Could not {what}{tried}: {error_text(error)}. Check that the path is right and may be accessed, and that "
        "the storage answers."
    )


def _store_error(store: Store, what: str, seconds: float, error: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"Nothing could be read from {store.name} for {seconds:.0f} s; the last attempt, to {what}, failed with "
        f"{error_text(error)}. The run ends here instead of dropping samples. Restore the last state when the storage "
        "works again, or give the loader retry_policy=RetryPolicy(store_seconds=...) to wait longer."
    )
