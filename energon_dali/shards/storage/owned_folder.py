"""Temporary folders with a lock that shows whether their owner is alive, so that stale ones can be removed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from energon_dali.errors import StorageError

LOCK = "owner.lock"
NO_LOCK = "no-owner.lock"
CACHE_PREFIX = "energon-dali-cache-"
"""Start of the names of folders of caches."""
UNTOUCHED_SECONDS = 24 * 3600.0
"""A folder without a lock is stale if nothing in it was written for this long."""

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)


class OwnedFolder:
    """A folder that its owner removes; if the owner was killed, the next owner of such a folder removes it.

    The owner holds a lock on a file in it. The kernel releases the lock when the process ends, however it ends, so a
    folder whose lock is free has no owner.

    Args:
        parent: Folder in which to create it; created if it is missing.
        prefix: Start of its name.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        self._lock = -1
        self._removed = False
        while not self._make(parent, prefix):
            pass  # another process removed it as stale before it had its lock

    def _make(self, parent: Path, prefix: str) -> bool:
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        file = self.path / LOCK
        try:
            lock = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(file)):
                self._lock = lock
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError as error:
            if error.errno in _NO_LOCKS:
                os.close(lock)
                file.rename(self.path / NO_LOCK)
                return True
            os.close(lock)
            raise
        os.close(lock)
        return False

    def remove(self) -> None:
        """Removes the folder with everything in it; may be called again."""
        if not self._removed:
            self._removed = True
            _remove(self.path)
            if self._lock >= 0:
                os.close(self._lock)


class ProcessFolder:
    """The folder of one process, inside the folder of the process that it works for, if there is one.

    Its owner removes a root folder, or the next owner of one in the same place if this one was killed.

    Args:
        parent: Where to create its own root folder; created if missing. Folders of dead processes in it are removed.
        root: Folder of the process that this one works for; None creates one in `parent`.
        owned: Whether to remove `root` too.
    """

    def __init__(self, parent: Path, root: Path | None, *, owned: bool = False) -> None:
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
                remove_stale(self._parent, CACHE_PREFIX)
                try:
                    self._own = OwnedFolder(self._parent, CACHE_PREFIX)
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
                self._path = self._make(f"{os.getpid()}-")
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


def remove_stale(
    parent: Path, prefix: str, *, unlocked: bool = False, salvage: Callable[[Path], None] | None = None
) -> None:
    """Removes this user's folders in `parent` whose owners are gone.

    Args:
        parent: Folder that contains them.
        prefix: Start of their names.
        unlocked: Also remove those without a lock (from file systems without locks) in which nothing was written for
            a day.
        salvage: Called with each folder before it is removed.
    """
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                status = folder.lstat()
                if status.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink():
                    _remove_if_stale(folder, unlocked, salvage)


def _remove_if_stale(folder: Path, unlocked: bool, salvage: Callable[[Path], None] | None) -> None:
    """Removes a folder whose lock nobody holds.

    Raises:
        OSError: A process holds it, or the folder is not empty and has no lock.
    """
    with contextlib.suppress(OSError):
        folder.rmdir()  # it was empty; an owner that is just creating it will create another one
        return
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        newest = max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
        if not unlocked or time.time() - newest < UNTOUCHED_SECONDS:
            raise
        lock = -1
    try:
        if lock >= 0:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if salvage is not None:
            salvage(folder)
        _remove(folder)
    finally:
        if lock >= 0:
            os.close(lock)


def _remove(folder: Path) -> None:
    """Removes a folder, its lock last, so that a process killed meanwhile leaves a folder that others can remove."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != LOCK:
                os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)
