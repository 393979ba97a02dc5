"""Files on local disks and mounted file systems."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import shutil
import stat
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from energon_dali.errors import StorageError
from energon_dali.shards.storage.atomic_file import atomic_file, write_atomically
from energon_dali.shards.storage.retry import with_retries
from energon_dali.shards.storage.store import store_of


def _file_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if soft == resource.RLIM_INFINITY else max(16, min(512, soft // 4))


MAX_OPEN_FILES = _file_limit()
"""Files that all readers of a process keep open together: a quarter of what the system allows."""

MAX_LISTED_ENTRIES = 5_000_000
"""Files and folders below one folder: links to folders may multiply them without end."""


class Descriptor:
    """An open file descriptor, closed when the last reference to it goes.

    So a thread that reads from it keeps it open, whoever closes or reopens the file meanwhile, and nobody needs a lock.

    Args:
        fd: The descriptor, which this object owns from now on.
    """

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with contextlib.suppress(OSError):
            close(self.fd)


_opened: deque[tuple[weakref.ref[LocalReader], weakref.ref[Descriptor]]] = deque()
"""What was opened, the oldest first; entries of files that were closed since are passed over.

The garbage collector may close readers at any moment in any thread, also in one that is inside of these functions. So
there is no lock: a deque's `append` and `popleft` are atomic."""


class LocalReader:
    """A local file, read with pread; for any number of threads.

    A blend of a hundred datasets has thousands of shards in use, more than a process may have files open. So the files
    that were opened first are closed when there are too many, and opened again when they are read again. A descriptor
    that fails is replaced too: one of a network file system may stay stale.

    Args:
        path: Path of the file.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._store = store_of(path)
        self._probe = partial(_read_one_byte, path)
        self._descriptor: Descriptor | None = None
        descriptor = self._open()
        self.size = os.fstat(descriptor.fd).st_size

    def _open(self) -> Descriptor:
        """Opens the file, and lets go of others where there are too many."""
        descriptor = Descriptor(open_regular(self.path))
        self._descriptor = descriptor
        _opened.append((weakref.ref(self), weakref.ref(descriptor)))
        while len(_opened) > MAX_OPEN_FILES:
            try:
                reader_ref, descriptor_ref = _opened.popleft()
            except IndexError:  # another thread was faster
                break
            reader, oldest = reader_ref(), descriptor_ref()
            if reader is not None and oldest is not None and reader._descriptor is oldest:
                reader._descriptor = None
        return descriptor

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            return self._read(offset, size)
        except OSError as error:
            doing = f"read bytes {offset} to {offset + size} of"
            return with_retries(partial(self._read, offset, size), doing, self.path, failed=error)

    def _read(self, offset: int, size: int) -> bytes:
        """Makes one attempt."""
        descriptor = self._descriptor or self._open()
        try:
            data = os.pread(descriptor.fd, size, offset)
            if len(data) < size:
                data = _read_on(descriptor.fd, data, offset, size)
        except OSError:
            if self._descriptor is descriptor:
                self._descriptor = None
            raise
        store = self._store
        store.succeeded(self.path, self._probe, offset)
        if store.failed_files:
            store.failed_files.pop(self.path, None)
        return data

    def map(self) -> mmap.mmap:
        """Returns the file mapped into memory, to be read; reading it ends the process where the file shrank.

        Raises:
            OSError: It cannot be mapped.
        """
        descriptor = self._descriptor or self._open()
        return mmap.mmap(descriptor.fd, 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        self._descriptor = None


def _read_on(fd: int, data: bytes, offset: int, size: int) -> bytes:
    """Returns the rest too: one pread gives at most 2 GiB, and network file systems may give less."""
    pieces, got = [data], len(data)
    while data and got < size:
        data = os.pread(fd, size - got, offset + got)
        pieces.append(data)
        got += len(data)
    return b"".join(pieces)


def _read_one_byte(path: str, offset: int) -> None:
    """Reads a byte by a descriptor of its own.

    Raises:
        OSError: It cannot be read.
    """
    descriptor = Descriptor(open_regular(path))  # by its name: it closes when the last reference goes
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor.fd, offset, 1, os.POSIX_FADV_DONTNEED)  # from the disk, not from memory
    os.pread(descriptor.fd, 1, offset)


class LocalBackend:
    """Local files."""

    def open(self, url: str) -> LocalReader:
        return with_retries(lambda: LocalReader(url), "open", url)

    def read_bytes(self, url: str) -> bytes:
        content = with_retries(lambda: read_regular(url), "read", url)
        store_of(url).succeeded(url, partial(_read_one_byte, url), 0)
        return content

    def write_bytes(self, url: str, content: bytes) -> None:
        write_atomically(url, content)

    def write_file(self, url: str, local: str) -> None:
        with atomic_file(url) as temporary:
            shutil.move(local, temporary)

    def size(self, url: str) -> int:
        return with_retries(lambda: os.stat(url).st_size, "look at", url)

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
    try:
        descriptor = open_regular(path)
    except NotADirectoryError as error:  # a part of the path is a file
        raise FileNotFoundError(*error.args) from error
    with open(descriptor, "rb", buffering=0) as file:
        return file.readall()
