"""The existing index of a dataset that is prepared again: if its samples stay in place, so does its identity."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from energon_dali.errors import DatasetError
from energon_dali.shards.index.extent_file import ExtentFile, digest_of_counts
from energon_dali.shards.index.extent_index import EXTENTS_NAME, SQLITE_NAME, open_sqlite, read_uuid
from energon_dali.shards.index.extents import ShardExtents
from energon_dali.shards.index.sqlite_index import SqliteIndex
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import read_shard_counts
from energon_dali.shards.storage import StoragePath

_COPY = "known-extents.bin"
_LONGEST_UUID = 40
"""Bytes that an extent file reserves for it."""


class KnownIndex:
    """The existing index: `extents.bin`, or else `index.sqlite`, as long as it belongs to `index.uuid`.

    Shards are compared one by one as they are scanned, in the order of the new index.

    Args:
        root: Folder of the dataset.
        folder: Local folder, into which the index of a remote dataset is copied.

    Raises:
        StorageError: It cannot be read.
    """

    def __init__(self, root: StoragePath, folder: Path) -> None:
        self.uuid = ""
        """Its identity; "" if nothing says which samples it describes."""
        self._counts: Mapping[str, int] = {}
        self._extents: ExtentFile | None = None
        self._sqlite: SqliteIndex | None = None
        uuid = read_uuid(root)
        try:
            self._counts = read_shard_counts(root)
            self._extents = _extents(root, folder, uuid, self._counts)
            if self._extents is None:
                self._sqlite = open_sqlite(root / META / SQLITE_NAME)
        except DatasetError:
            return
        if uuid.isascii() and len(uuid) <= _LONGEST_UUID and not (self._extents is None and self._sqlite is None):
            self.uuid = uuid
        self._names = list(self._counts)

    def compare(self, number: int, shard: str, extents: ShardExtents) -> None:
        """Drops the identity if a shard of the new index differs from the old one.

        Args:
            number: Number of the shard.
            shard: Its name.
            extents: Its present content.

        Raises:
            StorageError: The old index cannot be read.
        """
        if self.uuid and not (
            number < len(self._names) and self._names[number] == shard and self._is_same(number, shard, extents)
        ):
            self.uuid = ""

    def identity(self, shard_counts: Mapping[str, int]) -> str:
        """Returns the identity if all shards are the same, else ""."""
        return self.uuid if list(shard_counts.items()) == list(self._counts.items()) else ""

    def close(self) -> None:
        """Closes its files."""
        for file in (self._extents, self._sqlite):
            if file is not None:
                file.close()

    def _is_same(self, number: int, shard: str, extents: ShardExtents) -> bool:
        try:
            if self._extents is not None:
                return _are_same(self._extents.shard(number), extents)
            assert self._sqlite is not None
            return _are_same(self._sqlite.shard(number, shard), extents)
        except DatasetError:
            return False


def _extents(root: StoragePath, folder: Path, uuid: str, counts: Mapping[str, int]) -> ExtentFile | None:
    path = root / META / EXTENTS_NAME
    try:
        if not root.is_local:  # every section is read, and each would be a request
            path.copy_to(folder / _COPY)
            path = StoragePath.of(folder / _COPY)
        file = ExtentFile(path)
    except (FileNotFoundError, DatasetError):
        return None
    if uuid and file.uuid == uuid and file.digest == digest_of_counts(counts):
        return file
    file.close()
    return None


class IndexIdentity:
    """Gives a new index its UUID: the given one, that of the known index if the samples are the same, or a new one.

    A new one is derived from the shards, the keys and positions of their samples, and the split, so that it does not
    depend on where and how often the same shards are prepared.

    Args:
        given: A UUID that the caller chose.
        known: The index that is replaced.
        parts: Shards of each part; None if the split stays as it is.
    """

    def __init__(self, given: str | None, known: KnownIndex | None, parts: Mapping[str, Sequence[str]] | None) -> None:
        self._given = given
        self._known = known
        self._digest = hashlib.blake2b(digest_size=16)
        if parts is not None:
            self._digest.update(json.dumps(list(parts.items())).encode())

    def add(self, number: int, shard: str, extents: ShardExtents) -> None:
        """Takes the next shard.

        Raises:
            StorageError: The known index cannot be read.
        """
        if self._known is not None:
            self._known.compare(number, shard, extents)
        for name in _LAYOUT:
            column = bytes(getattr(extents, name))
            self._digest.update(len(column).to_bytes(8, "little"))
            self._digest.update(column)
        self._digest.update(json.dumps([shard, extents.part_names]).encode())

    def uuid(self, shard_counts: Mapping[str, int]) -> str:
        """Returns the UUID, after all shards were added."""
        known = self._known.identity(shard_counts) if self._known is not None else ""
        return self._given or known or str(uuid.UUID(bytes=self._digest.digest(), version=5))


_SAME_COLUMNS = ("first_part", "key_start", "keys", "part_block", "part_size")
_LAYOUT = (*_SAME_COLUMNS, "part_name")


def _are_same(one: ShardExtents, other: ShardExtents) -> bool:
    """Returns whether keys, part names, offsets and sizes are equal; media metadata does not matter."""
    if any(bytes(getattr(one, column)) != bytes(getattr(other, column)) for column in _SAME_COLUMNS):
        return False
    names = [[extents.part_names[number] for number in extents.part_name] for extents in (one, other)]
    return names[0] == names[1]
