"""The cache as one process uses it. If the local disk fails, shards are read without the cache."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from energon_dali.cache.shard_cache.block_store import BlockStore, Claim
from energon_dali.cache.shard_cache.object_versions import ObjectVersion, ObjectVersions
from energon_dali.cache.shard_cache.private_folder import PrivateFolder
from energon_dali.errors import ConfigError
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.forks import drop_in_child

BLOCK_BYTES = 4 << 20
"""Size of a block where the cache holds many of them."""
SMALLEST_BLOCK_BYTES = 64 << 10
LARGEST_BLOCK_BYTES = 64 << 20
OFF_SECONDS = 60.0
"""After the local disk failed, it is left alone for this long."""

_FORMAT = "format.json"
_BLOCKS_PER_CACHE = 64
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)

_log = logging.getLogger(__name__)
T = TypeVar("T")


class NodeCache:
    """One process's view of the cache in a folder.

    Nothing here raises an error of the local disk: it is logged once, and shards are read without the cache for a
    while.

    Args:
        parent: Folder that holds the cache's own folder.
        max_bytes: Most bytes on disk, of all processes together.
        block_bytes: Size of a block in a new cache; None chooses it.
        job: 8 bytes: key of the job of this process.
        compared_since: When the job began, in seconds since 1970.
    """

    def __init__(
        self, parent: Path, max_bytes: int, block_bytes: int | None, job: bytes, compared_since: float
    ) -> None:
        self._parent = parent
        self._max_bytes = max_bytes
        self._wanted_block_bytes = block_bytes
        self._job = job
        self._warned = False
        self._off_until = 0.0
        self._full_until = 0.0
        self._begin()
        self.block_bytes = block_bytes or BLOCK_BYTES
        self._compared_since = compared_since
        drop_in_child(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._blocks: BlockStore | None = None
        self._versions: ObjectVersions | None = None
        self._end: weakref.finalize[..., NodeCache] | None = None

    def after_fork(self) -> None:
        """Closes the parent's files in a forked child, which opens its own when it needs them."""
        end = self._end
        self._begin()
        if end is not None:
            end()

    # --- the folder ------------------------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """Whether the local disk works, as far as is known."""
        return time.monotonic() >= self._off_until and self._open() is not None

    def _open(self) -> BlockStore | None:
        if self._blocks is None and time.monotonic() >= self._off_until:
            with self._lock:
                if self._blocks is None:
                    try:
                        self._open_folder()
                    except (OSError, ConfigError) as error:
                        self.failed(error)
        return self._blocks

    def _open_folder(self) -> None:
        folder = PrivateFolder(self._parent, folder_name())
        try:
            self.block_bytes = self._agree(folder)
            blocks = BlockStore(folder, self._max_bytes, self._job)
        except BaseException:
            folder.close()
            raise
        self._versions = ObjectVersions(blocks, self._compared_since, self.failed)
        self._blocks = blocks
        self._end = weakref.finalize(self, _close, blocks)
        self._end.atexit = False

    def _agree(self, folder: PrivateFolder) -> int:
        """Returns the size of a block in this folder, which the first process decides."""
        for _ in range(2):
            content = folder.read_json(_FORMAT, 1000)
            found = content.get("block_bytes") if isinstance(content, dict) else None
            if isinstance(found, int) and SMALLEST_BLOCK_BYTES <= found <= LARGEST_BLOCK_BYTES:
                if self._wanted_block_bytes not in (None, found):
                    _log.warning(
                        "The shard cache in %s has blocks of %d bytes, and keeps them: block_bytes=%d is not used. "
                        "Remove the folder to change it.",
                        folder.path,
                        found,
                        self._wanted_block_bytes,
                    )
                return found
            size = self._wanted_block_bytes or default_block_bytes(self._max_bytes)
            folder.replace(_FORMAT, json.dumps({"block_bytes": size}).encode())
        return size

    def failed(self, error: Exception) -> None:
        """Notes that the local disk failed, and warns once."""
        now = time.monotonic()
        if isinstance(error, OSError) and error.errno in _FULL and self._blocks is not None:
            self._full_until = now + OFF_SECONDS
            what = "Nothing is added to it for now"
        else:
            self._off_until = now + OFF_SECONDS
            what = "Shards are read without it for now"
        if not self._warned:
            self._warned = True
            _log.warning("The shard cache in %s failed: %s. %s; this is logged once.", self._parent, error, what)

    def _try(self, call: Callable[[BlockStore], T], default: T) -> T:
        if time.monotonic() < self._off_until:
            return default
        blocks = self._open()
        if blocks is None:
            return default
        try:
            return call(blocks)
        except OSError as error:
            self.failed(error)
            return default

    def compare_since(self, began: float) -> None:
        """Makes objects be compared with their store again if that was last done before a job began."""
        self._compared_since = max(self._compared_since, began)
        if self._versions is not None:
            self._versions.compared_since = self._compared_since

    # --- blocks ----------------------------------------------------------------------------------------------------

    def version(self, path: StoragePath) -> ObjectVersion | None:
        """Returns the version of an object; None if the cache is not usable.

        Raises:
            FileNotFoundError: There is no such object.
            StorageError: The store does not answer.
        """
        if time.monotonic() < self._off_until or self._open() is None:
            return None
        assert self._versions is not None
        version = self._versions.known(path.url) or self._versions.current(path)
        self._try(lambda blocks: blocks.jobs.note(version.folder.dataset), None)
        return version

    def distrust(self, path: StoragePath) -> None:
        """Makes the next reader of an object ask the store for its version."""
        if self._versions is not None:
            self._versions.distrust(path.url)

    def read(self, version: ObjectVersion, number: int, start: int, stop: int) -> bytes | None:
        """Returns what a block holds of the bytes start ... stop - 1 of its object; None if it is not on disk."""
        origin, block = number * self.block_bytes, version.block(number, self.block_bytes)
        low, high = max(0, start - origin), min(block.size, stop - origin)
        return self._try(lambda blocks: blocks.read(block, low, high), None)

    def claim(self, version: ObjectVersion, number: int) -> Claim | None:
        """Returns the right to fetch a block; None if another one fetches it, or the cache is not usable."""
        return self._try(lambda blocks: blocks.claim(version.block(number, self.block_bytes)), None)

    def admit(self, claim: Claim) -> bool:
        """Makes room for a claimed block; returns False if it is not kept."""
        if time.monotonic() < self._full_until:
            return False
        return self._try(lambda blocks: blocks.admit(claim), False)

    def commit(self, claim: Claim, content: memoryview) -> None:
        """Stores an admitted block, if the disk has room."""
        assert self._blocks is not None
        try:
            self._blocks.commit(claim, content)
        except OSError as error:
            self.failed(error)

    def release(self, claim: Claim) -> None:
        """Ends a claim without storing the block."""
        assert self._blocks is not None
        try:
            self._blocks.abandon(claim)
        except OSError as error:
            self.failed(error)

    def wait(self, version: ObjectVersion, number: int, seconds: float) -> bool:
        """Waits until nobody fetches a block; returns False if somebody still does when the time is over."""
        return self._try(lambda blocks: blocks.wait(version.block(number, self.block_bytes), seconds), False)

    def total_bytes(self) -> int:
        """Returns how many bytes the cache has on disk, as its ledger says."""
        return self._try(lambda blocks: blocks.total_bytes(), 0)


def _close(blocks: BlockStore) -> None:
    blocks.close()
    blocks.folder.close()


def folder_name() -> str:
    """Returns the name of this user's cache in the folder that the user gave."""
    return f"energon-dali-shard-cache-{os.geteuid()}"


def default_block_bytes(max_bytes: int) -> int:
    """Returns the size of a block for a cache of a size: 4 MiB, less where that would be few blocks."""
    size = BLOCK_BYTES
    while size > SMALLEST_BLOCK_BYTES and size * _BLOCKS_PER_CACHE > max_bytes:
        size //= 2
    return size
