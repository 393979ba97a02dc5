"""Files on local disks and mounted file systems."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import threading
from collections import OrderedDict
from pathlib import Path

from energon_dali.errors import StorageError
from energon_dali.shards.storage.atomic_file import atomic_file, write_atomically
from energon_dali.shards.storage.retry import with_retries


def _file_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if soft == resource.RLIM_INFINITY else max(16, min(512, soft // 4))


MAX_OPEN_FILES = _file_limit()
"""Files that all readers of a process keep open together: a quarter of what the system allows."""

MAX_LISTED_ENTRIES = 5_000_000
"""Files and folders below one folder: links to folders may multiply them without end."""

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
        self.fd = open_regular(self.path)
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
        return with_retries(lambda: read_regular(url), f"read {url}")

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
        found: list[str] = []
        folders = [("", url, frozenset[tuple[int, int]]())]
        seen = 0
        while folders:
            prefix, folder, above = folders.pop()
            try:
                status = os.stat(folder)
                identity = (status.st_dev, status.st_ino)
                if identity in above:  # a link to a folder that it is in: its files were found already
                    continue
                with os.scandir(folder) as entries:
                    for entry in entries:
                        seen += 1
                        if _is_dir(entry):
                            folders.append((f"{prefix}{entry.name}/", entry.path, above | {identity}))
                        else:
                            found.append(prefix + entry.name)
            except OSError:
                continue  # as os.walk does: a folder that may not be read has no files
            if seen > MAX_LISTED_ENTRIES:
                raise StorageError(
                    f"{url} has more than {MAX_LISTED_ENTRIES:,} files, counted as often as links lead to them. Look "
                    "for symbolic links to folders, and remove them."
                )
        return sorted(found)

    def remove(self, url: str) -> None:
        Path(url).unlink(missing_ok=True)


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def open_regular(path: str) -> int:
    """Returns a descriptor of a regular file; a pipe, socket or device is refused, which would never end.

    Raises:
        OSError: It cannot be opened.
        StorageError: It is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # or opening a pipe would wait for a writer
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise StorageError(f"{path} is a pipe, a socket or a device. Give a regular file")


def read_regular(path: str) -> bytes:
    """Returns the content of a regular file.

    Raises:
        OSError: It cannot be read.
        StorageError: It is not a regular file.
    """
    with open(open_regular(path), "rb", buffering=0) as file:
        return file.readall()
