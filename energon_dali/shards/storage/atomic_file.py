"""Writes files atomically: readers, even after a crash, find either the old content or the new one."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from energon_dali.errors import StorageError

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF)
"""Errors of file systems that cannot sync folders, and of folders that may be written but not listed."""


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields the path of a new temporary file; when the block ends, that file replaces `path`.

    The content is synced to the disk before the rename, so that a crash leaves either the old file or the new one. If
    the block fails, the temporary file is removed and the old file stays. Links are followed. Devices and pipes are
    written directly. A missing folder is created.

    Args:
        path: The file to write.

    Raises:
        StorageError: It cannot be written, because of a full disk, a limit on file sizes or a missing permission.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with writing(path):
            yield target
        return
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with writing(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, temporary)
            sync(temporary)
            os.replace(temporary, target)
            sync_folder(target.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Replaces the content of a file, as `atomic_file` does.

    Args:
        path: The file to write.
        content: Its new content.

    Raises:
        StorageError: It cannot be written.
    """
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def writing(path: object) -> Iterator[None]:
    """Context manager that turns an OSError while writing a file into a StorageError that says what to do.

    Args:
        path: The file, for the message.

    Raises:
        StorageError: The block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"Could not write {path}: {write_failure(error)}") from error


def write_failure(error: OSError) -> str:
    """Returns why a file could not be written, and what to do about it."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{reason}. Free some space on that disk, or write to another one."
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit == resource.RLIM_INFINITY:
            return f"{reason}. The file system does not support files of this size: write to another one."
        return f"{reason}. This process may write files of up to {limit} bytes: raise the limit with `ulimit -f`."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{reason}. Check that you may write to that folder, or write to another one."
    return f"{reason}. Check that the folder exists, that you may write to it, and that the disk is not full."


def sync(path: Path) -> None:
    """Waits until the content of a file is on the disk.

    Raises:
        OSError: It cannot be written.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk, if the file system supports that.

    Raises:
        OSError: They cannot be written.
    """
    try:
        sync(path)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
