"""Folders for the files of caches, which do not outlive the processes that own them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from pathlib import Path

from energon_dali.errors import StorageError

PREFIX = "energon-dali-cache-"
LOCK = "owner.lock"


class CacheFolder:
    """A folder that is removed when its owner lets it go, and by the next owner beside it if that was killed.

    The owner holds a lock on a file in it. The kernel lets go of the lock when the process ends, however it ends, so a
    folder whose lock is free belongs to nobody.

    Args:
        parent: Folder in which to make it; made if it is not there. Folders of dead processes in it are removed.

    Raises:
        StorageError: It cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_stale(parent)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            unlocked = self.path / "new.lock"
            self._lock = os.open(unlocked, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlocked.rename(self.path / LOCK)  # nobody ever sees it under this name without its lock
        except OSError as error:
            raise StorageError(
                f"No cache folder can be made in {parent}: {error}. Give parent_cache_dir a folder on a local disk "
                "that may be written to."
            ) from error

    def remove(self) -> None:
        """Removes the folder with everything in it; may be called again."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


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
            return self._root

    def path(self) -> Path:
        """Returns the folder for the files of this process.

        Raises:
            StorageError: It cannot be made.
        """
        with self._lock:
            if self._path is None:
                self._path = self._make(f"{self.pid}-")
            if self._removed:
                self.remove()
                raise StorageError(f"The cache folder {self._path} was removed with its pool.")
            return self._path

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
        """Removes the folder; there is no other afterwards."""
        with self._lock:
            self._removed = True
            for path in (self._path, self._owned_root):
                if path is not None:
                    shutil.rmtree(path, ignore_errors=True)
            if self._own is not None:
                self._own.remove()


def remove_stale(parent: Path) -> None:
    """Removes the folders in `parent` that this user's dead processes left."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink():
                _remove_if_stale(folder)


def _remove_if_stale(folder: Path) -> None:
    """Removes a folder whose lock nobody holds.

    Raises:
        OSError: Somebody holds it, or it has none (yet).
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
