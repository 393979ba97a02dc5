"""Reads sqlite files from outside: only plain tables, and only queries that end."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from energon_dali.errors import DatasetFormatError
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.storage.local import open_regular

DAMAGE = (sqlite3.Error, OverflowError, UnicodeError, ValueError, TypeError)
"""Exceptions that reading a damaged file raises."""

MAX_VALUE_BYTES = 16 << 20
"""Largest text or blob in a row, if this version of Python can set that limit."""

_STEPS_PER_CALL = 100_000
_STEPS_PER_BYTE = 50
_LEAST_STEPS = 20_000_000


def io_error(error: Exception) -> OSError | None:
    """Returns an OSError, which can be retried, for a disk error under a database; None for other errors."""
    texts = ("disk I/O error", "unable to open database file")
    if isinstance(error, sqlite3.OperationalError) and any(text in str(error) for text in texts):
        return OSError(errno.EIO, str(error))
    return error if isinstance(error, OSError) else None


class SqliteFile:
    """A connection to a sqlite file that is no longer written to; for any thread, one at a time.

    Anything that would run expressions from the file is refused: views, triggers, virtual tables and generated columns.
    A query that takes far more steps than a file of this size needs is an error, because a damaged page tree may have
    cycles.

    Args:
        path: The file.
        other: A second file, whose tables are `other.NAME`.

    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: It is not a sqlite file, or has something other than tables and indexes.
        StorageError: It is not a regular file.
        OSError: It cannot be opened or read.
    """

    def __init__(self, path: Path, other: Path | None = None) -> None:
        self.path = path
        size = _size(path) + (0 if other is None else _size(other))
        self._most_calls = max(_LEAST_STEPS, size * _STEPS_PER_BYTE) // _STEPS_PER_CALL
        self._calls_left = self._most_calls
        try:
            self._database = sqlite3.connect(_uri(path), uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise io_error(error) or self._unreadable(path, error) from error
        try:
            if sys.version_info >= (3, 11):
                self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON", "mmap_size = 0"):
                self._database.execute(f"PRAGMA {pragma}")
            self._database.set_progress_handler(self._count, _STEPS_PER_CALL)
            check_schema(self._database, "main", path)
            if other is not None:
                self._database.execute("ATTACH DATABASE ? AS other", (_uri(other),))
                check_schema(self._database, "other", other)
            self.tables = frozenset(
                str(name) for (name,) in self.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")
            )
            """Names of the tables of the file."""
        except DAMAGE as error:
            self._database.close()
            raise io_error(error) or self._unreadable(path, error) from error
        except BaseException:
            self._database.close()
            raise

    def execute(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Runs a query and returns a cursor, which reads the rows one by one.

        Raises:
            sqlite3.Error: The file is damaged. The cursor may raise it too.
        """
        self._calls_left = self._most_calls
        return self._database.execute(query, tuple(values))

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def __del__(self) -> None:
        # Indices live as long as what asks them. Python 3.13 warns of a connection that is collected while it is open.
        if hasattr(self, "_database"):
            self._database.close()

    def _count(self) -> int:
        self._calls_left -= 1
        return self._calls_left < 0  # true interrupts the query

    @staticmethod
    def _unreadable(path: Path, error: Exception) -> DatasetFormatError:
        return DatasetFormatError(
            f"{path} cannot be read as a sqlite file ({str(error)[:200]}). Write it again with `energon-dali prepare "
            "PATH`."
        )


def check_schema(database: sqlite3.Connection, schema: str, path: Path) -> None:
    """Rejects a file that would run expressions of its author.

    Args:
        database: The connection.
        schema: "main", or the name of an attached file.
        path: The file, for messages.

    Raises:
        DatasetFormatError: The file has a view, trigger, virtual table or generated column.
        sqlite3.Error: It is damaged.
    """
    remedy = "It is not an index that this package or Energon wrote: prepare the dataset again."
    entries = database.execute(f"SELECT type, name, rootpage FROM {schema}.sqlite_master").fetchall()
    for kind, name, root_page in entries:
        if kind not in ("table", "index") or not isinstance(name, str) or not root_page:
            what = "virtual table" if kind in ("table", "index") else excerpt(kind)
            raise DatasetFormatError(
                f"{path} has the {what} {excerpt(name)}, and may only have tables and their indexes. {remedy}"
            )
        if kind == "table":
            columns = database.execute("SELECT name, hidden FROM pragma_table_xinfo(?, ?)", (name, schema)).fetchall()
            generated = [column for column, hidden in columns if hidden]
            if generated:
                raise DatasetFormatError(
                    f"{path} has the generated column {excerpt(generated[0])} in its table {excerpt(name)}. {remedy}"
                )


def _uri(path: Path) -> str:
    # immutable: a finished index is never written to, and network file systems often cannot lock.
    return f"file:{quote(str(path))}?mode=ro&immutable=1"


def _size(path: Path) -> int:
    descriptor, size = open_regular(str(path))
    os.close(descriptor)
    return size
