"""Looks up single names in the tables of `index.sqlite`, from any thread and any process."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from energon_dali.errors import DatasetError, DatasetFormatError, EnergonDaliError, FileMissingError
from energon_dali.samples.media_metadata import MediaMetadata, read_media_metadata
from energon_dali.shards import StoragePath
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.sqlite_file import DAMAGE, SqliteFile, io_error
from energon_dali.shards.index.extents import MAX_SHARD_BYTES
from energon_dali.shards.index.tar_scan import TAR_BLOCK_BYTES
from energon_dali.shards.storage.retry import with_retries

INDEX = ".nv-meta/index.sqlite"

_PART = (
    "SELECT sample_parts.tar_file_id, content_byte_offset, content_byte_size FROM samples JOIN sample_parts "
    "ON sample_parts.tar_file_id = samples.tar_file_id AND sample_parts.sample_index = samples.sample_index "
    "WHERE sample_key = ? AND part_name = ?"
)
_MEDIA = "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = ?"


class StoreIndex:
    """Looks up parts and media metadata by name, about 10 us each.

    Read-only. Each process opens the file at its first query; a remote one is copied to local disk for that. Picklable
    and thread-safe.

    Args:
        root: Folder of the dataset.
    """

    def __init__(self, root: StoragePath) -> None:
        self.root = root
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._db: SqliteFile | None = None

    def part(self, sample_key: str, part_name: str) -> tuple[int, int, int] | None:
        """Returns (index of the shard, offset of the content, size) of a part, in bytes; None if there is none.

        Raises:
            DatasetFormatError: There is no index, or it is damaged or too old.
        """
        row = self._ask({"samples", "sample_parts"}, _PART, (sample_key, part_name))
        if row is None:
            return None
        number, offset, size = row
        if (
            not (isinstance(number, int) and isinstance(offset, int) and isinstance(size, int))
            or not TAR_BLOCK_BYTES <= offset <= MAX_SHARD_BYTES
            or not 0 <= size <= MAX_SHARD_BYTES
        ):
            raise self._garbled(f"is damaged at {excerpt(sample_key)}")
        return number, offset, size

    def media_metadata(self, name: str) -> MediaMetadata:
        """Returns the metadata of a media file.

        Args:
            name: `KEY.PART`, or the path in a plain folder.

        Raises:
            FileMissingError: There is none of this file.
            DatasetFormatError: There is no index, or it has no media metadata, or it is damaged.
        """
        row = self._ask({"media_metadata"}, _MEDIA, (name,))
        if row is None:
            raise FileMissingError(
                f"{self.root} has no media metadata of {name!r}. If there is such a file, run `energon-dali "
                f"prepare-media {self.root.quoted}` with options that take it in."
            )
        return read_media_metadata(*row)

    def has_media(self) -> bool:
        """Returns whether media metadata was stored; False also where there is no index, or it cannot be read."""
        try:
            self._ask({"media_metadata"}, "SELECT 1 FROM media_metadata WHERE entry_key = ?", ("",))
        except EnergonDaliError:
            return False
        return True

    def _ask(self, tables: set[str], query: str, values: tuple[str, ...]) -> Any:
        if self._pid != os.getpid():
            self._forget()  # a connection must not be used on both sides of a fork

        def attempt() -> Any:
            # A remote file is fetched before the lock is taken, because fetching retries with its own pauses.
            fetched = self._fetch() if self._db is None and not self.root.is_local else None
            with self._lock:
                db = self._db = self._db or fetched or self._open()
                if not tables <= db.tables:
                    what = "prepare-media" if "media_metadata" in tables else "prepare"
                    raise self._garbled(f"has no table {', '.join(sorted(tables - db.tables))}", what)
                try:
                    return db.execute(query, values).fetchone()
                except UnicodeEncodeError:  # all keys of the index are text
                    return None
                except DAMAGE as error:
                    self._db = None  # opened again: a descriptor on a network file system may stay stale
                    raise io_error(error) or self._garbled(f"cannot be read ({str(error)[:200]})") from error

        return with_retries(attempt, "read", (self.root / INDEX).url)

    def _fetch(self) -> SqliteFile:
        """Returns an open copy of a remote index, whose file is already deleted."""
        with tempfile.TemporaryDirectory(prefix="energon-dali-") as folder:
            copy = Path(folder) / "index.sqlite"
            try:
                (self.root / INDEX).copy_to(copy)
            except FileNotFoundError as error:
                raise self._missing() from error
            return SqliteFile(copy)

    def _open(self) -> SqliteFile:
        if not self.root.is_local:  # another thread dropped the database, which was open when this one looked
            return self._fetch()
        path = self.root / INDEX
        if not path.is_file():
            raise self._missing()
        return SqliteFile(path.local)

    def _missing(self) -> DatasetFormatError:
        return DatasetFormatError(
            f"{self.root / INDEX} is missing; it is needed to find files by name. Run `energon-dali prepare "
            f"{self.root.quoted}` for tar shards, or `energon-dali prepare-media "
            f"{self.root.quoted}` for the media metadata of a plain folder."
        )

    def _garbled(self, what: str, command: str = "prepare") -> DatasetFormatError:
        return DatasetFormatError(
            f"{self.root / INDEX} {what}. Write it again with `energon-dali {command} {self.root.quoted}`."
        )

    def close(self) -> None:
        """Closes the file; it is opened again when needed."""
        if self._pid != os.getpid():
            self._forget()
            return
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root,)


def unreadable(what: str, error: Exception) -> DatasetError:
    """Returns the error for a file of a store that exists and cannot be read."""
    return DatasetError(f"{what} cannot be read: {error}. Check the file and its access rights.")
