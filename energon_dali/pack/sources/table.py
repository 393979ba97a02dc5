"""A CSV, TSV, JSON or JSONL file whose rows name files."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from energon_dali.pack.columns import Columns, find_columns, row_to_parts
from energon_dali.pack.files import MediaFolder
from energon_dali.pack.keys import clean_key
from energon_dali.pack.media import media_kind, suffix_of
from energon_dali.pack.options import PackOptions
from energon_dali.pack.reading import ReaderSpec
from energon_dali.pack.record import FilePart, Part, Record, SkipRecord
from energon_dali.pack.sample_types import make_dataset_config
from energon_dali.pack.sources.lines import first_rows, read_rows
from energon_dali.pack.sources.source import OnSkipped, Source

KEY_DIGITS = 9
"""Rows without a key column are numbered, so that a key never depends on what other rows hold."""


def look_up_media(files: MediaFolder, start: str, value: Any) -> Part:
    """Returns the part of a file that a row names.

    Args:
        files: Where it is.
        start: What the part's name begins with.
        value: The path.

    Raises:
        SkipRecord: It is not a path, or there is no such file.
    """
    if not isinstance(value, str) or not value:
        raise SkipRecord(f"{value!r:.100} is not the path of a file")
    suffix = suffix_of(value)
    return FilePart(start + (suffix if media_kind(suffix) else ""), *files.look_at(value))


def key_of(columns_key: str | None, row: dict[str, Any], number: int) -> str:
    """Returns the key of a row: from its key column, or its number.

    Raises:
        SkipRecord: The column is empty.
    """
    if columns_key is None:
        return f"{number:0{KEY_DIGITS}d}"
    value = row.get(columns_key)
    if value is None or value == "" or isinstance(value, (dict, list)):
        raise SkipRecord(f"the column {columns_key!r} holds no key")
    return clean_key(str(value))


class RowSource(Source):
    """A table whose rows name files.

    Args:
        path: Absolute path of the table.
        options: What the user chose.
    """

    def __init__(self, path: str, options: PackOptions) -> None:
        super().__init__()
        self.path = path
        self._media_root = os.path.abspath(options.media_root or os.path.dirname(path))
        self._allow_outside = options.allow_outside
        self._files = MediaFolder(self._media_root, allow_outside=options.allow_outside, fingerprint=self._fingerprint)

    def records(self, skipped: OnSkipped) -> Iterator[Record]:
        self._fingerprint.add_file(self.path)
        for number, (where, row) in enumerate(read_rows(self.path, skipped)):
            try:
                record = self._record(row, number)
            except SkipRecord as error:
                skipped(where, str(error))
            else:
                yield record

    @abstractmethod
    def _record(self, row: dict[str, Any], number: int) -> Record:
        """Returns what a row makes.

        Raises:
            SkipRecord: It cannot be packed.
        """

    def reader(self) -> ReaderSpec:
        return ReaderSpec(self._media_root, self._media_root, self._allow_outside)


class TableSource(RowSource):
    """A table whose rows name files.

    Args:
        path: Absolute path of the table.
        options: What the user chose.

    Raises:
        ConfigError: A column does not exist.
        DatasetFormatError: The table cannot be understood.
        StorageError: It cannot be opened.
    """

    kind = "table"

    def __init__(self, path: str, options: PackOptions) -> None:
        super().__init__(path, options)
        examples = first_rows(path)
        names = list(dict.fromkeys(name for row in examples for name in row))
        self.columns: Columns = find_columns(names, options, examples=examples)

    def describe(self) -> list[str]:
        return [self.columns.describe(), f"Paths are relative to {self._media_root}"]

    def _record(self, row: dict[str, Any], number: int) -> Record:
        key = key_of(self.columns.key, row, number)
        return Record(
            key, row_to_parts(self.columns, row, lambda start, value: look_up_media(self._files, start, value))
        )

    def dataset_config(self, part_names: Iterable[str]) -> dict[str, Any]:
        return make_dataset_config(self.columns.sample_type, part_names)
