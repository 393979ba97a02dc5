"""Retries: which errors are transient, how often a request is repeated, and when a store counts as down.

A request is repeated a few times with growing pauses, within a budget (`RetryPolicy`). When the budget is used up, the
store decides what happens:

- Other requests to the store succeed: only this file is affected. The request raises StorageError, which costs a
  sample.
- Nothing can be read from the store: no sample is dropped. While a loader runs, the request is repeated until the store
  answers again, or until it raises StoreUnavailableError, which ends the run.

After all attempts for a file have failed, further requests for it get one attempt each for a while, so that a lost
shard costs one budget and not one per sample.
"""

from __future__ import annotations

import errno
import logging
import ssl
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError, StorageError, StoreUnavailableError
from energon_dali.shards.storage.store import Store, clock, store_of

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
RECENT_SECONDS = 1.0
"""For a file that is known to fail, a store that answered this recently is not probed."""
WARNING_SECONDS = 10.0
"""Retries of one store are logged at most this often."""

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

_log = logging.getLogger(__name__)


@explain_call
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a request for data is repeated after a transient error, and when a store counts as down.

    Applies to local and mounted file systems, web servers and object stores alike. Missing files and denied permissions
    are not retried.

    Raises:
        ConfigError: A value is out of its range.
    """

    attempts: int = 5
    """Attempts per request, at least 1."""
    request_seconds: float = 30.0
    """No attempt of a request starts later than this after its first one. If a web server sends nothing for a third of
    this time, the attempt has failed."""
    store_seconds: float = 120.0
    """A running loader raises StoreUnavailableError after a store returned only errors for this long."""

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigError(f"RetryPolicy(attempts={self.attempts!r}) is invalid: give a whole number of at least 1.")
        for name in ("request_seconds", "store_seconds"):
            seconds = getattr(self, name)
            if not isinstance(seconds, (int, float)) or not seconds >= 0:
                raise ConfigError(f"RetryPolicy({name}={seconds!r}) is invalid: give a number of seconds, at least 0.")


class RetryScope:
    """The retries of one loader in one process: its policy, its counters, and a way to cancel its pauses.

    Args:
        policy: How often requests are repeated.
        count: Adds to a counter, given its name and an amount; None counts nothing.
        outlasts_stores: Wait for a store that is down. False raises StorageError after one budget.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        count: Callable[[str, int], None] | None = None,
        *,
        outlasts_stores: bool = True,
    ) -> None:
        self.policy = policy or RetryPolicy()
        self.outlasts_stores = outlasts_stores
        self._count = count
        self._cancelled = threading.Event()
        self._down_since: dict[Store, float] = {}

    def cancel(self) -> None:
        """Cancels all pauses: failed requests raise StorageError at once."""
        self._cancelled.set()

    def seconds_down(self, store: Store, now: float) -> float:
        """Returns for how many seconds a store, of which a request just failed, has returned only errors."""
        since = self._down_since.setdefault(store, now)
        if store.last_success > since:
            since = self._down_since[store] = now
        return now - since

    def pause(self, seconds: float, store: Store, what: str, error: Exception) -> None:
        """Counts and logs a retry, and waits before it.

        Raises:
            StorageError: The loader was closed.
        """
        if self._count is not None:
            self._count(f"retries.{store.name}", 1)
        store.silent_retries += 1
        now = clock.now()
        if now - store.last_warning >= WARNING_SECONDS:
            others = f" ({store.silent_retries} retries since the last warning)" if store.silent_retries > 1 else ""
            store.last_warning, store.silent_retries = now, 0
            _log.warning("Could not %s: %s. Trying again%s.", what, _text(error), others)
        if clock.wait(self._cancelled, seconds):
            raise StorageError(f"Could not {what}: {_text(error)}. The loader was closed meanwhile.") from error


_NO_LOADER = RetryScope(outlasts_stores=False)
_SCOPE: ContextVar[RetryScope] = ContextVar("energon_dali_retry_scope", default=_NO_LOADER)


def current_scope() -> RetryScope:
    """Returns the scope in which this thread reads; outside a loader, one with the default policy."""
    return _SCOPE.get()


class retry_scope:  # noqa: N801 - read as a statement: with retry_scope(scope)
    """Context manager that makes requests of this thread use a scope; None keeps the current one.

    Args:
        scope: The scope.
    """

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: RetryScope | None) -> None:
        self._scope = scope
        self._token: Token[RetryScope] | None = None

    def __enter__(self) -> None:
        if self._scope is not None:
            self._token = _SCOPE.set(self._scope)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _SCOPE.reset(self._token)


def forget_scope(scope: RetryScope) -> None:
    """Makes this thread leave a scope, in case Ctrl-C interrupted the exit of its `with` block.

    Args:
        scope: The scope of a closed loader.
    """
    if _SCOPE.get() is scope:
        _SCOPE.set(_NO_LOADER)


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
    scope = _SCOPE.get()
    policy = scope.policy
    what = f"{doing} {path}".rstrip()
    store = store_of(path)
    began = clock.now()
    failed_at = store.failed_files.get(path)
    has_failed = failed_at is not None and began - failed_at < policy.request_seconds
    allowed = 1 if has_failed else policy.attempts
    tried = total = 0
    pause = FIRST_PAUSE_SECONDS
    store_was_down = False
    while True:
        tried, total = tried + 1, total + 1
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
            if tried >= allowed or now + pause - began > policy.request_seconds:
                if not scope.outlasts_stores:
                    store.mark_failed(path, now)
                    raise _storage_error(what, total, error) from error
                # A file that keeps failing needs no probe each time.
                recently = began - RECENT_SECONDS if has_failed else began
                if store.last_success > recently or store.responds(now):
                    if not store_was_down:
                        store.mark_failed(path, now)
                        raise _storage_error(what, total, error) from error
                    # The store answers again, so the attempts so far say nothing about this file.
                    store_was_down, began, tried, allowed = False, now, 0, policy.attempts
                    pause = FIRST_PAUSE_SECONDS
                elif seconds_down >= policy.store_seconds:
                    raise _store_error(store, what, seconds_down, error) from error
                else:
                    store_was_down = True
            scope.pause(pause, store, what, error)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        else:
            store.last_success = clock.now()
            if has_failed:
                store.failed_files.pop(path, None)
            return result


def _storage_error(what: str, attempts: int, error: Exception) -> StorageError:
    tried = f" ({attempts} attempts)" if attempts > 1 else ""
    return StorageError(
        f"Could not {what}{tried}: {_text(error)}. Check that the path is right, that it may be accessed, and that the "
        "storage answers."
    )


def _store_error(store: Store, what: str, seconds: float, error: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"Nothing could be read from {store.name} for {seconds:.0f} s; the last attempt, to {what}, failed with "
        f"{_text(error)}. The run ends here instead of dropping samples. Restore the last state when the storage works "
        "again, or give the loader retry_policy=RetryPolicy(store_seconds=...) to wait longer."
    )


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
