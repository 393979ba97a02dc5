"""What the cache has on record of a remote object: its URL, and the version that its blocks belong to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from energon_dali.cache.shard_cache.block_file import BlockName
from energon_dali.cache.shard_cache.block_listing import OBJECTS
from energon_dali.cache.shard_cache.private_folder import PrivateFolder

_MAX_RECORD_BYTES = 16 << 10


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

    @property
    def dataset(self) -> bytes:
        """8 bytes: key of the dataset."""
        return self.shard[:8]

    def block(self, number: int) -> BlockName:
        """Returns the name of a block."""
        return BlockName(self.shard, self.version, number)


def shard_key(url: str) -> bytes:
    """Returns the 16 bytes by which a shard is known in the cache; the first 8 are the key of its dataset."""
    return _key(url.rpartition("/")[0]) + _key(url)


def version_of(url: str, size: int, tag: str) -> ObjectVersion:
    """Returns the version of an object with a size and a tag."""
    return ObjectVersion(shard_key(url), _key(f"{size} {tag}"), size, tag)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()


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
        folder.replace(record_file(self.version.shard), json.dumps(record).encode())


def record_file(shard: bytes) -> str:
    """Returns the path of a record in the folder of the cache."""
    return f"{OBJECTS}/{shard.hex()}"


def read_record(folder: PrivateFolder, shard: bytes) -> ObjectRecord | None:
    """Returns the record of an object; None if there is none, or it is damaged.

    Args:
        folder: The folder of the cache.
        shard: Key of the object.

    Raises:
        OSError: It cannot be read.
    """
    content = folder.read(record_file(shard), _MAX_RECORD_BYTES)
    try:
        record = json.loads(content or b"")
        url, tag = record["url"], record["tag"]
        if isinstance(tag, str) and shard_key(url) == shard:
            return ObjectRecord(url, version_of(url, int(record["size"]), tag), float(record["compared"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        pass
    return None
