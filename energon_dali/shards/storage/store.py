"""Stores, which fail and recover as a whole (a mount, a web server, a bucket), and how long a loader waits for one."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError, StorageError
from energon_dali.shards.storage.request_pool import RequestPool

if TYPE_CHECKING:
    from energon_dali.shards.storage import StoragePath
    from energon_dali.shards.storage.protocols import RangeReader

Probe = Callable[[int], object]
"""Reads a little at an offset of a file that was read before; raises if it cannot."""

PROBE_BYTES = 64 << 10
"""Bytes that a probe reads of a remote file: a store that sends a byte a second would pass a probe of one byte."""
WARNING_SECONDS = 10.0
"""Retries of one store are logged at most this often."""

_MOUNT_TABLE_SECONDS = 0.1
"""The kernel's table of mount points is read again after this time."""

_FAILED_FILES = 1000
"""Failed files that are remembered per scope."""

_PREPARED = "/.nv-meta/"
_OCTAL = re.compile(r"\\([0-7]{3})")

_log = logging.getLogger(__name__)


class VersionChangedError(StorageError):
    """A file was replaced by another version while it was being read."""


class Clock:
    """Time and pauses, in one place so that tests can replace them."""

    now = staticmethod(time.monotonic)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Pauses until the time is over or `stop` is set; returns whether it is set."""
        return stop.wait(seconds)


clock = Clock()


@dataclass(slots=True, eq=False)
class Store:
    """What this process has observed of one store.

    Fields are written without a lock: each write is one assignment, and losing one does no harm.
    """

    name: str
    """Mount point, or scheme and host or bucket."""
    last_success: float = float("-inf")
    """When anything was last read from it, on `clock`."""
    last_warning: float = float("-inf")
    silent_retries: int = 0
    """Retries since the last warning."""
    _latest: tuple[str, Probe, int] | None = None
    _other: tuple[str, Probe, int] | None = None

    def succeeded(self, path: str, probe: Probe, offset: int) -> None:
        """Records that a file could be read at an offset, so that it does not count as failed any more.

        Args:
            path: Local path or URL of the file.
            probe: Reads it again.
            offset: Where it was read, in bytes.
        """
        self.last_success = clock.now()
        failed_files = _SCOPE.get().failed_files
        if failed_files:
            failed_files.pop(path, None)
        latest = self._latest
        if latest is not None and latest[0] != path:
            if _PREPARED in path:  # a small file, which a cache may still hold when nothing else can be read
                return
            if _PREPARED not in latest[0]:
                self._other = latest
        self._latest = path, probe, offset

    def responds(self, now: float) -> bool:
        """Returns whether one of the last two files that were read can be read again; False if none was read yet."""
        for witness in (self._other, self._latest):
            if witness is not None:
                _, probe, offset = witness
                try:
                    probe(offset)
                except Exception:
                    continue
                self.last_success = now
                return True
        return False


_stores: dict[str, Store] = {}


def store_of(path: str) -> Store:
    """Returns the store of a local path or URL, the same object for all files of one store."""
    name = _mount_of(path[: path.rfind("/") + 1]) if "://" not in path else _host_of(path)
    return _stores.get(name) or _stores.setdefault(name, Store(name))


def _host_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@lru_cache(maxsize=4096)
def _mount_of(folder: str) -> str:
    """Returns the mount point of a folder from the kernel's table: asking the file system itself may fail or hang.

    Args:
        folder: Its path with a slash at the end; "" is the working directory.
    """
    try:
        mounts = _mount_points()
    except (OSError, IndexError):
        return os.path.dirname(folder)
    real = os.path.realpath(folder)
    while real and real not in mounts:
        real = real[: real.rfind("/")]
    return real or "/"


_mount_table: tuple[float, frozenset[str]] = (float("-inf"), frozenset())
"""The mount points, and when they were read."""


def _mount_points() -> frozenset[str]:
    """Returns all mount points. The kernel writes its table again for each reader, which takes as long as opening a
    dataset, so that folders that are asked about at once share it.

    Raises:
        OSError: The table cannot be read.
        IndexError: It is not in the form of Linux.
    """
    global _mount_table
    now = time.monotonic()
    read, mounts = _mount_table
    if now - read > _MOUNT_TABLE_SECONDS:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            mounts = frozenset(_OCTAL.sub(lambda code: chr(int(code[1], 8)), line.split(" ", 5)[4]) for line in table)
        _mount_table = now, mounts
    return mounts


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
    """A running loader raises StoreUnavailableError after a store returned only errors for this long. Cost: as long a
    wait before a run ends."""

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise ConfigError(f"RetryPolicy(attempts={self.attempts!r}) is invalid: give a whole number of at least 1.")
        for name in ("request_seconds", "store_seconds"):
            seconds = getattr(self, name)
            if not isinstance(seconds, (int, float)) or not seconds >= 0:
                raise ConfigError(f"RetryPolicy({name}={seconds!r}) is invalid: give a number of seconds, at least 0.")


class ShardOpener(Protocol):
    """Opens shards in another way than from their storage directly, such as through a cache."""

    def open(self, path: StoragePath, size: int | None = None) -> RangeReader:
        """Opens a shard.

        Args:
            path: The shard.
            size: Its size in bytes, if it is known.
        """


class DocumentReader(Protocol):
    """Reads documents in another way than from their storage directly, such as by requests that have begun."""

    def read(self, path: StoragePath, max_bytes: int) -> bytes | None:
        """Returns the content of a file, None if there is none; see `read_content`."""


class ReadScope:
    """How one loader reads in one process: its retry policy, its counters, its requests in flight, and a way to cancel
    its pauses.

    Args:
        policy: How often requests are repeated.
        count: Adds to a counter, given its name and an amount; None counts nothing.
        outlasts_stores: Wait for a store that is down. False raises StorageError after one budget.
        shard_cache: Keeps shards on local disk; None keeps none.
        read_ahead_bytes: Bytes that may be requested ahead; see LoaderOptions.
        requests_in_flight: Requests at the same time; see LoaderOptions.
        cache_pool: What hooks see as `TaskEncoder.cache`; None fetches nothing ahead.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        count: Callable[[str, int], None] | None = None,
        *,
        outlasts_stores: bool = True,
        shard_cache: ShardOpener | None = None,
        read_ahead_bytes: int | None = None,
        requests_in_flight: int | None = None,
        cache_pool: Any = None,
    ) -> None:
        self.cache_pool = cache_pool
        self.policy = policy or RetryPolicy()
        self.shard_cache = shard_cache
        self.requests = RequestPool(count, requests_in_flight=requests_in_flight, read_ahead_bytes=read_ahead_bytes)
        """The requests in flight."""
        self.outlasts_stores = outlasts_stores
        self.failed_files: dict[str, float] = {}
        """Files for which all attempts of a request failed, and when. Failures of another loader do not count here."""
        self.opening: DocumentReader | None = None
        """Reads remote documents, of which it has fetched some; see `opening_files`."""
        self._count = count
        self._cancelled = threading.Event()
        self._down_since: dict[Store, float] = {}

    def count(self, name: str, amount: int) -> None:
        """Adds to a counter of the loader."""
        if self._count is not None:
            self._count(name, amount)

    def while_opening(self, opening: DocumentReader) -> ReadScope:
        """Returns a copy of this scope with an opening; without a loader, the copy is cancelled alone."""
        scope = copy(self)
        scope.opening = opening
        if not self.outlasts_stores:
            scope.failed_files, scope._cancelled = {}, threading.Event()
        return scope

    def cancel(self) -> None:
        """Cancels all pauses: failed requests raise StorageError at once."""
        self._cancelled.set()

    def mark_failed(self, path: str, now: float) -> None:
        """Records that all attempts of a request for a file failed."""
        self.failed_files[path] = now
        for oldest in list(self.failed_files)[:-_FAILED_FILES]:  # a copy: other threads record files meanwhile
            self.failed_files.pop(oldest, None)

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
            _log.warning("Could not %s: %s. Trying again%s.", what, error_text(error), others)
        if clock.wait(self._cancelled, seconds):
            raise StorageError(f"Could not {what}: {error_text(error)}. The loader was closed meanwhile.") from error


