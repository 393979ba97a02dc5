"""A cache pool on local disk."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from energon_dali.cache.fetcher import CacheEntry, Fetcher, lost_value
from energon_dali.cache.file_store import FileStore
from energon_dali.cache.pool import CachePool, Lazy
from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError, StorageError
from energon_dali.samples import SourceInfo
from energon_dali.shards.storage.owned_folder import OwnedFolder, remove_stale

T = TypeVar("T")
Method = Literal["raw", "pickle"]

PREFIX = "energon-dali-cache-"
"""Start of the names of folders of pools."""
_GIGABYTE = 1024**3


class FileStoreCachePool(CachePool):
    """Fetches files in the background to local disk, and reads them from there.

    For slow stores, and for buffers of samples (packing, shuffling) that would not fit in memory with their media. A
    file is removed as soon as the last reference to it was used or dropped. The pool removes its folder; if this
    process is killed, the next pool with the same parent folder does. Each process creates its folder and threads with
    its first file. The limits hold for all processes of a loader together.

    Args:
        parent_cache_dir: Folder on a local disk in which the pool creates its own; None is the system's folder for
            temporary files.
        num_workers: Number of files that each process fetches at a time.
        max_cache_size_gbytes: Most disk space, in 1024**3 bytes. When it is used up, fetching waits, and files that are
            wanted are read without the cache.
        max_cache_count: Most files on disk.
        method: "raw" keeps files as they are in their store; "pickle" keeps them decoded, and reads back only what the
            same process wrote.

    Raises:
        ConfigError: An argument is invalid.
    """

    @explain_call
    def __init__(
        self,
        *,
        parent_cache_dir: str | os.PathLike[str] | None = None,
        num_workers: int = 8,
        max_cache_size_gbytes: float = 1024,
        max_cache_count: int = 10_000_000,
        method: Method = "raw",
    ) -> None:
        if method not in get_args(Method):
            raise ConfigError(f"method={method!r} is unknown: give one of {', '.join(map(repr, get_args(Method)))}.")
        if num_workers < 1 or max_cache_count < 0 or not 0 <= max_cache_size_gbytes < math.inf:
            raise ConfigError(
                f"FileStoreCachePool({num_workers=}, {max_cache_size_gbytes=}, {max_cache_count=}) is invalid: give at "
                "least 1 worker, and finite limits that are not negative."
            )
        self.parent_cache_dir = Path(parent_cache_dir or tempfile.gettempdir()).absolute()
        self.num_workers = num_workers
        self.max_bytes = int(max_cache_size_gbytes * _GIGABYTE)
        self.max_count = max_cache_count
        self.method: Method = method
        self._root: Path | None = None
        """Folder of the process that this one works for; None if there is none."""
        self._owns_root = False
        self._folder: ProcessFolder | None = None
        self._fetcher: Fetcher | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def get_lazy(self, ds: FileStore[T], fname: str) -> FileCacheLazy[T]:
        """Returns a reference to a file, and starts to fetch the file, once for all references to it.

        Args:
            ds: The store.
            fname: Name of the file in it.

        Raises:
            ConfigError: The pool is closed.
        """
        fetcher = self._open()
        decoded = self.method == "pickle"
        # Decoding may depend on the sample (random crops), so decoded files belong to one store object.
        key = (ds.identity(fname), id(ds) if decoded else 0)
        entry = fetcher.ask(key, lambda: CacheEntry(key, ds, fname, decoded=decoded))
        return FileCacheLazy(ds, fname, self, entry, fetcher)

    def to_cache(self, data: T, name: str) -> FileCacheLazy[T]:
        """Writes a value to disk and returns a reference to it; if there is no room, it stays in memory.

        Args:
            data: The value; picklable.
            name: For messages.

        Raises:
            ConfigError: The pool is closed.
        """
        fetcher = self._open()
        entry = CacheEntry(None, None, name, decoded=True)
        fetcher.keep(entry, data)
        return FileCacheLazy(None, name, self, entry, fetcher)

    def close(self) -> None:
        """Ends the threads and removes the files; may be called more than once.

        References can still fetch their data from the store. A value of `to_cache` that was not read before is lost.
        """
        fetcher = self._open() if self._fetcher is None else self._fetcher
        fetcher.shut_down()
        if fetcher.pid == os.getpid():
            fetcher.join()
            if self._end is not None:
                self._end()

    def shared_by(self, processes: int) -> FileStoreCachePool:
        """Returns a pool with one process's share of the limits, whose folder is inside that of this pool.

        Args:
            processes: Number of processes, at least 1.

        Returns:
            A pool for each process; its `close` removes the files of all of them. This pool itself for one process.

        Raises:
            ConfigError: This pool is closed.
            StorageError: The folder cannot be created.
        """
        if processes < 2:
            return self
        share = FileStoreCachePool(
            parent_cache_dir=self.parent_cache_dir,
            num_workers=self.num_workers,
            max_cache_count=self.max_count // processes,
            method=self.method,
        )
        share.max_bytes = self.max_bytes // processes
        self._open()
        assert self._folder is not None
        share._root = self._folder.make_root()
        share._owns_root = True
        return share

    @property
    def cached_bytes(self) -> int:
        """Number of bytes that this process has on disk."""
        return 0 if self._fetcher is None else self._fetcher.stored_bytes

    @property
    def cached_count(self) -> int:
        """Number of files that this process has on disk."""
        return 0 if self._fetcher is None else self._fetcher.stored_files

    def _open(self) -> Fetcher:
        """Returns the fetcher of this process.

        Raises:
            ConfigError: The pool is closed.
        """
        fetcher = self._fetcher
        if fetcher is None or fetcher.pid != os.getpid():
            folder = self._folder = ProcessFolder(self.parent_cache_dir, self._root, owned=self._owns_root)
            fetcher = self._fetcher = Fetcher(folder.path, self.num_workers, self.max_bytes, self.max_count)
            self._end = weakref.finalize(self, _end, fetcher, folder)
        self.assert_open()
        return fetcher

    def assert_open(self) -> None:
        """Raises ConfigError if this pool was closed in this process."""
        fetcher = self._fetcher
        if fetcher is not None and fetcher.pid == os.getpid() and fetcher.closed:
            raise ConfigError("The FileStoreCachePool was closed. Make a new one, or close it after the loader.")

    def __getstate__(self) -> dict[str, Any]:
        self._open()
        assert self._folder is not None
        local = {"_folder": None, "_fetcher": None, "_end": None, "_owns_root": False}
        return {**self.__dict__, **local, "_root": self._folder.root()}


class FileCacheLazy(Lazy[T]):
    """A reference to a file that a pool fetches in the background, or to a value that it keeps.

    Args:
        ds: The store; None for a value.
        fname: Name of the file.
        pool: The pool; kept alive by its references.
        entry: The file, or value.
        fetcher: Fetches it.
    """

    __slots__ = ("_entry", "_fetcher")

    def __init__(
        self, ds: FileStore[Any] | None, fname: str, pool: FileStoreCachePool, entry: CacheEntry, fetcher: Fetcher
    ) -> None:
        super().__init__(ds, fname, pool)
        self._entry: CacheEntry | None = entry
        self._fetcher = fetcher
        if ds is None:
            self._identity = ("to_cache", str(id(entry)), fname)

    def _fetch(self) -> tuple[Any, SourceInfo | None]:
        entry, self._entry = self._entry, None
        if entry is None:  # it failed before: try again, from the store
            if self.ds is None:
                raise lost_value(self.fname)
            return self.ds[self.fname]
        content, source = self._fetcher.take(entry)
        if self.ds is None or entry.decoded:
            return content, source
        assert source is not None
        return self.ds.decode_content(self.fname, content, source), source

    def __del__(self) -> None:
        entry = getattr(self, "_entry", None)
        if entry is not None:
            self._fetcher.drop(entry)


def _end(fetcher: Fetcher, folder: ProcessFolder) -> None:
    """Ends a pool in the process that opened it. Never waits, because the garbage collector may call it."""
    if folder.pid == os.getpid():
        fetcher.shut_down()
        folder.remove()


def check_cache_pool(pool: object) -> CachePool | None:
    """Returns the pool after checking it.

    Raises:
        ConfigError: It is not a pool, or it is closed.
    """
    if isinstance(pool, FileStoreCachePool):
        pool.assert_open()
    if pool is None or isinstance(pool, CachePool):
        return pool
    raise ConfigError(
        f"cache_pool={pool!r} is not a CachePool. Give FileStoreCachePool(...), NoCachePool(), or None for no cache."
    )


class ProcessFolder:
    """The folder of one process, inside the folder of the process that it works for, if there is one.

    Its owner removes a root folder, or the next owner of one in the same place if this one was killed.

    Args:
        parent: Where to create its own root folder; created if missing. Folders of dead processes in it are removed.
        root: Folder of the process that this one works for; None creates one in `parent`.
        owned: Whether to remove `root` too.
    """

    def __init__(self, parent: Path, root: Path | None, *, owned: bool = False) -> None:
        self.pid = os.getpid()
        self._owned_root = root if owned else None
        self._parent = parent
        self._root = root
        self._own: OwnedFolder | None = None
        self._path: Path | None = None
        self._removed = False
        # Threads ask for the folder at the same time, and the garbage collector may remove it while this thread creates
        # it.
        self._lock = threading.RLock()

    def root(self) -> Path:
        """Returns the folder in which other processes create theirs.

        Raises:
            StorageError: It cannot be created.
        """
        with self._lock:
            if self._root is None:
                remove_stale(self._parent, PREFIX)
                try:
                    self._own = OwnedFolder(self._parent, PREFIX)
                except OSError as error:
                    raise StorageError(
                        f"Cannot create a cache folder in {self._parent}: {error}. Give parent_cache_dir a writable "
                        "folder on a local disk."
                    ) from error
                self._root = self._own.path
            root = self._root
        self._check_removed(root)
        return root

    def path(self) -> Path:
        """Returns the folder for the files of this process.

        Raises:
            StorageError: It cannot be created.
        """
        with self._lock:
            if self._path is None:
                self._path = self._make(f"{self.pid}-")
            path = self._path
        self._check_removed(path)
        return path

    def _check_removed(self, path: Path) -> None:
        """Removes a folder that was created while `remove` ran. Called outside the lock, where it sees `_removed`."""
        if self._removed:
            self.remove()
            raise StorageError(f"The cache folder {path} was removed with its pool.")

    def make_root(self) -> Path:
        """Returns a new folder for a pool that has a share of the limits.

        Raises:
            StorageError: It cannot be created.
        """
        return self._make("share-")

    def _make(self, prefix: str) -> Path:
        root = self.root()
        try:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        except OSError as error:
            raise StorageError(
                f"Cannot create a cache folder in {root}: {error}. Closing a pool removes its folder: close it after "
                "the loader."
            ) from error

    def remove(self) -> None:
        """Removes the folder for good.

        Never waits, because the garbage collector may call this at any point. A thread that is creating the folder at
        this moment removes it itself.
        """
        self._removed = True
        if not self._lock.acquire(blocking=False):
            return
        try:
            for path in (self._path, self._owned_root):
                if path is not None:
                    shutil.rmtree(path, ignore_errors=True)
            if self._own is not None:
                self._own.remove()
        finally:
            self._lock.release()
