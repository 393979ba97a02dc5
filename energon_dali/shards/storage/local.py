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
from typing import NoReturn, overload

from energon_dali.errors import StorageError
from energon_dali.shards.storage.atomic_file import atomic_file, write_atomically
from energon_dali.shards.storage.retry import repeated, with_retries
from energon_dali.shards.storage.store import current_scope, store_of

_MOST_FILES = 16_384


def _file_limit(share: int = 4) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else max(16, min(_MOST_FILES, soft // share))


MAX_OPEN_FILES = _file_limit()
"""Number of files that all readers of a process keep open: a quarter of what the system allows, half in a worker."""


def allow_many_files() -> None:
    """Raises the number of files that this process may open, for a process of our own."""
    global MAX_OPEN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * _MOST_FILES if hard == resource.RLIM_INFINITY else min(2 * _MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    MAX_OPEN_FILES = _file_limit(2)


MAX_LISTED_ENTRIES = 5_000_000
"""Limit of files and folders below one folder, which links to folders may multiply without end."""


LEAST_BYTES = 32 << 10
"""Smaller reads are left to the allocator, which keeps their memory."""
MOST_BYTES = 4 << 20
"""Larger ones too: clearing their pages is a small part of decoding them."""
KEPT_BYTES = 64 << 20
"""Most memory of all buffers for reading that a process keeps."""
_STEP_BYTES = 32 << 10
_TRIED = 4
"""Buffers that are looked at before a new one is made."""


class ReusedBuffers:
    """Buffers that are used again as soon as nobody sees what they hold: for reads of local files, and for results.

    The allocator gives the memory of large freed objects back to the system, which clears every page before the next
    read may write to it: for a part of 100 KB that takes longer than reading it from the page cache.

    Thread-safe without a lock: appending to a deque and popping from it are atomic.

    Args:
        kept_bytes: Most memory of all buffers that are kept, whether they are in use or not.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most_kept = kept_bytes
        self._queues: dict[int, deque[bytearray]] = {}
        self._kept_bytes = 0

    def take(self, size: int) -> memoryview:
        """Returns `size` writable bytes that nobody else sees; they may hold anything.

        The buffer is used again when the last view of it is gone: a slice, an array or a tensor of it is a view.

        Args:
            size: Number of bytes; LEAST_BYTES to MOST_BYTES is where this takes less time than the allocator.
        """
        capacity = -(-size // _STEP_BYTES) * _STEP_BYTES
        queue = self._queues.setdefault(capacity, deque())
        # They are released in about the order in which they were taken, so that one of the oldest is free if any is.
        for _ in range(_TRIED):
            try:
                buffer = queue.popleft()
            except IndexError:
                break
            view = memoryview(buffer) if _is_unseen(buffer) else None  # before another thread can find the buffer
            queue.append(buffer)
            if view is not None:
                return view[:size]
        return self._new(queue, capacity)[:size]

    def _new(self, queue: deque[bytearray], capacity: int) -> memoryview:
        buffer = bytearray(capacity)
        view = memoryview(buffer)
        if self._kept_bytes + capacity <= self._most_kept:
            self._kept_bytes += capacity
            queue.append(buffer)
        return view

    def clear(self) -> None:
        """Drops all buffers; what is still seen stays valid."""
        self._queues.clear()
        self._kept_bytes = 0


def _is_unseen(buffer: bytearray) -> bool:
    """Returns whether there is no view of a buffer: only then may its size change."""
    try:
        del buffer[-1:]
    except BufferError:
        return False
    buffer.append(0)  # its memory stays where it is
    return True


READ_BUFFERS = ReusedBuffers()
"""The buffers of this process for all readers."""


class Descriptor:
    """An open file descriptor, closed when its last reference is dropped.

    So a thread that reads from it keeps it open even if another thread closes or reopens the file, without a lock.

    Args:
        fd: The descriptor, which this object owns from now on.
    """

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open file cannot be copied or pickled: both copies would close its descriptor")

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with contextlib.suppress(OSError):
            close(self.fd)


_opened: deque[tuple[weakref.ref[LocalReader], weakref.ref[Descriptor]]] = deque()
"""The files that were opened, oldest first; entries of files that were closed since are skipped.

The garbage collector may close readers at any moment in any thread, even in one that is inside these functions. So
there is no lock: `append` and `popleft` of a deque are atomic."""


class LocalReader:
    """A local file, read with pread. Thread-safe.

    A blend of a hundred datasets uses thousands of shards, more files than a process may open. So when there are too
    many, the ones that were opened first are closed, and opened again on their next read. A descriptor that fails is
    also replaced, because one of a network file system may stay stale.

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
        """Opens the file, and closes others if there are too many."""
        descriptor = Descriptor(open_regular(self.path)[0])
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

    def try_read(self, offset: int, size: int) -> bytes | None:
        """Returns a range after a single attempt; None where it cannot be read. A file that fails is not tried."""
        if self.path in current_scope().failed_files:
            return None
        try:
            return self._read(offset, size)
        except OSError:
            return None

    def read_view(self, offset: int, size: int) -> bytes | memoryview:
        """Returns what `read_at` does, or a view of it, whose memory is used again when no view of it is left."""
        view = READ_BUFFERS.take(size) if LEAST_BYTES <= size <= MOST_BYTES else None
        try:
            return self._read(offset, size, view)
        except OSError as error:
            doing = f"read bytes {offset} to {offset + size} of"
            return with_retries(partial(self._read, offset, size, view), doing, self.path, failed=error)

    @overload
    def _read(self, offset: int, size: int, target: None = None) -> bytes: ...
    @overload
    def _read(self, offset: int, size: int, target: memoryview | None) -> bytes | memoryview: ...
    def _read(self, offset: int, size: int, target: memoryview | None = None) -> bytes | memoryview:
        """Makes one attempt, with a target of `size` bytes to read into or without one."""
        descriptor = self._descriptor or self._open()
        data: bytes | memoryview
        try:
            if target is not None:
                data = _read_into(descriptor.fd, target, offset)
            else:
                data = os.pread(descriptor.fd, size, offset)
                if len(data) < size:
                    data = _read_on(descriptor.fd, data, offset, size)
        except OSError:
            if self._descriptor is descriptor:
                self._descriptor = None
            raise
        self._store.succeeded(self.path, self._probe, offset)
        return data

    def read_entry(self, offset: int, size: int) -> bytes:
        """Returns a few bytes from `offset` on. Costs less than `read_at`, and does not count as a sign of life."""
        descriptor = self._descriptor
        if descriptor is not None:
            with contextlib.suppress(OSError):
                data = os.pread(descriptor.fd, size, offset)
                if len(data) == size:
                    return data
        return self.read_at(offset, size)

    def map(self) -> mmap.mmap:
        """Maps the file into memory for reading. If the file shrinks, reading the map kills the process.

        Raises:
            OSError: It cannot be mapped.
        """
        descriptor = self._descriptor or self._open()
        return mmap.mmap(descriptor.fd, 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        self._descriptor = None


def _read_on(fd: int, data: bytes, offset: int, size: int) -> bytes:
    """Reads the rest and returns all: one pread returns at most 2 GiB, and on network file systems maybe less."""
    chunks, got = [data], len(data)
    while data and got < size:
        data = os.pread(fd, size - got, offset + got)
        chunks.append(data)
        got += len(data)
    return b"".join(chunks)


def _read_into(fd: int, target: memoryview, offset: int) -> memoryview:
    """Fills a target, and returns it; or the part of it that was filled where the file ends."""
    got = last = os.preadv(fd, (target,), offset)
    while last and got < len(target):
        last = os.preadv(fd, (target[got:],), offset + got)
        got += last
    return target[:got] if got < len(target) else target


def _read_one_byte(path: str, offset: int) -> None:
    """Reads a byte through a new descriptor.

    Raises:
        OSError: It cannot be read.
    """
    descriptor = Descriptor(open_regular(path)[0])  # a variable, because the last reference closes it
    with contextlib.suppress(OSError):
        # From the disk, not from memory. The whole file, because the kernel keeps pages that a range covers in part.
        os.posix_fadvise(descriptor.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(descriptor.fd, 1, offset)


class LocalBackend:
    """Local files."""

    def open(self, url: str, size: int | None = None) -> LocalReader:
        return with_retries(lambda: LocalReader(url), "open", url)

    def read_bytes(self, url: str, max_bytes: int | None = None) -> bytes:
        content = with_retries(lambda: read_regular(url, max_bytes), "read", url)
        store_of(url).succeeded(url, partial(_read_one_byte, url), 0)
        return content

    def write_bytes(self, url: str, content: bytes) -> None:
        write_atomically(url, content)

    def write_file(self, url: str, local: str) -> None:
        with atomic_file(url) as temporary:
            shutil.move(local, temporary)

    def size(self, url: str) -> int:
        return self.identity(url)[0]

    def identity(self, url: str) -> tuple[int, str]:
        status = with_retries(lambda: os.stat(url), "look at", url)
        return status.st_size, f"{status.st_ino:x}-{status.st_mtime_ns:x}"

    def is_dir(self, url: str) -> bool:
        return os.path.isdir(url)

    def list_files(self, url: str) -> list[str]:
        found: list[str] = []
        folders = [("", url, frozenset[tuple[int, int]]())]
        seen = 0
        while folders:
            prefix, folder, above = folders.pop()
            try:
                identity, entries = repeated(partial(_look_into, folder), "list", folder)
            except OSError:
                continue  # like os.walk: a folder that may not be read counts as empty
            if identity in above:  # a link to a folder that contains it: its files were found already
                continue
            for entry in entries:
                seen += 1
                if _is_dir(entry):
                    folders.append((f"{prefix}{entry.name}/", entry.path, above | {identity}))
                else:
                    found.append(prefix + entry.name)
            if seen > MAX_LISTED_ENTRIES:
                raise StorageError(
                    f"{url} has more than {MAX_LISTED_ENTRIES:,} files, counted once per link that leads to them. "
                    "Look for symbolic links to folders, and remove them."
                )
        return sorted(found)

    def remove(self, url: str) -> None:
        Path(url).unlink(missing_ok=True)


def _look_into(folder: str) -> tuple[tuple[int, int], list[os.DirEntry[str]]]:
    """Returns (what distinguishes a folder from others, its entries)."""
    status = os.stat(folder)
    with os.scandir(folder) as entries:
        return (status.st_dev, status.st_ino), list(entries)


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def open_regular(path: str) -> tuple[int, int]:
    """Opens a regular file; pipes, sockets and devices, which may never end, are refused.

    Returns:
        (descriptor, size in bytes).

    Raises:
        OSError: It cannot be opened.
        StorageError: It is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # non-blocking, or opening a pipe would wait
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return descriptor, status.st_size
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise StorageError(f"{path} is a pipe, a socket or a device. Give a regular file.")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str, max_bytes: int | None = None) -> bytes:
    """Returns the content of a regular file; of one larger than `max_bytes`, its first `max_bytes` + 1 bytes.

    Raises:
        OSError: It cannot be read.
        StorageError: It is not a regular file.
    """
    try:
        descriptor, size = open_regular(path)
    except NotADirectoryError as error:  # a component of the path is a file
        raise FileNotFoundError(*error.args) from error
    try:
        if max_bytes is not None and size > max_bytes:
            return os.read(descriptor, max_bytes + 1)
        content = os.read(descriptor, size + 1)
        if len(content) == size:  # one byte more was asked for, so that this is the end
            return content
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return content + file.readall()
    finally:
        os.close(descriptor)