_NO_LOADER = ReadScope(outlasts_stores=False)
_SCOPE: ContextVar[ReadScope] = ContextVar("energon_dali_read_scope", default=_NO_LOADER)


def current_scope() -> ReadScope:
    """Returns the scope in which this thread reads; outside a loader, one with the default policy."""
    return _SCOPE.get()


def open_shard(path: StoragePath, size: int | None = None) -> RangeReader:
    """Opens a shard, through the shard cache of the current scope if it has one.

    Args:
        path: The shard.
        size: Its size in bytes, if it is known; then no request is sent before the first read of a remote shard.

    Raises:
        FileNotFoundError: There is no such file.
        StorageError: It cannot be opened.
    """
    cache = current_scope().shard_cache
    return path.open(size) if cache is None else cache.open(path, size)


@contextmanager
def read_scope(scope: ReadScope | None) -> Iterator[None]:
    """Context manager that makes requests of this thread use a scope; None keeps the current one."""
    token = None if scope is None else _SCOPE.set(scope)
    try:
        yield
    finally:
        if token is not None:
            _SCOPE.reset(token)


def forget_scope(scope: ReadScope) -> None:
    """Makes this thread leave a scope, in case Ctrl-C interrupted the exit of its `with` block.

    Args:
        scope: The scope of a closed loader.
    """
    if _SCOPE.get() is scope:
        _SCOPE.set(_NO_LOADER)


def error_text(error: Exception) -> str:
    """Returns the type and the message of an error, without a full stop."""
    return f"{type(error).__name__}: {error}".rstrip(".")


def changed_text(url: str, size: int, expected: int) -> str:
    """Returns the message about a remote file that has another size than it had when it was indexed or opened."""
    return f"{url} changed since it was indexed: it has {size} bytes and had {expected}. Prepare the dataset again."
