"""Folders for the files of caches, removed with the processes that own them."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

from energon_dali.errors import StorageError
from energon_dali.shards.storage.owned_folder import OwnedFolder, remove_stale

PREFIX = "energon-dali-cache-"


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
