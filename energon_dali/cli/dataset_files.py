"""A read-only file system of a dataset, as FUSE calls it: one method per operation, errors as OSError with an errno."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from energon_dali.errors import ConfigError, EnergonDaliError
from energon_dali.shards import WebdatasetFolder
from energon_dali.shards.index.extents import changed_shard, check_member
from energon_dali.shards.index.tar_scan import TAR_BLOCK_BYTES
from energon_dali.shards.storage import WindowReader
from energon_dali.shards.storage.protocols import RangeReader

_CACHED_SHARDS = 8


@dataclass(frozen=True, slots=True)
class PartFile:
    """A file: one part of a sample."""

    shard: int
    """Number of its shard."""
    member: str
    """Its name in the shard, `KEY.PART`."""
    offset: int
    """Where its content begins in the shard, in bytes."""
    size: int
    """Size of its content in bytes."""


@dataclass(frozen=True, slots=True)
class _Shard:
    """A folder whose entries are made when they are asked for."""

    number: int


_Folder = dict[str, "_Node"]
_Node = _Folder | PartFile | _Shard


class DatasetTree:
    """The folders and files of a dataset. Thread-safe.

    The shards are folders. Each holds its parts as files, named as in the tar; slashes in names of shards and in keys
    make folders as well. Names that a file system cannot have, such as `..`, are left out.

    Args:
        folder: The dataset.
        sample_folders: Make a folder of each sample, named by its key, and name files by their parts.
    """

    def __init__(self, folder: WebdatasetFolder, *, sample_folders: bool) -> None:
        self._folder = folder
        self._sample_folders = sample_folders
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, _Folder] = OrderedDict()
        self._root: _Folder = {}
        for number, name in enumerate(folder.shard_names):
            _add(self._root, name.split("/"), _Shard(number))

    def find(self, path: str) -> PartFile | list[str] | None:
        """Returns the file at a path, or the names in the folder there; None if there is neither.

        Args:
            path: Begins with a slash.

        Raises:
            DatasetError: The index of the shard is damaged.
            StorageError: It cannot be read.
        """
        node: _Node | None = self._root
        for name in [name for name in path.split("/") if name]:
            entries = self._open(node)
            node = None if entries is None else entries.get(name)
            if node is None:
                return None
        if isinstance(node, PartFile):
            return node
        return list(self._open(node) or ())

    def _open(self, node: _Node | None) -> _Folder | None:
        """Returns the entries of a folder, or None if it is none."""
        if isinstance(node, _Shard):
            with self._lock:
                entries = self._entries.pop(node.number, None)
                self._entries[node.number] = entries = self._list(node.number) if entries is None else entries
                if len(self._entries) > _CACHED_SHARDS:
                    self._entries.popitem(last=False)
                return entries
        return node if isinstance(node, dict) else None

    def _list(self, number: int) -> _Folder:
        extents = self._folder.index.shard(number)
        entries: _Folder = {}
        for sample in range(extents.num_samples):
            key = extents.key(sample)
            for part, offset, size in extents.parts(sample):
                file = PartFile(number, f"{key}.{part}", offset, size)
                names = [*key.split("/"), part] if self._sample_folders else file.member.split("/")
                _add(entries, names, file)
        return entries


def _add(folder: _Folder, names: Iterable[str], node: _Node) -> None:
    """Adds an entry below a folder, unless its name is taken or cannot be that of a file."""
    *parents, last = names
    if any(name in ("", ".", "..") for name in (*parents, last)):
        return
    for name in parents:
        below = folder.setdefault(name, {})
        if not isinstance(below, dict):
            return
        folder = below
    folder.setdefault(last, node)


_logger = logging.getLogger(__name__)

HEAD_BYTES = 1 << 20
"""Bytes of a file that are read when it is opened."""
_BLOCK_BYTES = 512
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class _OpenFile:
    """A file that a program has opened. Its header in the tar is compared with the index once.

    Args:
        folder: The dataset.
        file: What is opened.

    Raises:
        EnergonDaliError: The shard cannot be read, or changed since it was indexed.
        OSError: The shard is missing or cannot be read.
    """

    def __init__(self, folder: WebdatasetFolder, file: PartFile) -> None:
        self._shard = folder.shard_names[file.shard]
        self._file = file
        self._lock = threading.Lock()
        path = folder.root / self._shard
        self._reader: RangeReader = path.open()
        self._window = None if path.is_local else WindowReader(self._reader)
        try:
            head = self._reader.read_at(file.offset - TAR_BLOCK_BYTES, TAR_BLOCK_BYTES + min(file.size, HEAD_BYTES))
            member = file.member.encode("utf-8", "surrogateescape")
            check_member(self._shard, head[:TAR_BLOCK_BYTES], member, file.size, file.offset)
        except BaseException:
            self._reader.close()
            raise
        self._head = head[TAR_BLOCK_BYTES:]

    def read(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes of the content from `offset` on."""
        size = max(0, min(size, self._file.size - offset))
        if offset + size <= len(self._head):
            return self._head[offset : offset + size]
        start = self._file.offset + offset
        if self._window is None:
            content = self._reader.read_at(start, size)
        else:
            with self._lock:
                content = self._window.read_at(start, size)
        if len(content) < size:
            raise changed_shard(self._shard, f"it ends before byte {start + size}")
        return content

    def close(self) -> None:
        """Closes the shard."""
        self._reader.close()


