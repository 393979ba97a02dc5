"""Folders for the files of caches, which do not outlive the processes that own them."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

from energon_dali.errors import StorageError
from energon_dali.shards.storage.owned_folder import OwnedFolder, remove_stale

PREFIX = "energon-dali-cache-"


class CacheFolder:
    """A folder that is removed when its owner lets it go, and by the next owner next to it if that was killed.

    Args:
        parent: Folder in which to make it; made if it is not there. Folders of dead processes in it are removed.

    Raises:
        StorageError: It cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        remove_stale(parent, PREFIX)
        try:
            self._folder = OwnedFolder(parent, PREFIX)
        except OSError as error:
            raise StorageError(
                f"No cache folder can be made in {parent}: {error}. Give parent_cache_dir a folder on a local disk "
                "that may be written to."
            ) from error
        self.path = self._folder.path

    def remove(self) -> None:
        """Removes the folder with everything in it; may be called again."""
        self._folder.remove()


class ProcessFolder:
    """The folder of one process: its own, or one inside that of the process that it works for.

    Args:
        parent: Where to make one of its own.
        root: Folder of the process that this one works for; None makes one.
        owned: Remove that folder too.
    """

    def __init__(self, parent: Path, root: Path | None, *, owned: bool = False) -> None:
        self.pid = os.getpid()
        self._owned_root = root if owned else None
        self._parent = parent
        self._root = root
        self._own: CacheFolder | None = None
        self._path: Path | None = None
        self._removed = False
        # Threads come for the folder together; the collector may remove it while this very thread makes it.
        self._lock = threading.RLock()

    def root(self) -> Path:
        """Returns the folder that other processes make theirs in.

        Raises:
            StorageError: It cannot be made.
        """
        with self._lock:
            if self._root is None:
                self._own = CacheFolder(self._parent)
                self._root = self._own.path
            root = self._root
        self._check_removed(root)
        return root

    def path(self) -> Path:
        """Returns the folder for the files of this process.

        Raises:
            StorageError: It cannot be made.
        """
        with self._lock:
            if self._path is None:
                self._path = self._make(f"{self.pid}-")
            path = self._path
        self._check_removed(path)
        return path

    def _check_removed(self, path: Path) -> None:
        """Removes what was made while `remove` was called; not inside the lock, where that would not be seen."""
        if self._removed:
            self.remove()
            raise StorageError(f"The cache folder {path} was removed with its pool.")

    def make_root(self) -> Path:
        """Returns a new folder for a pool that works with a share of the limits.

        Raises:
            StorageError: It cannot be made.
        """
        return self._make("share-")

    def _make(self, prefix: str) -> Path:
        root = self.root()
        try:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        except OSError as error:
            raise StorageError(
                f"No cache folder can be made in {root}: {error}. A pool that was closed takes its folder along: "
                "close it after the loader."
            ) from error

    def remove(self) -> None:
        """Removes the folder; there is no other afterwards.

        Never waits: the collector calls this in the middle of anything. A thread that makes the folder at this moment
        removes it itself.
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
