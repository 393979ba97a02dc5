"""Reads the small files of many remote datasets at once, while a path is opened.

Opening a dataset takes a few small files, and a metadataset may name a thousand datasets. Within `opening_files`, files
that will be needed are announced (`Opening.ahead`) and fetched by a bounded number of threads. The code that opens the
datasets stays as it is, one dataset after the other: `read_content` finds each file that was fetched, waits for one
that is on its way, and reads all others itself. So errors appear where they appear without threads: the first wrong
dataset is the one that is reported. Local files are read where they are needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from energon_dali.shards.documents.content import MAX_DOCUMENT_BYTES, read_stored, too_large
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.request_pool import RequestPool
from energon_dali.shards.storage.store import current_scope, read_scope

T = TypeVar("T")

REQUESTS = 64
"""Small files that are fetched at the same time."""
TASKS = 16
"""Datasets whose files depend on each other (joins, JSONL files) and are read at the same time, by a thread each."""
AHEAD_BYTES = 256 << 20
"""Bytes that may be fetched and not yet taken; a single file may exceed it."""
KEPT_BYTES = 64 << 20
"""Bytes of files that are kept for a second dataset that needs them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A small file that will be needed."""

    paths: tuple[StoragePath, ...]
    """The file, and the names that are tried after it."""
    follow: Callable[[bytes], Sequence[StoragePath]] | None = None
    """Takes its content, and returns further files that it names."""


class Opening:
    """Fetches announced files by threads; made by `opening_files`."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._found: dict[StoragePath, Future[bytes | None]] = {}
        self._untaken: set[StoragePath] = set()
        self._untaken_bytes = self._kept_bytes = 0
        self._requests, self._tasks = RequestPool(requests_in_flight=REQUESTS), RequestPool(requests_in_flight=TASKS)
        for pool in (self._requests, self._tasks):
            pool.join(self)
        self._closed = False

    def ahead(self, wanted: Iterable[Wanted]) -> None:
        """Announces files in the order in which they will be needed; local ones are left out."""
        for item in wanted:
            if not (item.paths[0].is_local or self._closed):
                self._requests.submit(0, self._work, item)

    def later(self, function: Callable[[], T], *, is_local: bool) -> Callable[[], T]:
        """Returns a function that returns what `function` returns, or raises what it raises.

        It runs in a thread, unless it reads local files, or this opening is closed: then it runs when it is asked for.

        Args:
            function: Reads files, and runs no code of the user.
            is_local: Whether they are all local.
        """
        if is_local or self._closed:
            return function
        return self._tasks.submit(0, function).result

    def read(self, path: StoragePath, max_bytes: int) -> bytes | None:
        """Returns the content of a file, None if there is none; see `read_content`."""
        with self._change:
            if self._closed:  # a thread that still runs, whose result nobody waits for
                raise CancelledError
            found = self._found.get(path)
            mine = found is None
            if found is None:
                found = self._found[path] = Future()
        if mine:
            self._fetch(path, found, max(max_bytes, MAX_DOCUMENT_BYTES))  # another caller may allow more
        content = found.result()
        if content is not None:
            self._take(path, len(content))
            if len(content) > max_bytes:
                raise too_large(path, len(content), max_bytes)
        return content

    def close(self) -> None:
        """Ends all threads; files that nobody took are dropped."""
        with self._change:
            self._closed = True
            self._change.notify_all()
            for found in self._found.values():
                found.cancel()  # unless it is being read
        for pool in (self._requests, self._tasks):
            pool.leave(self)

    def _work(self, wanted: Wanted) -> None:
        """Fetches an announced file, and those that follow from it, as soon as there is room for what they hold."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._untaken_bytes < AHEAD_BYTES)
        first = self._claim(wanted.paths[0])
        if first is None:  # another dataset needs it too
            return
        content = self._fetch(wanted.paths[0], first)
        for path in wanted.paths[1:]:
            if content is None and not first.cancelled() and first.exception() is None:
                content = self._fetch(path, self._claim(path))
        if content is not None and wanted.follow is not None:
            for path in wanted.follow(content):
                self._fetch(path, self._claim(path))

    def _claim(self, path: StoragePath) -> Future[bytes | None] | None:
        """Returns the future of a file that nobody fetches yet, else None."""
        with self._change:
            if path in self._found or self._closed:
                return None
            found = self._found[path] = Future()
            return found

    def _fetch(
        self, path: StoragePath, found: Future[bytes | None] | None, max_bytes: int = MAX_DOCUMENT_BYTES
    ) -> bytes | None:
        """Reads a file and passes it on, or the error that prevented it; returns its content."""
        if found is None or not found.set_running_or_notify_cancel():
            return None
        try:
            content = read_stored(path, max_bytes)
        except BaseException as error:
            found.set_exception(error)
            return None
        with self._change:
            if content is not None:
                self._untaken.add(path)
                self._untaken_bytes += len(content)
        found.set_result(content)
        return content

    def _take(self, path: StoragePath, size: int) -> None:
        """Counts a file as taken; a large one is forgotten."""
        with self._change:
            if path not in self._untaken:
                return
            self._untaken.remove(path)
            self._untaken_bytes -= size
            if self._kept_bytes + size <= KEPT_BYTES:
                self._kept_bytes += size
            else:
                self._found.pop(path, None)
            self._change.notify_all()


@contextmanager
def opening_files() -> Iterator[Opening]:
    """Context manager in which `read_content` finds files that were announced; a nested one is the outer one."""
    outer = current_scope()
    if outer.opening is not None:
        yield outer.opening
        return
    opening = Opening()
    scope = outer.while_opening(opening)
    try:
        with read_scope(scope):
            yield opening
    finally:
        opening.close()
        if not scope.outlasts_stores:  # that of a loader ends with the loader; here, nothing waits for retries any more
            scope.cancel()
