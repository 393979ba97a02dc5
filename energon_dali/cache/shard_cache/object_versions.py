"""Which version of a remote object the blocks on disk belong to, and when that was last compared with the store."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from energon_dali.cache.shard_cache.block_file import OBJECTS, PAGE_BYTES, Block, BlockFolder
from energon_dali.cache.shard_cache.private_folder import PrivateFolder
from energon_dali.shards.storage import StoragePath

if TYPE_CHECKING:
    from energon_dali.cache.shard_cache.block_store import BlockStore

COMPARED_SECONDS = 3600.0
"""An object is compared with the store again after this time."""

_CLOCK_SECONDS = 5.0
_MAX_RECORD_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """A version of an object."""

    folder: BlockFolder
    """Of its blocks. The version there is the key of its size and tag."""
    size: int
    """In bytes."""
    tag: str
    """The store's own name of the version (ETag); "" if the store gives none."""

    def block(self, number: int, block_bytes: int) -> Block:
        """Returns a block.

        Args:
            number: Its number.
            block_bytes: Size of all but the last one.
        """
        return Block(self.folder, number, min(block_bytes, self.size - number * block_bytes))


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """What is known of an object."""

    url: str
    version: ObjectVersion
    compared: float
    """When the version was last compared with the store, in seconds since 1970."""

    def write(self, folder: PrivateFolder) -> None:
        """Writes the record.

        Raises:
            OSError: It cannot be written.
        """
        record = {"url": self.url, "size": self.version.size, "tag": self.version.tag, "compared": self.compared}
        folder.replace(_record_file(self.version.folder.shard), json.dumps(record).encode())


def read_record(folder: PrivateFolder, shard: bytes) -> ObjectRecord | None:
    """Returns the record of an object; None if there is none, or it is damaged.

    Args:
        folder: The folder of the cache.
        shard: Key of the object.

    Raises:
        OSError: It cannot be read.
    """
    record = folder.read_json(_record_file(shard), _MAX_RECORD_BYTES)
    try:
        url, tag = record["url"], record["tag"]
        if isinstance(tag, str) and _shard_key(url) == shard:
            return ObjectRecord(url, _version_of(url, int(record["size"]), tag), float(record["compared"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        pass
    return None


def _record_file(shard: bytes) -> str:
    """Returns the path of a record in the folder of the cache."""
    return f"{OBJECTS}/{shard.hex()}"


def _shard_key(url: str) -> bytes:
    """Returns the 16 bytes by which a shard is known in the cache; the first 8 are the key of its dataset."""
    return _key(url.rpartition("/")[0]) + _key(url)


def _version_of(url: str, size: int, tag: str) -> ObjectVersion:
    """Returns the version of an object with a size and a tag."""
    return ObjectVersion(BlockFolder(_shard_key(url), _key(f"{size} {tag}")), size, tag)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()


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
            version = _version_of(url, *path.identity())
            record = self._known[url] = ObjectRecord(url, version, began)
            self._suspects.discard(url)
            try:
                if self._blocks.folder.stat(_record_file(version.folder.shard)) is None:
                    self._blocks.add_bytes(PAGE_BYTES)
                record.write(self._blocks.folder)
                if recorded is not None and recorded.version != version:
                    self._blocks.remove_version(recorded.version.folder)
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
            return read_record(self._blocks.folder, _shard_key(url))
        except OSError as error:
            self._failed(error)
            return None
