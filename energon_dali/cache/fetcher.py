"""Fetches files in the background and keeps them on disk within a limit: the part of a cache pool in one process."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from energon_dali.cache.cache_entry import CacheEntry, Progress
from energon_dali.errors import DatasetError
from energon_dali.samples.base import SourceInfo

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
"""A waiting thread looks this often for references that were dropped without a notification."""
_JOIN_SECONDS = 5.0


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
        self._max_threads = threads
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._change = threading.Condition(threading.Lock())
        self._entries: dict[Hashable, CacheEntry] = {}
        self._queue: dict[CacheEntry, None] = {}
        self._dropped: deque[CacheEntry] = deque()
        self._threads: list[threading.Thread] = []
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
            self._queue[entry] = None
            if len(self._threads) < min(self._max_threads, len(self._queue) + self._fetching):
                self._start_thread()
            self._change.notify_all()
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
                if entry.progress is Progress.QUEUED:
                    self._queue.pop(entry, None)
                    entry.progress = Progress.DIRECT
                entry.wanted += 1
                self._change.notify_all()
                while entry.progress is Progress.FETCHING and not self.closed:
                    self._change.wait(_POLL_SECONDS)
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
        if self.pid == os.getpid() and self._change.acquire(blocking=False):
            self._change.notify_all()
            self._change.release()

    def join(self) -> None:
        """Waits for the threads, each of which ends after the file that it is fetching."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)

    # --- internal; called with the lock held, unless a method says otherwise ---------------------------------------

    def _start_thread(self) -> None:
        # Daemons: a read that hangs must not keep the process from ending.
        thread = threading.Thread(target=self._work, name="energon-dali-cache", daemon=True)
        thread.start()
        self._threads.append(thread)

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
            self._queue.pop(entry, None)
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

    def _work(self) -> None:
        """Thread body, without the lock."""
        while True:
            with self._change:
                while not self._queue and not self.closed:
                    self._change.wait(_POLL_SECONDS)
                    self._forget_dropped()
                if self.closed:
                    return
                entry = next(iter(self._queue))
                del self._queue[entry]
                entry.progress = Progress.FETCHING
                self._fetching += 1
            try:
                progress = self._fetch(entry)
            except BaseException as error:  # SystemExit too: it would end the thread, and `take` would wait forever
                entry.error, progress = _error_of(entry, error), Progress.FAILED
            with self._change:
                self._fetching -= 1
                entry.progress = progress
                if entry.references <= 0 and progress is Progress.STORED:
                    self._release(entry)  # dropped while it was written
                self._change.notify_all()
            del entry

    def _fetch(self, entry: CacheEntry) -> Progress:
        """Fetches a file and stores it, without the lock; returns its progress."""
        try:
            content, entry.source = entry.context.run(entry.read_store)
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
