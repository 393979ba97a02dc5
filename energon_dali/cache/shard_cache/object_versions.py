"""Which version of a remote object the blocks on disk belong to, and when that was last compared with the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from energon_dali.cache.shard_cache.block_file import PAGE_BYTES
from energon_dali.cache.shard_cache.block_store import BlockStore
from energon_dali.cache.shard_cache.object_record import (
    ObjectRecord,
    ObjectVersion,
    read_record,
    record_file,
    shard_key,
    version_of,
)
from energon_dali.shards.storage import StoragePath

COMPARED_SECONDS = 3600.0
"""An object is compared with the store again after this time."""

_CLOCK_SECONDS = 5.0


class ObjectVersions:
    """The versions of the objects in a cache.

    A process asks the store for the size and the ETag of an object when it first reads the object, and then once an
    hour; not if another process of the node has asked since `compared_since`. If they differ from what is recorded, the
    blocks of the old version are removed.

    Args:
        blocks: The blocks.
        compared_since: Comparisons before this time are not trusted, in seconds since 1970: when the job began.
        failed: Called if the local disk fails; what is not recorded is asked for again by the next process.
    """

    def __init__(self, blocks: BlockStore, compared_since: float, failed: Callable[[OSError], None]) -> None:
        self._blocks = blocks
        self.compared_since = compared_since
        self._failed = failed
        self._known: dict[str, ObjectRecord] = {}
        self._suspects: set[str] = set()
        """Objects that turned out to be another version than was recorded."""
        self._locks = [threading.Lock() for _ in range(64)]

    def known(self, url: str) -> ObjectVersion | None:
        """Returns the version of an object if it need not be compared; reads no file."""
        found = self._known.get(url)
        return found.version if found is not None and self._is_recent(found.compared) else None

    def current(self, path: StoragePath) -> ObjectVersion:
        """Returns the version of an object, after asking the store if it is time to.

        Raises:
            FileNotFoundError: There is no such object.
            StorageError: The store does not answer.
        """
        url = path.url
        with self._locks[hash(url) % len(self._locks)]:
            known = self.known(url)
            if known is not None:
                return known
            recorded = self._read(url)
            if recorded is not None and self._is_recent(recorded.compared) and url not in self._suspects:
                self._known[url] = recorded
                return recorded.version
            began = time.time()
            version = version_of(url, *path.identity())
            record = self._known[url] = ObjectRecord(url, version, began)
            self._suspects.discard(url)
            try:
                if self._blocks.folder.stat(record_file(version.shard)) is None:
                    self._blocks.add_bytes(PAGE_BYTES)
                record.write(self._blocks.folder)
                if recorded is not None and recorded.version != version:
                    self._blocks.remove_version(recorded.version.block(0).folder)
            except OSError as error:
                self._failed(error)
            return version

    def distrust(self, url: str) -> None:
        """Makes the next reader of an object ask the store."""
        self._known.pop(url, None)
        self._suspects.add(url)

    def _is_recent(self, compared: float) -> bool:
        now = time.time()
        return max(self.compared_since, now - COMPARED_SECONDS) <= compared <= now + _CLOCK_SECONDS

    def _read(self, url: str) -> ObjectRecord | None:
        try:
            return read_record(self._blocks.folder, shard_key(url))
        except OSError as error:
            self._failed(error)
            return None
