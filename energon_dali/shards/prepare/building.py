"""Builds an index in a folder of its own and installs it in one step."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from energon_dali.errors import StorageError
from energon_dali.shards.meta.document import META
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import sync, sync_folder, writing
from energon_dali.shards.storage.owned_folder import OwnedFolder, remove_stale

PREFIX = ".energon-dali-prepare-"
_WRITERS = 16
"""Number of threads that write the indices next to the shards."""
_NEW, _OLD = "new-meta", "old-meta"

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)
"""Errors of file systems that cannot exchange two names: NFS, Lustre, and many that run in user space."""


@contextmanager
def building_folder(root: StoragePath, tmp_path: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yields a new local folder for unfinished files, and removes it afterwards.

    It is next to `.nv-meta` if possible, because the temporary folder of the system is often too small. Folders that
    killed processes left there are removed, and an installation that they had begun is completed.

    Args:
        root: Folder of the dataset.
        tmp_path: Folder in which to make the new one instead.

    Raises:
        StorageError: It cannot be made.
    """
    if root.is_local:
        tidy(root)
    with owned_folder(_parent(root) if tmp_path is None else StoragePath.of(tmp_path).local) as folder:
        yield folder


@contextmanager
def owned_folder(parent: Path | None) -> Iterator[Path]:
    """Yields a new folder in `parent` (None: the system's temporary folder), and removes it afterwards.

    Raises:
        StorageError: It cannot be made.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    try:
        folder = OwnedFolder(parent, PREFIX)
    except OSError as error:
        raise StorageError(
            f"No folder for the index can be made in {parent}: {error}. Give another one with tmp_path."
        ) from error
    try:
        yield folder.path
    finally:
        folder.remove()


def _meta(root: StoragePath) -> Path:
    """Returns the path of `.nv-meta` with links resolved."""
    return Path(os.path.realpath((root / META).local))


def _parent(root: StoragePath) -> Path | None:
    """Returns the folder in which to build: next to `.nv-meta`, or in it; None for a remote dataset."""
    if not root.is_local:
        return None
    meta = _meta(root)
    return meta.parent if os.access(meta.parent, os.W_OK) else meta


def tidy(root: StoragePath) -> None:
    """Removes what killed processes left; if one was killed between two renames, does the second rename.

    Args:
        root: Folder of a local dataset.
    """
    meta = _meta(root)

    def salvage(folder: Path) -> None:
        if (folder / _OLD).is_dir() and (folder / _NEW).is_dir() and not meta.exists():
            with suppress(OSError):
                os.rename(folder / _NEW, meta)

    for parent in (meta.parent, meta):
        remove_stale(parent, PREFIX, unlocked=True, salvage=salvage)


def install(
    root: StoragePath, folder: Path, new: Mapping[str, Path], gone: Iterable[str], next_to_shards: Mapping[str, Path]
) -> None:
    """Installs new files in `.nv-meta`. On local disks readers find either all old files or all new ones.

    On object stores, and if `.nv-meta` is a mount point, the files are replaced one by one, in the given order.

    Args:
        root: Folder of the dataset.
        folder: Building folder.
        new: Local files by their names in `.nv-meta`; they are moved.
        gone: Names of files to remove.
        next_to_shards: Local files by their paths below the dataset; those that differ are installed first.

    Raises:
        StorageError: Something cannot be written.
    """
    with ThreadPoolExecutor(_WRITERS) as pool:
        for done in [pool.submit(_put, root / name, file) for name, file in next_to_shards.items()]:
            done.result()
    if root.is_local and os.access(_meta(root).parent, os.W_OK):
        _install_at_once(root, folder, new, gone)
    else:
        _install_one_by_one(root, new, gone)


def _put(target: StoragePath, file: Path) -> None:
    """Moves or uploads a file unless the target already has this content."""
    if target.read_if_there() == file.read_bytes():
        return
    if target.is_local:
        with suppress(OSError):  # another disk; the slower way below reports any other fault
            sync(file)
            os.replace(file, target.local)
            return
    target.write_file(file)


def _install_one_by_one(root: StoragePath, new: Mapping[str, Path], gone: Iterable[str]) -> None:
    for name, file in new.items():
        (root / META / name).write_file(file)
    for name in gone:
        (root / META / name).remove()


def _install_at_once(root: StoragePath, folder: Path, new: Mapping[str, Path], gone: Iterable[str]) -> None:
    meta = _meta(root)
    with ExitStack() as stack:
        if folder.parent != meta.parent:
            folder = stack.enter_context(owned_folder(meta.parent))
        ready = folder / _NEW
        with writing(meta):
            ready.mkdir()
            for name, file in new.items():
                shutil.move(file, ready / name)
                sync(ready / name)
            if meta.is_dir():
                _keep(meta, ready, {*new, *gone})
                shutil.copymode(meta, ready)
            sync_folder(ready)
            is_done = _swap(ready, meta, folder / _OLD)
            sync_folder(meta.parent)
        if not is_done:
            _install_one_by_one(root, {name: ready / name for name in new}, gone)


def _keep(old: Path, new: Path, replaced: set[str]) -> None:
    """Keeps what is not replaced: the configuration of the dataset, other splits, files of other programs."""
    for entry in os.scandir(old):
        if entry.name in replaced or entry.name.startswith(PREFIX):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.copytree(entry.path, new / entry.name, symlinks=True, copy_function=_link)
        else:
            _link(entry.path, str(new / entry.name))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # file systems without hard links
        shutil.copy2(source, target, follow_symlinks=False)


def _swap(new: Path, old: Path, aside: Path) -> bool:
    """Replaces the folder `old` by `new`; returns whether it could: a mount point cannot be replaced."""
    try:
        if not old.exists():
            os.rename(new, old)
        elif not _exchange(new, old):
            os.rename(old, aside)
            try:
                os.rename(new, old)
            except OSError:
                os.rename(aside, old)
                raise
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        return False
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two names in one step; returns whether the system supports that."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))
