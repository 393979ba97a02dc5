"""The extents of all shards of a dataset, from the best index that exists."""

from __future__ import annotations

import logging
import os
import shlex
import tempfile
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from energon_dali.errors import DatasetFormatError
from energon_dali.shards.documents.content import read_content
from energon_dali.shards.index.extent_file import ExtentFile, digest_of_counts
from energon_dali.shards.index.extents import ShardExtents
from energon_dali.shards.index.sqlite_index import SqliteIndex
from energon_dali.shards.index.tar_index import extents_of_tar
from energon_dali.shards.meta.document import META
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.request_pool import call_together

EXTENTS_NAME = "extents.bin"
SQLITE_NAME = "index.sqlite"
UUID_NAME = "index.uuid"
MAX_UUID_BYTES = 4096
CACHED_SHARDS = 64

Source = Literal["extents", "sqlite", "tar"]
_log = logging.getLogger(__name__)


class ExtentIndex:
    """Returns the extents of each shard of a dataset.

    They come from `extents.bin` (memory-mapped, so that only what is needed is read), or else from `index.sqlite` (one
    query per shard), or else from the headers of the tar and its `.tar.idx`. An `extents.bin` that does not belong to
    `index.uuid` is not used. The extents of the last shards are cached. Picklable; each process opens the files on
    first use.

    Args:
        root: Folder of the dataset.
        shard_counts: Number of samples of each shard, in the order of the index.
    """

    def __init__(self, root: StoragePath, shard_counts: dict[str, int]) -> None:
        self.root = root
        self.shard_counts = shard_counts
        self._names = list(shard_counts)
        self.is_scattered = False
        """Whether samples are taken from everywhere, so that entries are better read than mapped."""
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._file: ExtentFile | None = None
        self._sqlite: SqliteIndex | None = None
        self._source: Source | None = None
        self._cache: OrderedDict[int, ShardExtents] = OrderedDict()
        self._scanned: dict[int, ShardExtents] = {}

    @property
    def source(self) -> Source:
        """Where the extents come from.

        Raises:
            DatasetFormatError: An index is damaged.
            StorageError: It cannot be read.
        """
        if self._source is None or self._pid != os.getpid():
            self._forget()
            self._source = self._open()
        return self._source

    def shard(self, index: int) -> ShardExtents:
        """Returns the extents of a shard.

        Args:
            index: Index of the shard.

        Raises:
            DatasetFormatError: An index is damaged, or contradicts the number of samples in `.info.json`.
            ShardError: The tar had to be scanned, and is damaged.
            StorageError: A file cannot be read.
        """
        source = self.source
        found = self._cache.get(index)
        if found is not None:
            self._cache.move_to_end(index)
            return found
        name = self._names[index]
        if source == "extents":
            assert self._file is not None
            found = self._file.shard(index, is_scattered=self.is_scattered)
        elif source == "sqlite":
            assert self._sqlite is not None
            found = self._sqlite.shard(index, name)
        else:
            found = self._scanned.pop(index, None) or extents_of_tar(self.root, name)
        if found.num_samples != self.shard_counts[name]:
            raise DatasetFormatError(
                f"{self.root}: {name} has {found.num_samples} samples according to its index ({source}) and "
                f"{self.shard_counts[name]} according to .info.json. Run `energon-dali prepare "
                f"{shlex.quote(str(self.root))}`."
            )
        self._cache[index] = found
        if len(self._cache) > CACHED_SHARDS:
            self._cache.popitem(last=False)
        return found

    def fetch(self, indices: Iterable[int]) -> None:
        """Fetches the entries of shards, several at a time where it is remote; `shard` is fast afterwards.

        Raises:
            DatasetFormatError: The index is damaged.
            StorageError: A file cannot be read.
        """
        if self.source == "extents":
            assert self._file is not None
            self._file.fetch(indices)
        elif self.source == "tar" and not self.root.is_local:
            missing = [index for index in indices if index not in self._cache]
            found = call_together(lambda index: extents_of_tar(self.root, self._names[index]), missing)
            # A damaged shard is scanned again, and is an error, when it is asked for.
            self._scanned = {index: one for index, one in found.items() if isinstance(one, ShardExtents)}

    def release_pages(self) -> None:
        """Gives back the pages of a memory-mapped index that were touched, so that they do not count as memory of this
        process.
        """
        if self._file is not None:
            self._file.release_pages()

    def known(self, index: int) -> ShardExtents | None:
        """Returns the extents of a shard if they are cached; reads nothing."""
        return self._cache.get(index)

    def close(self) -> None:
        """Closes all files; they are opened again when needed."""
        if self._pid == os.getpid():
            if self._file is not None:
                self._file.close()
            if self._sqlite is not None:
                self._sqlite.close()
        self._forget()

    def _open(self) -> Source:
        meta = self.root / META
        try:
            file = ExtentFile(meta / EXTENTS_NAME)
        except FileNotFoundError:
            pass
        else:
            if (
                file.uuid == read_uuid(self.root)
                and file.digest == digest_of_counts(self.shard_counts)
                and file.num_shards == len(self.shard_counts)
            ):
                self._file = file
                return "extents"
            file.close()
            _log.warning(
                "%s belongs to another index than %s and is not used; reading without it is slower. Run "
                "`energon-dali prepare %s`.",
                meta / EXTENTS_NAME,
                UUID_NAME,
                shlex.quote(str(self.root)),
            )
        sqlite = open_sqlite(meta / SQLITE_NAME)
        if sqlite is not None:
            self._sqlite = sqlite
            return "sqlite"
        return "tar"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.shard_counts)

    def __repr__(self) -> str:
        return f"ExtentIndex({self.root}, {len(self._names)} shards)"


def open_sqlite(path: StoragePath) -> SqliteIndex | None:
    """Returns the sqlite index; None if there is none, or an old one without the table of parts.

    Raises:
        DatasetFormatError: It is damaged.
        StorageError: It cannot be read.
    """
    if path.is_local:
        if not path.is_file():
            return None
        index = SqliteIndex(path.local)
    else:
        with tempfile.TemporaryDirectory(prefix="energon-dali-") as folder:
            copy = Path(folder) / SQLITE_NAME
            try:
                path.copy_to(copy)
            except FileNotFoundError:
                return None
            index = SqliteIndex(copy)  # stays open after the file is deleted
    if index.has_parts:
        return index
    index.close()
    return None


def read_uuid(root: StoragePath) -> str:
    """Returns the identity of the index, "" if it has none.

    Raises:
        DatasetFormatError: It is too long.
        StorageError: It cannot be read.
    """
    content = read_content(root / META / UUID_NAME, MAX_UUID_BYTES)
    return "" if content is None else content.decode("ascii", "replace").strip()
