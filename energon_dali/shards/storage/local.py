"""Files on local disks and mounted file systems."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from collections import OrderedDict
from pathlib import Path

from energon_dali.shards.storage.atomic_file import atomic_file, write_atomically
from energon_dali.shards.storage.retry import with_retries


def _file_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if soft == resource.RLIM_INFINITY else max(16, min(512, soft // 4))


MAX_OPEN_FILES = _file_limit()
"""Files that all readers of a process keep open together: a quarter of what the system allows."""

_registry: OrderedDict[int, LocalReader] = OrderedDict()
_registry_lock = threading.Lock()


def _after_fork() -> None:
    global _registry, _registry_lock
    _registry = OrderedDict()  # the parent's readers are its own; the child makes new ones
    _registry_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class LocalReader:
    """A local file, read with pread.

    A blend of a hundred datasets has thousands of shards in use, more than a process may have files open. So the files
    that were
    opened first are closed when there are too many, and opened again when they are read again.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self._lock = threading.Lock()
        self.size = os.fstat(self._open()).st_size

    def _open(self) -> int:
        """Opens the file, and closes another one where there are too many."""
        self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        with _registry_lock:
            _registry[id(self)] = self
            surplus = len(_registry) - MAX_OPEN_FILES
            oldest = [reader for reader, _ in zip(_registry.values(), range(max(0, surplus)), strict=False)]
            for reader in oldest:
                # A busy one is left alone: waiting for it while others wait for the registry would never end.
                if reader is not self and reader._lock.acquire(blocking=False):
                    try:
                        reader._close()
                    finally:
                        reader._lock.release()
        return self.fd

    def read_at(self, offset: int, size: int) -> bytes:
        with self._lock:
            fd = self.fd if self.fd >= 0 else with_retries(self._open, f"open {self.path}")
            data = os.pread(fd, size, offset)
            if len(data) == size:
                return data
            return self._read_on(fd, data, offset, size)

    def _read_on(self, fd: int, data: bytes, offset: int, size: int) -> bytes:
        """Returns the rest too: one pread gives at most 2 GiB, and network file systems may give less."""
        pieces, got = [data], len(data)
        while data and got < size:
            data = os.pread(fd, size - got, offset + got)
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def close(self) -> None:
        with self._lock, _registry_lock:
            self._close()

    def _close(self) -> None:
        _registry.pop(id(self), None)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class LocalBackend:
    """Local files."""

    def open(self, url: str) -> LocalReader:
        return with_retries(lambda: LocalReader(url), f"open {url}")

    def read_bytes(self, url: str) -> bytes:
        return with_retries(Path(url).read_bytes, f"read {url}")

    def write_bytes(self, url: str, content: bytes) -> None:
        write_atomically(url, content)

    def write_file(self, url: str, local: str) -> None:
        with atomic_file(url) as temporary:
            shutil.move(local, temporary)

    def size(self, url: str) -> int:
        return with_retries(lambda: os.stat(url).st_size, f"look at {url}")

    def is_dir(self, url: str) -> bool:
        return os.path.isdir(url)

    def list_files(self, url: str) -> list[str]:
        found = []
        for folder, _, names in os.walk(url, followlinks=True):
            relative = os.path.relpath(folder, url)
            found += [name if relative == "." else f"{relative}/{name}" for name in names]
        return sorted(found)

    def remove(self, url: str) -> None:
        Path(url).unlink(missing_ok=True)
