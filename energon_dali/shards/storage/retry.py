"""The rule for errors that may pass: which they are, how often a request is repeated, and when a store is down.

A request is repeated a few times with growing pauses, within a budget (`RetryPolicy`). What follows when the budget is
spent depends on the store:

- Other requests to the store succeed: the fault is the file's. The request raises StorageError; this costs a sample.
- Nothing can be read from the store: the fault is the store's, and no sample is dropped for it. While a loader runs,
  the request is repeated until the store answers, or raises StoreUnavailableError, which ends the run.

After a request for a file failed for good, further requests for that file get one attempt each for a while, so that a
lost shard costs one budget and not one per sample.
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
"""A store that answered this recently needs no look, where a file is known to fail."""
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
"""Error numbers that a disk, a network file system or a connection may give for a moment."""

_log = logging.getLogger(__name__)


@explain_call
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a request for data is repeated after an error that may pass, and when a store counts as down.

    The same for local and mounted file systems, web servers and object stores. Missing files and refused permissions
    are not retried.

    Raises:
        ConfigError: A value is out of its range.
    """

    attempts: int = 5
    """Attempts per request, at least 1."""
    request_seconds: float = 30.0
    """No attempt of a request begins later than this after its first one. A web server that sends nothing for a third
    of this time has failed an attempt."""
    store_seconds: float = 120.0
    """A running loader raises StoreUnavailableError after a store gave nothing but errors for this long."""

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigError(f"RetryPolicy(attempts={self.attempts!r}) is invalid: give a whole number of at least 1.")
        for name in ("request_seconds", "store_seconds"):
            seconds = getattr(self, name)
            if not isinstance(seconds, (int, float)) or not seconds >= 0:
                raise ConfigError(f"RetryPolicy({name}={seconds!r}) is invalid: give a number of seconds, at least 0.")


class RetryScope:
    """The retries of one loader in one process: its policy, its counters, and how to end its pauses.

    Args:
        policy: How often requests are repeated.
        count: Adds to a counter, as `Recorder.count` does; None counts nothing.
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
        """Ends all pauses: requests that failed raise StorageError at once."""
        self._cancelled.set()

    def seconds_down(self, store: Store, now: float) -> float:
        """Returns for how long a store, of which a request just failed, has given nothing but errors."""
        since = self._down_since.setdefault(store, now)
        if store.last_success > since:
            since = self._down_since[store] = now
        return now - since

    def pause(self, seconds: float, store: Store, what: str, error: Exception) -> None:
        """Counts and reports a retry, and waits before it.

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
    """Returns the scope in which this thread reads; outside of a loader, one with the default policy."""
    return _SCOPE.get()


class retry_scope:  # noqa: N801 - read as a statement: with retry_scope(scope)
    """Makes requests of this thread follow a scope, as a `with` block; None leaves the scope as it is.

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
    """Makes this thread leave a scope that it is still in: Ctrl-C may come while a `with` block is being left.

    Args:
        scope: Of a loader that is closed.
    """
    if _SCOPE.get() is scope:
        _SCOPE.set(_NO_LOADER)


def is_transient(error: Exception) -> bool:
    """Returns whether another attempt may help: not for a missing file, a refused permission or a wrong argument."""
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)):
        return False
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, ssl.SSLCertVerificationError)
    return isinstance(error, OSError) and (error.errno is None or error.errno in TRANSIENT_ERRNOS)


def with_retries(call: Callable[[], T], doing: str, place: str = "", *, failed: OSError | None = None) -> T:
    """Returns what `call` returns, after repeating it where its error may pass.

    Args:
        call: Makes one attempt.
        doing: What is attempted, for the message, such as "read".
        place: The local path or URL that it is attempted with.
        failed: The error of a first attempt that the caller made itself.

    Raises:
        FileNotFoundError: The file is not there.
        StorageError: Every attempt failed with an OSError, or one with an OSError that does not pass.
        StoreUnavailableError: The store gave nothing but errors for longer than the loader's policy allows.
    """
    scope = _SCOPE.get()
    policy = scope.policy
    what = f"{doing} {place}".rstrip()
    store = store_of(place)
    began = clock.now()
    spent_at = store.failed_files.get(place)
    is_spent = spent_at is not None and began - spent_at < policy.request_seconds
    allowed = 1 if is_spent else policy.attempts
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
                raise _given_up(what, total, error) from error
            now = clock.now()
            seconds_down = scope.seconds_down(store, now)
            if tried >= allowed or now + pause - began > policy.request_seconds:
                if not scope.outlasts_stores:
                    store.mark_failed(place, now)
                    raise _given_up(what, total, error) from error
                # A file that fails again and again needs no probe each time.
                lately = began - RECENT_SECONDS if is_spent else began
                if store.last_success > lately or store.responds(now):
                    if not store_was_down:
                        store.mark_failed(place, now)
                        raise _given_up(what, total, error) from error
                    # It answers again, and so may this file: the attempts so far say nothing about it.
                    store_was_down, began, tried, allowed = False, now, 0, policy.attempts
                    pause = FIRST_PAUSE_SECONDS
                elif seconds_down >= policy.store_seconds:
                    raise _store_is_down(store, what, seconds_down, error) from error
                else:
                    store_was_down = True
            scope.pause(pause, store, what, error)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        else:
            store.last_success = clock.now()
            if is_spent:
                store.failed_files.pop(place, None)
            return result


def _given_up(what: str, attempts: int, error: Exception) -> StorageError:
    tried = f" ({attempts} attempts)" if attempts > 1 else ""
    return StorageError(
        f"Could not {what}{tried}: {_text(error)}. Check that the path is right, that it may be accessed, and that the "
        "storage answers."
    )


def _store_is_down(store: Store, what: str, seconds: float, error: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"Nothing could be read from {store.name} for {seconds:.0f} s; the last attempt, to {what}, failed with "
        f"{_text(error)}. The run ends here instead of dropping samples. Restore the last state when the storage works "
        "again, or give the loader retry_policy=RetryPolicy(store_seconds=...) to wait longer."
    )


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
