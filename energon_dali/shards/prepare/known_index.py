"""The existing index of a dataset that is prepared again: if its samples stay in place, so does its identity."""

from __future__ import annotations

from collections.abc import Mapping

from energon_dali.errors import DatasetError
from energon_dali.shards.index.extent_file import ExtentFile, digest_of_counts
from energon_dali.shards.index.extent_index import EXTENTS_NAME, SQLITE_NAME, open_sqlite, read_uuid
from energon_dali.shards.index.extents import ShardExtents
from energon_dali.shards.index.sqlite_index import SqliteIndex
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import read_shard_counts
from energon_dali.shards.storage import StoragePath

_LONGEST_UUID = 40
"""Bytes that an extent file reserves for it."""


class KnownIndex:
    """The existing index: `extents.bin`, or else `index.sqlite`, as long as it belongs to `index.uuid`.

    Shards are compared one by one as they are scanned, in the order of the new index.

    Args:
        root: Folder of the dataset.

    Raises:
        StorageError: It cannot be read.
    """

    def __init__(self, root: StoragePath) -> None:
        self.uuid = ""
        """Its identity; "" if nothing says which samples it describes."""
        self._counts: Mapping[str, int] = {}
        self._extents: ExtentFile | None = None
        self._sqlite: SqliteIndex | None = None
        uuid = read_uuid(root)
        try:
            self._counts = read_shard_counts(root)
            self._extents = _extents(root, uuid, self._counts)
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


def _extents(root: StoragePath, uuid: str, counts: Mapping[str, int]) -> ExtentFile | None:
    try:
        file = ExtentFile(root / META / EXTENTS_NAME)
    except (FileNotFoundError, DatasetError):
        return None
    if uuid and file.uuid == uuid and file.digest == digest_of_counts(counts):
        return file
    file.close()
    return None


def _are_same(one: ShardExtents, other: ShardExtents) -> bool:
    """Returns whether keys, part names, offsets and sizes are equal; media metadata does not matter."""
    columns = ("first_part", "key_start", "keys", "part_block", "part_size")
    if any(bytes(getattr(one, column)) != bytes(getattr(other, column)) for column in columns):
        return False
    names = [[extents.part_names[number] for number in extents.part_name] for extents in (one, other)]
    return names[0] == names[1]
