"""The UUID of an index: if the samples of a dataset that is prepared again stay in place, so does its identity."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_dali.errors import DatasetError
from energon_dali.shards.index.extent_file import ExtentFile, digest_of_counts
from energon_dali.shards.index.extent_index import EXTENTS_NAME, SQLITE_NAME, open_sqlite, read_uuid
from energon_dali.shards.index.extents import ShardExtents
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import read_shard_counts
from energon_dali.shards.storage import StoragePath

_COPY = "known-extents.bin"
_LONGEST_UUID = 40
"""Bytes that an extent file reserves for it."""
_LAYOUT = ("first_part", "key_start", "keys", "part_block", "part_size", "part_name")
"""Columns that say which samples are where; media metadata does not matter."""


@dataclass(eq=False)
class IndexIdentity:
    """Gives a new index its UUID: the given one, that of the existing index if the samples are the same, or a new one.

    A new one is derived from the shards, the keys and positions of their samples, and the split, so that it does not
    depend on where and how often the same shards are prepared.
    """

    root: StoragePath
    """Folder of the dataset."""
    folder: Path
    """Local folder, into which the index of a remote dataset is copied."""
    given: str | None
    """A UUID that the caller chose."""
    parts: Mapping[str, Sequence[str]] | None
    """Shards of each part; None if the split stays as it is."""
    may_stay: bool
    """Whether the UUID of the existing index may be kept."""

    def __post_init__(self) -> None:
        self._layout = self._begin()

    def add(self, shard: str, extents: ShardExtents) -> None:
        """Takes the next shard."""
        add_layout(self._layout, shard, extents)

    def uuid(self, shard_counts: Mapping[str, int]) -> str:
        """Returns the UUID, after all shards were added.

        Raises:
            StorageError: The existing index cannot be read.
        """
        known = self._known(shard_counts) if self.may_stay and not self.given else ""
        return self.given or known or str(uuid.UUID(bytes=self._layout.digest(), version=5))

    def _begin(self) -> Any:
        layout = hashlib.blake2b(digest_size=16)
        if self.parts is not None:
            layout.update(json.dumps(list(self.parts.items())).encode())
        return layout

    def _known(self, shard_counts: Mapping[str, int]) -> str:
        """Returns the UUID of the existing index; "" if nothing says that it is about the same samples."""
        known = read_uuid(self.root)
        if not known.isascii() or len(known) > _LONGEST_UUID:
            return ""
        layout = self._begin()
        try:
            if list(read_shard_counts(self.root).items()) != list(shard_counts.items()):
                return ""
            for shard, extents in zip(shard_counts, self._known_extents(known, shard_counts), strict=False):
                add_layout(layout, shard, extents)
        except DatasetError:
            return ""
        return known if layout.digest() == self._layout.digest() else ""

    def _known_extents(self, known: str, shard_counts: Mapping[str, int]) -> Iterator[ShardExtents]:
        """Yields those of `extents.bin`, as long as it belongs to `index.uuid`, or else of `index.sqlite`."""
        path = self.root / META / EXTENTS_NAME
        try:
            if not self.root.is_local:  # every section is read, and each would be a request
                path.copy_to(self.folder / _COPY)
                path = StoragePath.of(self.folder / _COPY)
            file = ExtentFile(path)
        except (FileNotFoundError, DatasetError):
            pass
        else:
            with closing(file):
                if known and file.uuid == known and file.digest == digest_of_counts(shard_counts):
                    yield from map(file.shard, range(file.num_shards))
                    return
        index = open_sqlite(self.root / META / SQLITE_NAME)
        if index is not None:
            with closing(index):
                yield from (index.shard(number, shard) for number, shard in enumerate(shard_counts))


def add_layout(layout: Any, shard: str, extents: ShardExtents) -> None:
    """Adds a shard to a digest of the layout of samples.

    Args:
        layout: A hash object.
        shard: Name of the shard.
        extents: Its extents.
    """
    for name in _LAYOUT:
        column = bytes(getattr(extents, name))
        layout.update(len(column).to_bytes(8, "little"))
        layout.update(column)
    layout.update(json.dumps([shard, extents.part_names]).encode())
