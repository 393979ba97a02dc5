"""Files of a dataset that stay open between requests."""

from __future__ import annotations

import threading
from collections import OrderedDict

from energon_dali.shards import StoragePath
from energon_dali.shards.storage.path import RangeReader

_MOST_OPEN = 64


class OpenFiles:
    """The files that were read last, kept open. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: OrderedDict[str, RangeReader] = OrderedDict()

    def get(self, path: StoragePath) -> RangeReader:
        """Returns an open file.

        Raises:
            FileNotFoundError: There is no such file.
            StorageError: It cannot be opened.
        """
        with self._lock:
            reader = self._readers.get(path.url)
            if reader is None:
                # One that falls out is closed by the garbage collector, when no thread reads from it any more.
                reader = self._readers[path.url] = path.open()
                if len(self._readers) > _MOST_OPEN:
                    self._readers.popitem(last=False)
            self._readers.move_to_end(path.url)
            return reader

    def close(self) -> None:
        """Closes them."""
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()
