"""Reads a file piece by piece from the front, in large requests, for those who take it in small steps."""

from __future__ import annotations

from energon_dali.shards.storage.backend import RangeReader

WINDOW_BYTES = 8 << 20


class WindowReader:
    """Keeps the last piece of a file in memory; for one thread.

    Args:
        reader: The file.
        window: Bytes per request.
    """

    def __init__(self, reader: RangeReader, window: int = WINDOW_BYTES) -> None:
        self._reader = reader
        self._window = window
        self._start = 0
        self._piece = b""

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on; fewer only at the end of the file.

        Raises:
            StorageError: It could not be read, retries included.
        """
        end = offset + size
        if offset < self._start or end > self._start + len(self._piece):
            self._piece = self._reader.read_at(offset, max(size, self._window))
            self._start = offset
        return self._piece[offset - self._start : end - self._start]
