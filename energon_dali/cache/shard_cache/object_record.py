"""Which version of a remote object the blocks on disk belong to, and when that was last compared with the store."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from energon_dali.cache.shard_cache.block_file import OBJECTS, Block, BlockFolder
from energon_dali.cache.shard_cache.private_folder import PrivateFolder

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
        folder.replace(record_file(self.version.folder.shard), json.dumps(record).encode())


def read_record(folder: PrivateFolder, shard: bytes) -> ObjectRecord | None:
    """Returns the record of an object; None if there is none, or it is damaged.

    Args:
        folder: The folder of the cache.
        shard: Key of the object.

    Raises:
        OSError: It cannot be read.
    """
    record = folder.read_json(record_file(shard), _MAX_RECORD_BYTES)
    try:
        url, tag = record["url"], record["tag"]
        if isinstance(tag, str) and shard_key(url) == shard:
            return ObjectRecord(url, version_of(url, int(record["size"]), tag), float(record["compared"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        pass
    return None


def record_file(shard: bytes) -> str:
    """Returns the path of a record in the folder of the cache."""
    return f"{OBJECTS}/{shard.hex()}"


def shard_key(url: str) -> bytes:
    """Returns the 16 bytes by which a shard is known in the cache; the first 8 are the key of its dataset."""
    return _key(url.rpartition("/")[0]) + _key(url)


def version_of(url: str, size: int, tag: str) -> ObjectVersion:
    """Returns the version of an object with a size and a tag."""
    return ObjectVersion(BlockFolder(shard_key(url), _key(f"{size} {tag}")), size, tag)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
