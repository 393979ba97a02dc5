"""The files that were read last, kept open."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.shards.storage.path import StoragePath
    from energon_dali.shards.storage.protocols import RangeReader


class OpenFiles:
    """Keeps the files open that were read last. Thread-safe; each process opens its own, and pickles have none.

    Args:
        most: Number of files that are kept open.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._readers: OrderedDict[str, RangeReader] = OrderedDict()

    def get(self, path: StoragePath) -> RangeReader:
        """Returns an open file.

        Raises:
            FileNotFoundError: There is no such file.
            StorageError: It cannot be opened.
        """
        if self._pid != os.getpid():  # forked: pread does not depend on file positions, but closing affects both
            self._forget()
        with self._lock:
            reader = self._readers.get(path.url)
            if reader is not None:
                self._readers.move_to_end(path.url)
                return reader
        opened = path.open()  # outside the lock: a remote file may take long
        with self._lock:
            reader = self._readers.setdefault(path.url, opened)
            if reader is not opened:
                opened.close()
            elif len(self._readers) > self._most:
                # A thread that reads from it keeps what it needs, or opens it again.
                self._readers.popitem(last=False)[1].close()
        return reader

    def close(self) -> None:
        """Closes them; they are opened again when needed."""
        if self._pid == os.getpid():
            with self._lock:
                for reader in self._readers.values():
                    reader.close()
                self._readers.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self._most,)
