"""Reads rows of Parquet and Arrow files."""

from __future__ import annotations

import functools
from typing import Any

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.pack.columns import Columns, row_to_parts
from energon_dali.pack.files import MediaFolder
from energon_dali.pack.media import guess_suffix, media_kind, suffix_of
from energon_dali.pack.record import BytesPart, FilePart, Part, Row, SkipRecord

_MAGIC_BYTES = 6


class TableFile:
    """A Parquet file, an Arrow stream or an Arrow file, read by blocks: row groups or record batches.

    Args:
        path: Absolute path.

    Raises:
        ConfigError: pyarrow is not installed.
        DatasetFormatError: It is none of them.
    """

    def __init__(self, path: str) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ConfigError(
                f"{path} is a Parquet or Arrow file, and pyarrow is not installed. Run `pip install "
                "'energon-dali[pack]'`."
            ) from error
        self.path = path
        self._batches: list[Any] = []
        self._parquet: Any = None
        try:
            with open(path, "rb") as file:
                magic = file.read(_MAGIC_BYTES)
            if magic.startswith(b"PAR1"):
                self._parquet = pyarrow.parquet.ParquetFile(path, memory_map=True)
                self.schema: Any = self._parquet.schema_arrow
            else:
                source = pyarrow.memory_map(path)
                if magic.startswith(b"ARROW1"):
                    opened = pyarrow.ipc.open_file(source)
                    self._batches = [opened.get_batch(number) for number in range(opened.num_record_batches)]
                else:
                    opened = pyarrow.ipc.open_stream(source)
                    self._batches = list(opened)
                self.schema = opened.schema
        except (pyarrow.ArrowException, OSError) as error:
            raise DatasetFormatError(
                f"{path} cannot be read as Parquet or Arrow: {error}. Download or write it again."
            ) from error

    def blocks(self) -> list[tuple[int, int]]:
        """Returns (rows, bytes in memory) of each block."""
        if self._parquet is None:
            return [(batch.num_rows, batch.nbytes) for batch in self._batches]
        metadata = self._parquet.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def block(self, number: int, columns: list[str]) -> Any:
        """Returns some columns of a block, as a table or record batch of pyarrow.

        Raises:
            DatasetFormatError: It is damaged.
        """
        import pyarrow

        try:
            if self._parquet is None:
                return self._batches[number].select(columns)
            return self._parquet.read_row_group(number, columns=columns)
        except (pyarrow.ArrowException, OSError) as error:
            raise DatasetFormatError(
                f"{self.path} is damaged in block {number}: {error}. Download it again."
            ) from error


class RowReader:
    """Turns rows of Parquet and Arrow files into parts.

    Args:
        root: Folder of the files.
        columns: Which column is what.
        folder: Where files are that rows name instead of holding their bytes.
    """

    def __init__(self, root: str, columns: Columns, folder: MediaFolder) -> None:
        self._root = root
        self._columns = columns
        self._folder = folder
        self._file = functools.lru_cache(maxsize=16)(lambda path: TableFile(f"{self._root}/{path}"))
        self._block = functools.lru_cache(maxsize=1)(self._read_block)

    def _read_block(self, path: str, number: int) -> Any:
        return self._file(path).block(number, self._columns.used)

    def parts(self, row: Row) -> list[Part]:
        """Returns the parts of a row.

        Raises:
            SkipRecord: It lacks what its sample needs.
            DatasetFormatError: The file is damaged.
        """
        import pyarrow

        try:
            (values,) = self._block(row.path, row.block).slice(row.row, 1).to_pylist()
        except (UnicodeDecodeError, pyarrow.ArrowException) as error:
            raise SkipRecord(f"its row cannot be read: {error}") from None
        return row_to_parts(self._columns, values, self._media_part)

    def _media_part(self, start: str, value: Any) -> Part:
        """Makes a part of an image: bytes, a path, or {bytes, path}."""
        content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if isinstance(content, str):
            content, path = None, content
        if isinstance(content, bytes) and content:
            suffix = guess_suffix(content) or suffix_of(path or "")
            if not media_kind(suffix):
                raise SkipRecord("its media are not recognised by their first bytes")
            return BytesPart(start + suffix, content)
        if isinstance(path, str) and path:
            relative, size = self._folder.look_at(path)
            return FilePart(start + (suffix_of(path) if media_kind(suffix_of(path)) else ""), relative, size)
        raise SkipRecord("it has neither bytes nor a path")
