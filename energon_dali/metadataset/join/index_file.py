"""The file of a join index, in Energon's format: row by row, which samples of which shards belong together.

The magic bytes and the number of columns as int64 are followed by rows of int64. A row has three numbers per column:
the index of the shard in the split file, the offset of the sample in that shard, and its size in bytes. All three are
-1 if the dataset has no match. Little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from energon_dali.errors import DatasetFormatError
from energon_dali.plan.rng import Int64Array
from energon_dali.shards import StoragePath
from energon_dali.shards.documents.content import map_content
from energon_dali.shards.storage.atomic_file import writing

MAGIC = b"JIDX0001"
_HEADER_BYTES = 16
FIELDS = 3
"""Numbers per column: index of the shard, offset, size."""


def write_join_index(path: Path, num_columns: int, blocks: Iterable[Int64Array]) -> int:
    """Writes a join index, and returns the number of its rows.

    Args:
        path: Local file.
        num_columns: Number of datasets.
        blocks: Rows as int64[rows, num_columns, 3], in order.

    Raises:
        StorageError: It cannot be written.
    """
    rows = 0
    with writing(path), path.open("wb") as file:
        file.write(MAGIC + np.array([num_columns], "<i8").tobytes())
        for block in blocks:
            file.write(np.ascontiguousarray(block, "<i8").tobytes())
            rows += len(block)
    return rows


class JoinIndexFile:
    """A join index, open for reading. A local file is mapped into memory; any other is read whole on first use.

    Picklable; each process opens the file itself.

    Args:
        path: The file.
        num_columns: Number of datasets that it must join.
    """

    def __init__(self, path: StoragePath, num_columns: int) -> None:
        self.path = path
        self.num_columns = num_columns
        self._table: Int64Array | None = None

    @property
    def table(self) -> Int64Array:
        """int64[rows, num_columns, 3]: index of the shard, offset and size in bytes; read-only.

        Raises:
            DatasetFormatError: The file is damaged, or joins another number of datasets.
            StorageError: It cannot be read.
        """
        if self._table is None:
            self._table = self._read()
        return self._table

    def _read(self) -> Int64Array:
        content = map_content(self.path)
        if content is None:
            raise self._error("is missing")
        size = len(content)
        if size == 0:  # Energon writes no header if there are no rows
            return np.zeros((0, self.num_columns, FIELDS), np.int64)
        row_bytes = 8 * FIELDS * self.num_columns
        if size < _HEADER_BYTES or content[: len(MAGIC)].tobytes() != MAGIC:
            raise self._error("is not a join index")
        columns = int(content[len(MAGIC) : _HEADER_BYTES].view("<i8")[0])
        if columns != self.num_columns:
            raise self._error(f"joins {columns} datasets, but the metadataset names {self.num_columns}")
        if (size - _HEADER_BYTES) % row_bytes:
            raise self._error(f"has {size} bytes, which is not a whole number of rows")
        table: Int64Array = content[_HEADER_BYTES:].view("<i8").reshape(-1, columns, FIELDS)
        return table

    def is_whole(self) -> bool:
        """Returns whether the file exists and has the form of a join index; its rows are not read.

        Raises:
            StorageError: It cannot be read.
        """
        try:
            reader = self.path.open()
        except FileNotFoundError:
            return False
        try:
            header, row_bytes = reader.read_at(0, _HEADER_BYTES), 8 * FIELDS * self.num_columns
            is_of_these = header == MAGIC + np.array([self.num_columns], "<i8").tobytes()
            return is_of_these and (reader.size - _HEADER_BYTES) % row_bytes == 0
        finally:
            reader.close()

    def close(self) -> None:
        """Closes the file; it is opened again when needed."""
        self._table = None

    def _error(self, what: str) -> DatasetFormatError:
        return DatasetFormatError(f"{self.path} {what}. Rebuild it with `energon-dali prepare` on the metadataset.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.num_columns)
