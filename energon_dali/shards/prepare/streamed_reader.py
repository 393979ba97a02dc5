"""Reads a remote file from the front, in few requests: whole where it is needed, in small pieces where it is not.

A tar is scanned from header to header. Where members are small, or their content is looked at, everything is needed: it
is requested in windows that grow, several of them at a time if that is asked for. Where a large member is passed over,
only the next headers are requested, and the windows start small again.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context

from energon_dali.shards.storage.path import RangeReader

WHOLE_BYTES = 4 << 20
"""Smaller files are read in one request."""
FIRST_BYTES = 1 << 20
"""First window of a larger file."""
AFTER_JUMP_BYTES = 32 << 10
"""First window after a member that is passed over: its neighbour's headers, and small members."""
LARGEST_BYTES = 8 << 20
"""Largest window."""
JUMP_BYTES = 1 << 20
"""A gap of this size is passed over: fetching it would take as long as a new request."""


class StreamedReader:
    """Reads a remote file in growing windows. Not thread-safe.

    Args:
        reader: The file.
        ahead: Windows that are requested before they are needed.
    """

    def __init__(self, reader: RangeReader, ahead: int = 0) -> None:
        self._reader = reader
        self._ahead = ahead
        self._start = 0
        self._chunk = b""
        self._window = reader.size if reader.size <= WHOLE_BYTES else FIRST_BYTES
        self._requested: dict[int, Future[bytes]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on; fewer only at the end of the file.

        Raises:
            StorageError: It could not be read, retries included.
        """
        end = self._start + len(self._chunk)
        if self._start <= offset and offset + size <= end:
            return self._chunk[offset - self._start : offset - self._start + size]
        if offset > end + JUMP_BYTES or offset < self._start:
            self._forget()
            self._window = AFTER_JUMP_BYTES
            self._start, self._chunk = offset, self._reader.read_at(offset, max(size, self._window))
        else:
            self._continue(offset, size, end)
        return self._chunk[offset - self._start : offset - self._start + size]

    def close(self) -> None:
        """Drops what was requested ahead; the file itself stays open."""
        self._forget()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _continue(self, offset: int, size: int, end: int) -> None:
        """Makes the next windows the chunk, from `offset` on, at least to `offset` + `size`."""
        pieces = [self._chunk[offset - self._start :]] if offset < end else []
        position = max(end, offset) if not self._requested else end
        self._start = min(offset, position)
        while position < min(offset + size, self._reader.size) or not pieces:
            future = self._requested.pop(position, None)
            if future is None:
                self._forget()  # windows that begin elsewhere
                wanted = max(self._window, offset + size - position)
                piece = self._reader.read_at(position, wanted)
            else:
                piece = future.result()
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
            self._window = min(2 * self._window, LARGEST_BYTES)
            self._request(position)
        self._chunk = b"".join(pieces)

    def _request(self, position: int) -> None:
        """Requests the windows from `position` on, once they have their full size."""
        if not self._ahead or self._window < LARGEST_BYTES:
            return
        self._pool = self._pool or ThreadPoolExecutor(self._ahead, "energon-dali-stream")
        for start in range(position, min(position + self._ahead * self._window, self._reader.size), self._window):
            if start not in self._requested:
                read = self._reader.read_at
                self._requested[start] = self._pool.submit(copy_context().run, read, start, self._window)

    def _forget(self) -> None:
        for future in self._requested.values():
            future.cancel()
        self._requested.clear()