class DatasetFiles:
    """The operations of the file system. FUSE calls them from several threads.

    Args:
        folder: The dataset.
        sample_folders: Make a folder of each sample.
        allow_slow: Allow a dataset without an index of parts: the headers of a shard are then read when it is first
            listed.

    Raises:
        ConfigError: The dataset has no index of parts, and `allow_slow` is False.
        DatasetError: Its index is damaged.
        StorageError: It cannot be read.
    """

    use_ns = True
    """Times are whole nanoseconds."""

    def __init__(self, folder: WebdatasetFolder, *, sample_folders: bool = False, allow_slow: bool = False) -> None:
        if folder.index.source == "tar" and not allow_slow:
            raise ConfigError(
                f"{folder.path} has no index of its parts, so every shard would be scanned when it is listed. Run "
                "`energon-dali prepare` on it, or allow that with --allow-slow."
            )
        self._folder = folder
        self._tree = DatasetTree(folder, sample_folders=sample_folders)
        self._numbers = itertools.count(1)
        self._open_files: dict[int, _OpenFile] = {}
        self._total_bytes: int | None = None
        self._time_ns = time.time_ns()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Returns the attributes of a file or folder; raises ENOENT."""
        found = self._find(path)
        is_file = isinstance(found, PartFile)
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), self._time_ns)
        return {
            "st_mode": stat.S_IFREG | 0o444 if is_file else stat.S_IFDIR | 0o555,
            "st_nlink": 1 if is_file else 2,
            "st_size": found.size if isinstance(found, PartFile) else 0,
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
            **times,
        }

    def readdir(self, path: str, fh: int = 0) -> list[str]:
        """Returns the names in a folder; raises ENOENT and ENOTDIR."""
        found = self._find(path)
        if isinstance(found, PartFile):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return [".", "..", *found]

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Returns a number for an opened file; raises ENOENT, EISDIR, EROFS for writing, and EIO."""
        found = self._find(path)
        if not isinstance(found, PartFile):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if flags & _WRITING:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        with _as_io_error(path):
            opened = _OpenFile(self._folder, found)
        number = next(self._numbers)
        self._open_files[number] = opened
        return number

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Returns up to `size` bytes of an opened file from `offset` on; raises EBADF and EIO."""
        opened = self._open_files.get(fh)
        if opened is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
        with _as_io_error(path):
            return opened.read(size, offset)

    def release(self, path: str, fh: int) -> int:
        """Closes an opened file."""
        opened = self._open_files.pop(fh, None)
        if opened is not None:
            opened.close()
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """Returns the size of the file system: that of all shards; nothing is free."""
        if self._total_bytes is None:
            with _as_io_error(path):
                self._total_bytes = sum((self._folder.root / name).size() for name in self._folder.shard_names)
        return {
            "f_bsize": _BLOCK_BYTES,
            "f_frsize": _BLOCK_BYTES,
            "f_blocks": -(-self._total_bytes // _BLOCK_BYTES),
            "f_files": self._folder.num_samples,
            "f_namemax": 1024,
        }

    def destroy(self, path: str) -> None:
        """Closes everything when the file system is unmounted."""
        for number in list(self._open_files):
            self.release(path, number)
        self._folder.index.close()

    def _find(self, path: str) -> PartFile | list[str]:
        with _as_io_error(path):
            found = self._tree.find(path)
        if found is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found


@contextmanager
def _as_io_error(path: str) -> Iterator[None]:
    """Logs an error of the dataset, and raises it as EIO: a program sees no more than the number of an error.

    Raises:
        OSError: EIO.
    """
    try:
        yield
    except (EnergonDaliError, OSError) as error:
        _logger.error("%s cannot be read: %s", path, error)
        raise OSError(errno.EIO, os.strerror(errno.EIO), path) from error
