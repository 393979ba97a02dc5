"""Fetches files in the background and keeps them on disk within a limit: the part of a cache pool in one process."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import logging
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import cloudpickle

from energon_dali.cache.file_store import FileStore
from energon_dali.errors import DatasetError, FileMissingError
from energon_dali.samples import SourceInfo
from energon_dali.shards.storage.request_pool import RequestPool

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
"""A waiting thread looks this often for references that were dropped without a notification."""
_JOIN_SECONDS = 5.0


class Progress(Enum):
    """Where a file is."""

    DIRECT = "direct"
    """It is not cached, or not yet: the thread that wants it reads it from its store."""
    STORED = "stored"
    """It is on disk."""
    HELD = "held"
    """It is in memory, because it was wanted before there was room on disk."""
    FAILED = "failed"
    """It could not be fetched."""


@dataclass(slots=True, eq=False)
class CacheEntry:
    """A file, shared by all references to it."""

    key: Hashable
    """Equal for all references to the same file."""
    store: FileStore[Any] | None
    """Where it is read; None for a value of `to_cache`."""
    name: str
    """Name of the file."""
    decoded: bool
    """Whether to keep what the store returns, instead of the encoded file."""
    progress: Progress = Progress.DIRECT
    references: int = 1
    wanted: int = 0
    """Number of threads that wait for it."""
    size: int = 0
    """Bytes on disk."""
    path: Path | None = None
    digest: bytes = b""
    pickled: bool = False
    """Whether the file on disk is a pickle."""
    content: Any = None
    source: SourceInfo | None = None
    error: Exception | None = None
    request: Future[None] | None = None
    """Fetches it; None for a value of `to_cache`."""

    def read_store(self) -> tuple[Any, SourceInfo | None]:
        """Returns (content, where it was read) directly from the store.

        Raises:
            FileMissingError: There is no such file.
            DatasetError: It cannot be read.
        """
        if self.store is None:
            raise lost_value(self.name)
        return self.store[self.name] if self.decoded else self.store.read_encoded(self.name)

    def pack(self, content: Any) -> bytes | memoryview:
        """Returns the bytes to write to disk, and records their digest.

        Raises:
            Exception: The error of pickle, if the content cannot be pickled.
        """
        self.pickled = self.decoded or not isinstance(content, (bytes, memoryview))
        packed = dump(content) if self.pickled else content
        self.size = len(packed)
        if self.pickled:
            self.digest = hashlib.blake2b(packed, digest_size=16).digest()
        return packed

    def unpack(self, packed: bytes) -> Any:
        """Returns the content of bytes that were read from disk; only what this process wrote itself is unpickled.

        Raises:
            OSError: They differ from what was written.
        """
        if len(packed) != self.size:
            raise OSError(f"{self.path} has {len(packed)} bytes instead of {self.size}")
        if not self.pickled:
            return packed
        if hashlib.blake2b(packed, digest_size=16).digest() != self.digest:
            raise OSError(f"{self.path} is not what was written")
        return pickle.loads(packed)


def lost_value(name: str) -> FileMissingError:
    """Returns the error for a value of `to_cache` that is no longer there."""
    return FileMissingError(
        f"The cached value {name!r} is gone: its cache pool was closed, or its file was removed. Use it while the "
        "loader runs."
    )


def dump(value: Any) -> bytes:
    """Returns a value as a pickle. Classes of a script are pickled by value, and memoryviews become bytes."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is memoryview:
            return bytes, (bytes(obj),)
        return super().reducer_override(obj)


