"""The file `.nv-meta/index.sqlite`: tables of samples, parts and media, which Energon reads too."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from energon_dali.errors import DatasetFormatError, ShardError, StorageError
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.sqlite_file import DAMAGE, SqliteFile, check_schema, io_error
from energon_dali.shards.index.extents import ShardExtents
from energon_dali.shards.index.tar_index import ExtentsBuilder
from energon_dali.shards.storage.retry import with_retries

_SAMPLE_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL, byte_offset INTEGER,
    byte_size INTEGER);
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER, content_byte_size INTEGER);
"""
_SAMPLE_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset,
content_byte_size);
"""
_MEDIA_TABLES = """
CREATE TABLE IF NOT EXISTS media_metadata (entry_key TEXT PRIMARY KEY, metadata_type TEXT NOT NULL, metadata_json TEXT
NOT NULL);
CREATE TABLE IF NOT EXISTS media_filters (
    filter_id INTEGER PRIMARY KEY AUTOINCREMENT, strategy TEXT NOT NULL, patterns TEXT,
    created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP, UNIQUE(strategy, patterns));
"""

SampleRow = tuple[int, str, int, int, int]
"""(index of the tar, key, index of the sample, offset of its first header, bytes to the next sample)."""
PartRow = tuple[int, int, str, int, int]
"""(index of the tar, index of the sample, part name, offset of the content, size of the content)."""
MediaRow = tuple[str, str, str]
"""(`KEY.PART`, "image" or "av", JSON)."""


class SqliteWriter:
    """Writes the tables; for use in a `with` statement.

    Args:
        path: Local file; a new one if `samples`.
        samples: Create the tables of samples.
        media: Create the tables of media unless they exist.

    Raises:
        StorageError: It cannot be written. All methods and the `with` statement raise it.
        DatasetFormatError: The existing file is damaged, or was not written by this package or Energon. All methods and
            the `with` statement raise it.
    """

    def __init__(self, path: Path, *, samples: bool, media: bool) -> None:
        self._path = path
        self._samples = samples
        with self._writing():
            self._db = sqlite3.connect(path, isolation_level=None)
            if not samples and path.stat().st_size:  # an existing file, which others may have written
                check_schema(self._db, "main", path)
            # The file is deleted if anything fails, so it needs no journal.
            for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
                self._db.execute(f"PRAGMA {pragma}")
            self._db.executescript((_SAMPLE_TABLES if samples else "") + (_MEDIA_TABLES if media else ""))
            self._db.execute("BEGIN")
        self.duplicates: list[tuple[str, int, int]] = []

    def add_samples(self, samples: list[SampleRow], parts: Iterable[PartRow]) -> None:
        """Adds a shard; keys that exist already are added to `duplicates` as (key, first tar, this tar)."""
        with self._writing():
            before = self._db.total_changes
            self._db.executemany("INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?, ?)", samples)
            if self._db.total_changes - before < len(samples):
                self._find_duplicates(samples)
            self._db.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts)

    def _find_duplicates(self, samples: list[SampleRow]) -> None:
        query = "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ?"
        for tar, key, sample, _, _ in samples:
            first_tar, first_sample = self._db.execute(query, (key,)).fetchone()
            if (first_tar, first_sample) != (tar, sample):
                self.duplicates.append((key, first_tar, tar))

    def add_media(self, rows: Iterable[MediaRow]) -> None:
        """Adds or replaces rows about media."""
        with self._writing():
            self._db.executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", rows)

    def count_media(self, tar: int) -> int:
        """Returns how many parts of a shard are described."""
        query = (
            "SELECT count(*) FROM sample_parts JOIN samples ON samples.tar_file_id = sample_parts.tar_file_id AND "
            "samples.sample_index = sample_parts.sample_index JOIN media_metadata ON "
            "entry_key = sample_key || '.' || part_name WHERE sample_parts.tar_file_id = ?"
        )
        with self._writing():
            if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'").fetchone():
                return 0  # an index of an old version
            return int(self._db.execute(query, (tar,)).fetchone()[0])

    def add_media_filter(self, strategy: str, patterns: str) -> None:
        """Records which media were selected."""
        insert = "INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)"
        with self._writing():
            self._db.execute(insert, (strategy, patterns))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"Could not write {self._path}: {error}. Check that the disk is not full, that files may grow "
                "(`ulimit -f`), and that you may write to the folder."
            ) from error
        except sqlite3.Error as error:
            raise DatasetFormatError(f"{self._path.name} is damaged ({error}). Run `energon-dali prepare`.") from error

    def __enter__(self) -> SqliteWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                with self._writing():
                    if self._samples:
                        for statement in _SAMPLE_INDEXES.strip().rstrip(";").split(";"):
                            self._db.execute(statement)
                    self._db.execute("COMMIT")
        finally:
            self._db.close()


class SqliteIndex:
    """Reads the tables of samples, one shard at a time.

    Args:
        path: Local file.

    Raises:
        DatasetFormatError: It is not an index.
        StorageError: It is not a regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_stale = False
        try:
            self._file = with_retries(lambda: SqliteFile(path), "read", str(path))
        except FileNotFoundError as error:
            raise self._damaged(f"cannot be opened ({error})") from error
        self.has_parts = {"samples", "sample_parts"} <= self._file.tables
        """Whether it has the table of parts, which old indices lack."""

    def shard(self, index: int, shard: str) -> ShardExtents:
        """Returns the extents of a shard.

        Args:
            index: Index of the shard.
            shard: Its name, for messages.

        Raises:
            DatasetFormatError: The tables are damaged, or contradict each other.
            StorageError: The file cannot be read.
        """

        def attempt() -> ShardExtents:
            if self._is_stale and self.path.exists():  # the copy of a remote file cannot be opened again
                self._file, self._is_stale = SqliteFile(self.path), False
            try:
                extents = self._read(index, shard)
                extents.check()
            except (*DAMAGE, ShardError) as error:
                self._is_stale = io_error(error) is not None
                damage = self._damaged(f"is damaged where it describes {shard} ({str(error)[:300]})")
                raise io_error(error) or damage from error
            return extents

        return with_retries(attempt, "read", str(self.path))

    def _read(self, index: int, shard: str) -> ShardExtents:
        builder = ExtentsBuilder(shard)
        samples = self._file.execute(
            "SELECT sample_index, sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index", (index,)
        )
        parts = self._file.execute(
            "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts "
            "WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset",
            (index,),
        )
        part = parts.fetchone()
        for number, key in samples:
            if number != builder.num_samples or not isinstance(key, str):
                raise ValueError(f"sample {excerpt(number)}, {excerpt(key)}, instead of {builder.num_samples}")
            builder.add_sample(key)
            end = 0
            while part is not None and part[0] == number:
                _, name, offset, size = part
                if not (isinstance(name, str) and isinstance(offset, int) and isinstance(size, int)) or offset <= end:
                    raise ValueError(f"the part {excerpt(part)}")
                builder.add_part(name, offset, size)
                end = offset
                part = parts.fetchone()
        if part is not None:
            raise ValueError(f"parts of a sample {excerpt(part[0])} that it does not know")
        return builder.extents(-1)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _damaged(self, what: str) -> DatasetFormatError:
        return DatasetFormatError(f"{self.path} {what}. Write it again with `energon-dali prepare PATH`.")
