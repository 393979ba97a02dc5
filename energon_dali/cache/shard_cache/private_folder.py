"""A folder that only this user can read and write, reached through its descriptor."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from energon_dali.errors import ConfigError

_LONGEST_PAUSE_SECONDS = 0.01


class PrivateFolder:
    """A folder of this user with mode 0700; everything in it is reached through a descriptor of the folder.

    No symbolic link is followed inside `parent`, so that nobody who can write there can make this process read or write
    elsewhere.

    Args:
        parent: Where the folder is; created with mode 0700 if it is missing.
        name: Name of the folder.

    Raises:
        ConfigError: The folder belongs to another user, or is not a folder.
        OSError: It cannot be created or opened.
    """

    def __init__(self, parent: Path, name: str) -> None:
        self.path = parent / name
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        try:
            self.descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise ConfigError(
                    f"{self.path} is not a folder, but a link or a file. Give the shard cache another path."
                ) from error
            if isinstance(error, PermissionError):
                _refuse_strangers(self.path, os.lstat(self.path))
            raise
        try:
            status = os.fstat(self.descriptor)
            _refuse_strangers(self.path, status)
            if stat.S_IMODE(status.st_mode) != 0o700:
                os.fchmod(self.descriptor, 0o700)
        except BaseException:
            os.close(self.descriptor)
            raise

    def open(self, name: str, flags: int) -> int:
        """Returns a descriptor of a file in the folder.

        Args:
            name: Relative path.
            flags: As for `os.open`; files are created with mode 0600, and links are not followed.

        Raises:
            OSError: It cannot be opened.
        """
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor)

    def make(self, name: str) -> None:
        """Creates a folder inside, unless it exists.

        Raises:
            OSError: It cannot be created.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.descriptor)

    def rename(self, name: str, new: str) -> None:
        """Renames a file, over another one if there is one.

        Raises:
            OSError: It cannot be renamed.
        """
        os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> bool:
        """Removes a file; returns whether it was there.

        Raises:
            OSError: It cannot be removed.
        """
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return False
        return True

    def stat(self, name: str) -> os.stat_result | None:
        """Returns the status of a file, None if it is not there.

        Raises:
            OSError: It cannot be read.
        """
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def list(self, name: str = ".") -> list[str]:
        """Returns the names in a folder inside; none if it is not there.

        Raises:
            OSError: It cannot be listed.
        """
        try:
            folder = self.open(name, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return []
        try:
            return os.listdir(folder)
        finally:
            os.close(folder)

    def remove_folder(self, name: str) -> None:
        """Removes a folder inside if it is empty."""
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=self.descriptor)

    def read(self, name: str, most: int) -> bytes | None:
        """Returns the content of a file of at most `most` bytes; None if it is missing or larger.

        Raises:
            OSError: It cannot be read.
        """
        try:
            descriptor = self.open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            content = file.read(most + 1)
        return content if len(content) <= most else None

    def read_json(self, name: str, most: int) -> Any:
        """Returns the value in a file of at most `most` bytes; None if it is missing, larger or damaged.

        Raises:
            OSError: It cannot be read.
        """
        try:
            return json.loads(self.read(name, most) or b"")
        except (ValueError, RecursionError):
            return None

    def replace(self, name: str, content: bytes) -> None:
        """Writes a file; readers see the old content or the new, never a part.

        Raises:
            OSError: It cannot be written.
        """
        temporary = f"{name}.{os.getpid()}-{threading.get_ident()}.tmp"
        try:
            descriptor = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            with open(descriptor, "wb") as file:
                file.write(content)
            self.rename(temporary, name)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.descriptor)


def _refuse_strangers(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} belongs to the user with number {status.st_uid}, and this process runs as {os.geteuid()}. Remove "
            "it, or give the shard cache another path."
        )


class FolderLock:
    """A lock of all threads and processes, on a file of a folder. The kernel releases it if its owner dies.

    Args:
        folder: The folder.
        name: Name of the file.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, folder: PrivateFolder, name: str) -> None:
        self.descriptor = folder.open(name, os.O_RDWR | os.O_CREAT)
        self._threads = threading.Lock()

    @contextlib.contextmanager
    def held(self, patience_seconds: float) -> Iterator[bool]:
        """Context manager that holds the lock; yields False if others held it for longer than a time.

        Args:
            patience_seconds: That time.

        Raises:
            OSError: The file system has no locks.
        """
        end = time.monotonic() + patience_seconds
        if not self._threads.acquire(timeout=patience_seconds):
            yield False
            return
        try:
            pause = 0.0002
            while True:
                try:
                    fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        yield False
                        return
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            try:
                yield True
            finally:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Closes the file."""
        os.close(self.descriptor)