class Fetcher:
    """Fetches files in the order in which they are asked for, on a few threads that start when they are needed.

    The files on disk never exceed the limits: a thread that has fetched a file waits for room, and keeps the file in
    memory if it is wanted before there is room.

    Args:
        folder: Returns the folder for the files; called when the first one is stored.
        threads: Number of files that are fetched at a time.
        max_bytes: Most bytes on disk.
        max_files: Most files on disk.
    """

    def __init__(self, folder: Callable[[], Path], threads: int, max_bytes: int, max_files: int) -> None:
        self.pid = os.getpid()
        self.closed = False
        self.stored_bytes = 0
        self.stored_files = 0
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._change = threading.Condition(threading.Lock())
        self._entries: dict[Hashable, CacheEntry] = {}
        self._dropped: deque[CacheEntry] = deque()
        self._requests = RequestPool(requests_in_flight=threads, thread_name="energon-dali-cache")
        self._requests.join(self)
        self._fetching = 0
        self._logged = False
        """Whether a failing disk was logged."""
        self._names = itertools.count()

    # --- called by the pool ----------------------------------------------------------------------------------------

    def ask(self, key: Hashable, make: Callable[[], CacheEntry]) -> CacheEntry:
        """Returns the entry of a file, with one more reference; a new entry is queued to be fetched."""
        with self._change:
            self._forget_dropped()
            entry = self._entries.get(key)
            if entry is not None:
                entry.references += 1
                return entry
            entry = self._entries[key] = make()
            entry.request = self._requests.submit(0, self._fetch, entry)
            return entry

    def keep(self, entry: CacheEntry, value: Any) -> None:
        """Stores a value now; if there is no room, it stays in memory."""
        packed = entry.pack(value)
        with self._change:
            self._forget_dropped()
            fits = self._reserve(entry)
        if fits and self._write(entry, packed):
            entry.progress = Progress.STORED
        else:
            entry.content, entry.progress = value, Progress.HELD

    def take(self, entry: CacheEntry) -> tuple[Any, SourceInfo | None]:
        """Returns (content, where it was read), and gives up one reference.

        Raises:
            FileMissingError: There is no such file.
            DatasetError: It could not be read.
        """
        if self.pid != os.getpid():  # forked: the threads and the files are the parent's
            return entry.read_store()
        try:
            with self._change:
                self._forget_dropped()
                entry.wanted += 1
                self._change.notify_all()
            # What no thread has begun to fetch is read here.
            while entry.request is not None and not entry.request.cancel() and not self.closed:
                if wait((entry.request,), _POLL_SECONDS).done:
                    break
            with self._change:
                entry.wanted -= 1
                progress, error = entry.progress, entry.error
            if progress is Progress.FAILED and error is not None:
                raise error
            if progress is Progress.HELD:
                return entry.content, entry.source
            if progress is Progress.STORED:
                # A file that is gone (the folder was removed, a disk was cleaned) is read again from its store.
                with contextlib.suppress(OSError):
                    assert entry.path is not None
                    return entry.unpack(entry.path.read_bytes()), entry.source
            return entry.read_store()
        finally:
            self.drop(entry)

    def drop(self, entry: CacheEntry) -> None:
        """Gives up a reference. Never waits: the garbage collector may call this in any thread at any moment."""
        if self.pid != os.getpid():
            return
        self._dropped.append(entry)
        if self._change.acquire(blocking=False):
            try:
                self._forget_dropped()
            finally:
                self._change.release()

    def shut_down(self) -> None:
        """Asks the threads to end. Never waits."""
        self.closed = True
        if self.pid == os.getpid():
            self._requests.leave(self)
            if self._change.acquire(blocking=False):
                self._change.notify_all()
                self._change.release()

    def join(self) -> None:
        """Waits for the threads, each of which ends after the file that it is fetching."""
        with self._change:
            self._change.wait_for(lambda: not self._fetching, _JOIN_SECONDS)

    # --- internal; called with the lock held, unless a method says otherwise ---------------------------------------

    def _forget_dropped(self) -> None:
        """Forgets entries without references, and their files."""
        changed = False
        while self._dropped:
            entry = self._dropped.popleft()
            entry.references -= 1
            if entry.references > 0:
                continue
            changed = True
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
            if entry.request is not None:
                entry.request.cancel()
            if entry.progress is Progress.STORED:
                self._release(entry)
        if changed:
            self._change.notify_all()

    def _fits(self, entry: CacheEntry) -> bool:
        return self.stored_files < self._max_files and self.stored_bytes + entry.size <= self._max_bytes

    def _reserve(self, entry: CacheEntry) -> bool:
        """Reserves room for a file; returns whether there is any."""
        if not self._fits(entry):
            return False
        self.stored_bytes += entry.size
        self.stored_files += 1
        return True

    def _release(self, entry: CacheEntry) -> None:
        """Removes the file and frees its room."""
        if entry.path is not None:
            with contextlib.suppress(OSError):
                entry.path.unlink(missing_ok=True)
            entry.path = None
        self.stored_bytes -= entry.size
        self.stored_files -= 1

    def _write(self, entry: CacheEntry, packed: bytes | memoryview) -> bool:
        """Writes a file whose room is reserved, without the lock. Returns whether it worked; if not, frees the room."""
        try:
            entry.path = self._folder() / str(next(self._names))
            with entry.path.open("xb") as file:
                file.write(packed)
        except Exception as error:  # such as a full disk: the thread that wants the file reads it from its store
            with self._change:
                self._release(entry)
                logged, self._logged = self._logged or self.closed, True
            if not logged:
                _LOG.warning(
                    "A file that was fetched ahead could not be kept on disk (%s): such files are read again when they "
                    "are wanted. Give FileStoreCachePool a writable parent_cache_dir with room for "
                    "max_cache_size_gbytes.",
                    error,
                )
            return False
        return True

    def _fetch(self, entry: CacheEntry) -> None:
        """Runs in a thread, without the lock: fetches a file, and stores it."""
        with self._change:
            self._fetching += 1
        try:
            progress = self._fetch_and_store(entry)
        except BaseException as error:  # SystemExit too: it would end the thread
            entry.error, progress = _error_of(entry, error), Progress.FAILED
        with self._change:
            self._fetching -= 1
            entry.progress = progress
            if entry.references <= 0 and progress is Progress.STORED:
                self._release(entry)  # dropped while it was written
            self._change.notify_all()

    def _fetch_and_store(self, entry: CacheEntry) -> Progress:
        """Fetches a file and stores it, without the lock; returns where it is."""
        try:
            content, entry.source = entry.read_store()
            packed = entry.pack(content)
        except Exception as error:
            entry.error = error
            return Progress.FAILED
        with self._change:
            never = entry.size > self._max_bytes or self._max_files < 1
            while not (never or self._fits(entry) or entry.wanted or self.closed or entry.references <= 0):
                self._change.wait(_POLL_SECONDS)
                self._forget_dropped()
            if self.closed or entry.references <= 0:
                return Progress.DIRECT
            if not self._reserve(entry):
                if not entry.wanted:
                    return Progress.DIRECT
                entry.content = content
                return Progress.HELD
        return Progress.STORED if self._write(entry, packed) else Progress.DIRECT


def _error_of(entry: CacheEntry, error: BaseException) -> Exception:
    """Returns the error to raise where an entry is wanted: SystemExit and the like would end the thread or process."""
    if isinstance(error, Exception):
        return error
    found = DatasetError(
        f"{type(error).__name__}({error}) was raised while {entry.name!r} was read from {entry.store!r}. In a "
        "FileStore, raise DatasetError or another Exception, so that only one sample fails."
    )
    found.__cause__ = error
    return found
