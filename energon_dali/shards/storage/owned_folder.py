"""Temporary folders that know whether their owner is alive, so that those of killed processes can be removed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LOCK = "owner.lock"
NO_LOCK = "no-owner.lock"
UNTOUCHED_SECONDS = 24 * 3600.0
"""A folder without a lock counts as stale if nothing in it was written for this long."""

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)


class OwnedFolder:
    """A folder that is removed when its owner lets it go, or by the next owner next to it if that was killed.

    The owner holds a lock on a file in it. The kernel lets go of the lock when the process ends, however it ends, so a
    folder whose lock is free belongs to nobody.

    Args:
        parent: Folder in which to make it; created if it is missing.
        prefix: How its name begins.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        self._lock = -1
        self._removed = False
        while not self._make(parent, prefix):
            pass  # another process took it for that of a dead one before it had its lock

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


def remove_stale(
    parent: Path, prefix: str, *, unlocked: bool = False, salvage: Callable[[Path], None] | None = None
) -> None:
    """Removes this user's folders in `parent` whose owners are gone.

    Args:
        parent: Where they are.
        prefix: How their names begin.
        unlocked: Also those without a lock in which nothing was written for a day: from file systems without locks.
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
        OSError: Somebody holds it, or the folder is not empty and has none.
    """
    with contextlib.suppress(OSError):
        folder.rmdir()  # nothing was ever in it; an owner that is just making it makes another one
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
    """Removes a folder, and its lock last: whoever is killed meanwhile leaves what the next one can remove."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != LOCK:
                os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)
