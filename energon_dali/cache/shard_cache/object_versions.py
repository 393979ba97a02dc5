"""Which version of a remote object the blocks on disk belong to, and when that was last compared with the store."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from energon_dali.cache.shard_cache.block_file import PAGE_BYTES, BlockName
from energon_dali.cache.shard_cache.block_listing import OBJECTS
from energon_dali.cache.shard_cache.block_store import BlockStore
from energon_dali.shards.storage import StoragePath

COMPARED_SECONDS = 3600.0
"""An object is compared with the store again after this time."""

_MAX_RECORD_BYTES = 16 << 10
_CLOCK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """A version of an object."""

    shard: bytes
    """16 bytes: key of its URL."""
    version: bytes
    """8 bytes: key of its size and tag."""
    size: int
    """In bytes."""
    tag: str
    """The store's own name of the version (ETag); "" if the store gives none."""

    def block(self, number: int) -> BlockName:
        """Returns the name of a block."""
        return BlockName(self.shard, self.version, number)


def shard_key(url: str) -> bytes:
    """Returns the 16 bytes by which a shard is known in the cache."""
    return hashlib.blake2b(url.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def version_of(url: str, size: int, tag: str) -> ObjectVersion:
    """Returns the version of an object with a size and a tag."""
    digest = hashlib.blake2b(f"{size} {tag}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return ObjectVersion(shard_key(url), digest, size, tag)


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
        self._known: dict[str, tuple[ObjectVersion, float]] = {}
        self._suspects: set[str] = set()
        """Objects that turned out to be another version than was recorded."""
        self._locks = [threading.Lock() for _ in range(64)]

    def known(self, url: str) -> ObjectVersion | None:
        """Returns the version of an object if it need not be compared; reads no file."""
        found = self._known.get(url)
        return found[0] if found is not None and self._is_recent(found[1]) else None

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
            name = f"{OBJECTS}/{shard_key(url).hex()}"
            recorded = self._read(name, url)
            if recorded is not None and self._is_recent(recorded[1]) and url not in self._suspects:
                self._known[url] = recorded
                return recorded[0]
            began = time.time()
            size, tag = path.identity()
            version = version_of(url, size, tag)
            self._known[url] = version, began
            self._suspects.discard(url)
            record = {"url": url, "size": size, "tag": tag, "compared": began}
            try:
                if self._blocks.folder.stat(name) is None:
                    self._blocks.add_bytes(PAGE_BYTES)
                self._blocks.folder.replace(name, json.dumps(record).encode())
                if recorded is not None and recorded[0] != version:
                    self._blocks.remove_version(recorded[0].block(0).folder)
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

    def _read(self, name: str, url: str) -> tuple[ObjectVersion, float] | None:
        try:
            content = self._blocks.folder.read(name, _MAX_RECORD_BYTES)
            record = json.loads(content or b"")
            if record["url"] == url and isinstance(record["tag"], str):
                return version_of(url, int(record["size"]), record["tag"]), float(record["compared"])
        except OSError as error:
            self._failed(error)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            pass
        return None
