"""Fetches files in the background and keeps them on disk, within a limit; the inside of a cache pool in one process."""

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
from energon_dali.samples import SourceInfo

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
"""A waiting thread looks up this often, for references that were dropped while nobody could be told."""
_JOIN_SECONDS = 5.0


class Fetcher:
    """Fetches what is asked for, first come, first served, with a few threads that start when they are needed.

    What is on disk never exceeds the limits: a thread that has fetched a file waits for room, and hands it over in
    memory if it is wanted before there is any.

    Args:
        folder: Gives the folder for the files; called when the first one is stored.
        threads: Files that are fetched at a time.
        max_bytes: Bytes on disk at most.
        max_files: Files on disk at most.
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
        self._told = False
        """Whether the log has it that the disk fails."""
        self._names = itertools.count()

    # --- what the pool asks ----------------------------------------------------------------------------------------

    def ask(self, key: Hashable, make: Callable[[], CacheEntry]) -> CacheEntry:
        """Returns the entry of a file, with one more reference; a new one is fetched from now on."""
        with self._change:
            self._let_go()
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
        """Stores a value now; where there is no room, it stays in memory."""
        packed = entry.pack(value)
        with self._change:
            self._let_go()
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
                self._let_go()
                if entry.progress is Progress.QUEUED:
                    self._queue.pop(entry, None)
                    entry.progress = Progress.DIRECT
                entry.wanted += 1
                self._change.notify_all()
                while entry.progress is Progress.FETCHING and not self.closed:
                    self._change.wait(_LOOK_SECONDS)
                entry.wanted -= 1
                progress, error = entry.progress, entry.error
            if progress is Progress.FAILED and error is not None:
                raise error
            if progress is Progress.HELD:
                return entry.content, entry.source
            if progress is Progress.STORED:
                # A file that is gone (the folder was removed, a disk was cleaned) costs a second read, no sample.
                with contextlib.suppress(OSError):
                    assert entry.path is not None
                    return entry.unpack(entry.path.read_bytes()), entry.source
            return entry.read_store()
        finally:
            self.drop(entry)

    def drop(self, entry: CacheEntry) -> None:
        """Gives up a reference. Never waits: the collector may call this in any thread at any moment."""
        if self.pid != os.getpid():
            return
        self._dropped.append(entry)
        if self._change.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._change.release()

    def shut_down(self) -> None:
        """Tells the threads to end. Never waits."""
        self.closed = True
        if self.pid == os.getpid() and self._change.acquire(blocking=False):
            self._change.notify_all()
            self._change.release()

    def join(self) -> None:
        """Waits for the threads, which end after the file they are fetching."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)

    # --- inside; everything below is called with the lock held, unless it says otherwise ----------------------------

    def _start_thread(self) -> None:
        # Daemons: a read that hangs must not keep the process from ending.
        thread = threading.Thread(target=self._work, name="energon-dali-cache", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _let_go(self) -> None:
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
        """Takes room for a file; returns whether there is any."""
        if not self._fits(entry):
            return False
        self.stored_bytes += entry.size
        self.stored_files += 1
        return True

    def _release(self, entry: CacheEntry) -> None:
        """Gives room back, and removes the file."""
        if entry.path is not None:
            with contextlib.suppress(OSError):
                entry.path.unlink(missing_ok=True)
            entry.path = None
        self.stored_bytes -= entry.size
        self.stored_files -= 1

    def _write(self, entry: CacheEntry, packed: bytes | memoryview) -> bool:
        """Writes a file whose room is reserved, without the lock; returns whether it worked, gives room back if not."""
        try:
            entry.path = self._folder() / str(next(self._names))
            with entry.path.open("xb") as file:
                file.write(packed)
        except Exception as error:  # a full disk: whoever wants the file reads it from its store
            with self._change:
                self._release(entry)
                told, self._told = self._told or self.closed, True
            if not told:
                _LOG.warning(
                    "A file fetched ahead could not be kept on disk (%s): such files are read a second time when they "
                    "are wanted. Give FileStoreCachePool a parent_cache_dir that can be written to and has room for "
                    "max_cache_size_gbytes.",
                    error,
                )
            return False
        return True

    def _work(self) -> None:
        """What a thread does, without the lock."""
        while True:
            with self._change:
                while not self._queue and not self.closed:
                    self._change.wait(_LOOK_SECONDS)
                    self._let_go()
                if self.closed:
                    return
                entry = next(iter(self._queue))
                del self._queue[entry]
                entry.progress = Progress.FETCHING
                self._fetching += 1
            try:
                progress = self._fetch(entry)
            except BaseException as error:  # SystemExit too: the thread would end, and take() wait for the entry
                entry.error, progress = _error_of(entry, error), Progress.FAILED
            with self._change:
                self._fetching -= 1
                entry.progress = progress
                if entry.references <= 0 and progress is Progress.STORED:
                    self._release(entry)  # dropped while it was written
                self._change.notify_all()
            del entry

    def _fetch(self, entry: CacheEntry) -> Progress:
        """Fetches a file and stores it, without the lock; returns how far that came."""
        try:
            content, entry.source = entry.context.run(entry.read_store)
            packed = entry.pack(content)
        except Exception as error:
            entry.error = error
            return Progress.FAILED
        with self._change:
            never = entry.size > self._max_bytes or self._max_files < 1
            while not (never or self._fits(entry) or entry.wanted or self.closed or entry.references <= 0):
                self._change.wait(_LOOK_SECONDS)
                self._let_go()
            if self.closed or entry.references <= 0:
                return Progress.DIRECT
            if not self._reserve(entry):
                if not entry.wanted:
                    return Progress.DIRECT
                entry.content = content
                return Progress.HELD
        return Progress.STORED if self._write(entry, packed) else Progress.DIRECT


def _error_of(entry: CacheEntry, error: BaseException) -> Exception:
    """Returns the error for whoever wants an entry; SystemExit and its kin would end that thread, or its process."""
    if isinstance(error, Exception):
        return error
    found = DatasetError(
        f"{type(error).__name__}({error}) was raised while {entry.name!r} was read from {entry.store!r}. Raise "
        "DatasetError or another Exception in a FileStore: only one sample then fails."
    )
    found.__cause__ = error
    return found
