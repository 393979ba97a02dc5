"""A cache of shards on the node: blocks of remote shards on local disk, which jobs fill as they read.

The cache as the user configures it is here.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from energon_dali.cache.shard_cache.cached_reader import CachedReader
from energon_dali.cache.shard_cache.eviction import job_key
from energon_dali.cache.shard_cache.node_cache import (
    LARGEST_BLOCK_BYTES,
    SMALLEST_BLOCK_BYTES,
    NodeCache,
    folder_name,
)
from energon_dali.cache.shard_cache.private_folder import PrivateFolder
from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.shards.documents.content import parse_bytes, show_bytes
from energon_dali.shards.storage import StoragePath

if TYPE_CHECKING:
    from energon_dali.shards.storage.protocols import RangeReader

VARIABLE = "ENERGON_DALI_SHARD_CACHE"
"""Environment variable: PATH:MAX_BYTES."""

_caches: WeakValueDictionary[tuple[str, int], NodeCache] = WeakValueDictionary()
"""Those in use, by folder and size."""

_lock = threading.Lock()


@explain_call
class ShardCache:
    """Keeps shards of remote datasets on local disk, for all processes of a node.

    Shards are kept in blocks of a few MiB. All loaders, workers and ranks of a user on a node that name the same folder
    share the blocks; any of them may be killed at any moment. What is read is stored until the cache is full. Then what
    is there stays while its job runs: a new block is kept only in place of one of a finished job, of an object that has
    changed, or, where several jobs share the cache, of a job that holds more than its share.

    Blocks are checked when they are read; a damaged one is fetched again. The size and the ETag of an object are
    compared with those in the store when a job first reads it, and once an hour. If the local disk is full or fails,
    shards are read without the cache.

    Args:
        path: Folder on a local disk. The cache creates its own folder inside, which only this user can read.
        max_bytes: Most bytes on disk, of all processes together: a number, or text such as "500GB" or "1TiB". Cost: as
            much disk.
        block_bytes: Size of a block, 64 KiB to 64 MiB; None is 4 MiB, less for small caches. An existing cache keeps
            the size that it has. Cost: larger blocks fetch more than scattered reads want.
        cache_local: Also cache shards with local paths, such as those on NFS or Lustre.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int | str,
        block_bytes: int | str | None = None,
        cache_local: bool = False,
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigError(f"ShardCache(path={path!r}) is not a path: give a folder on a local disk.")
        if not os.fspath(path):
            raise ConfigError("ShardCache(path='') is invalid: give a folder on a local disk.")
        if "://" in os.fspath(path):
            raise ConfigError(f"ShardCache(path={os.fspath(path)!r}) is a URL: give a folder on a local disk.")
        self.path = Path(path).expanduser().absolute()
        self.max_bytes = parse_bytes(max_bytes, "max_bytes")
        self.block_bytes = None if block_bytes is None else parse_bytes(block_bytes, "block_bytes")
        if self.block_bytes is not None and not SMALLEST_BLOCK_BYTES <= self.block_bytes <= LARGEST_BLOCK_BYTES:
            raise ConfigError(f"block_bytes={block_bytes!r} is out of range: give 64 KiB to 64 MiB.")
        self.cache_local = bool(cache_local)
        self._created = time.time()
        self._job = job_key()
        self._node_cache: NodeCache | None = None
        """This process's view of the folder."""

    @classmethod
    def from_environment(cls) -> ShardCache | None:
        """Returns the cache that ENERGON_DALI_SHARD_CACHE=PATH:MAX_BYTES describes; None if it is not set, or empty.

        Raises:
            ConfigError: The value is wrong.
        """
        value = os.environ.get(VARIABLE, "")
        if not value:
            return None
        path, separator, size = value.rpartition(":")
        try:
            if not separator or not path:
                raise ConfigError("it needs a folder, a colon and a size.")
            return cls(path, max_bytes=size)
        except ConfigError as error:
            raise ConfigError(
                f"{VARIABLE}={value!r} is wrong: {error} Set it to PATH:MAX_BYTES, such as /scratch/shards:500GB."
            ) from error

    def open(self, path: StoragePath, size: int | None = None) -> RangeReader:
        """Opens a shard for reading through the cache.

        Args:
            path: The shard.
            size: Its size in bytes, if it is known; then no request is sent before the first read.

        Raises:
            FileNotFoundError: There is no such object.
            StorageError: The store does not answer.
        """
        if path.is_local and not self.cache_local:
            return path.open(size)
        return CachedReader(self._node(), path, size)

    def check(self) -> None:
        """Raises ConfigError if it belongs to another user or is not a folder. A failing disk is not an error."""
        try:
            PrivateFolder(self.path, folder_name()).close()
        except OSError:
            return  # the first process that reads warns

    def _node(self) -> NodeCache:
        """Returns this process's view of the folder, the same for all loaders."""
        if self._node_cache is not None:
            return self._node_cache
        key = str(self.path), self.max_bytes
        with _lock:
            node = _caches.get(key)
            if node is None:
                node = NodeCache(self.path, self.max_bytes, self.block_bytes, self._job, self._created)
                _caches[key] = node
        node.compare_since(self._created)
        self._node_cache = node
        return node

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_node_cache": None}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardCache) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash((self.path, self.max_bytes))

    def __repr__(self) -> str:
        return f"ShardCache({str(self.path)!r}, max_bytes={self.max_bytes}) of {show_bytes(self.max_bytes)}"


def check_shard_cache(cache: object) -> ShardCache | None:
    """Returns the cache that the option `shard_cache` of a loader means.

    Args:
        cache: A ShardCache, None for none, or "auto" for that of the environment variable.

    Raises:
        ConfigError: It is something else, the variable is wrong, or the folder belongs to another user.
    """
    if cache == "auto":
        cache = ShardCache.from_environment()
    if cache is None:
        return None
    if not isinstance(cache, ShardCache):
        raise ConfigError(
            f"shard_cache={cache!r} is not a ShardCache. Give ShardCache(path, max_bytes=...), None for no cache, or "
            f'"auto" for the one that {VARIABLE} describes.'
        )
    cache.check()
    return cache


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
