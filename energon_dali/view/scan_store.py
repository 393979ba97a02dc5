"""What the scan of one dataset found: an SQLite file in the user's cache folder, never in the dataset.

A process that scans examines a block of samples at a time, and stores what it finds there.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, replace
from pathlib import Path

import torch

from energon_dali.errors import EnergonDaliError, StorageError
from energon_dali.view.query import Ranges
from energon_dali.view.sample_facts import SampleFacts, examine_samples
from energon_dali.view.scan_source import OpenedScanSource, ScanSource

BLOCK = 64
"""Samples that are examined and stored together. What a crash interrupts is examined again."""
KEPT_SECONDS = 90 * 24 * 3600.0
"""Scans that were not opened for this long are removed."""
QUERY_SECONDS = 20.0
"""Longest time of one query."""
_BUSY_SECONDS = 60.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (number INTEGER PRIMARY KEY, samples INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS samples (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, bytes INTEGER NOT NULL, fails INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS parts (
    sample INTEGER NOT NULL, name TEXT NOT NULL, bytes INTEGER NOT NULL, kind TEXT NOT NULL, digest BLOB,
    format TEXT NOT NULL, width INTEGER, height INTEGER, duration REAL, mode TEXT NOT NULL, text_length INTEGER,
    PRIMARY KEY (sample, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS parts_by_digest ON parts (digest) WHERE digest IS NOT NULL;
CREATE TABLE IF NOT EXISTS fields (
    name TEXT NOT NULL, value NOT NULL, sample INTEGER NOT NULL, PRIMARY KEY (name, value, sample)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failures (
    sample INTEGER PRIMARY KEY, shard TEXT NOT NULL, key TEXT NOT NULL, stage TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS crashes (sample INTEGER PRIMARY KEY, reason TEXT NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5 (content, content='', columnsize=0);
"""


class ScanStore:
    """The file of one dataset's scan. Several processes and threads may use it; each call opens its own connection.

    Args:
        folder: The folder of scans.
        identity: What `ScanSource.identity` returned: a dataset that changed has another file.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.path = folder / f"{identity}.sqlite"
        self._has_tables = False

    def create(self, note: str = "") -> None:
        """Makes the file if there is none.

        Args:
            note: Why samples are not made as dataset.yaml says; "" if they are.

        Raises:
            StorageError: It cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._connected(writes=True) as connection:
                connection.executescript(_SCHEMA)
                connection.execute("INSERT OR IGNORE INTO meta VALUES ('note', ?)", (json.dumps(note),))
            os.utime(self.path)
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written: {error}. Set XDG_CACHE_HOME to a folder that can."
            ) from error

    @property
    def exists(self) -> bool:
        """Whether the file has been made."""
        return self.path.is_file()

    @contextmanager
    def reading(self, ranges: Ranges = None, *, seconds: float = QUERY_SECONDS) -> Iterator[sqlite3.Connection]:
        """Opens a connection for queries, which is closed at the end.

        Args:
            ranges: (start, stop) of the samples to look at, which fill a temporary table `ranges`; None is all.
            seconds: Longest time of all queries.

        Raises:
            StorageError: The file cannot be read, or the queries took too long.
        """
        with self._connected() as connection:
            deadline = time.monotonic() + seconds
            connection.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
            connection.execute("CREATE TEMP TABLE ranges (start INTEGER PRIMARY KEY, stop INTEGER)")
            rows = [(0, 2**62)] if ranges is None else merge_ranges(ranges)
            connection.executemany("INSERT INTO temp.ranges VALUES (?, ?)", rows)
            yield connection

    @contextmanager
    def _connected(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
                if writes:
                    with suppress(sqlite3.OperationalError):  # some network file systems cannot
                        connection.execute("PRAGMA journal_mode = WAL")
                    connection.execute("PRAGMA synchronous = NORMAL")
                yield connection
        except sqlite3.Error as error:
            if "interrupt" in str(error):
                raise StorageError(
                    "The query took too long and was ended. Give more conditions, or a smaller part of the dataset."
                ) from error
            raise StorageError(
                f"{self.path} cannot be used: {error}. Remove this file to scan the dataset again."
            ) from error

    # --- writing ---------------------------------------------------------------------------------------------------

    def write_block(self, number: int, facts: Sequence[SampleFacts]) -> None:
        """Stores the samples of a block, all of them or none.

        Raises:
            StorageError: The file cannot be written.
        """
        with self._connected(writes=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            done = connection.execute("SELECT 1 FROM blocks WHERE number = ?", (number,)).fetchone()
            if done is None:
                for sample in facts:
                    _insert(connection, sample)
                connection.execute("INSERT INTO blocks VALUES (?, ?)", (number, len(facts)))
            connection.execute("COMMIT")

    def record_crash(self, sample: int, reason: str) -> None:
        """Notes that examining a sample ended the process, so that it is not tried again.

        Raises:
            StorageError: The file cannot be written.
        """
        with self._connected(writes=True) as connection:
            connection.execute("INSERT OR REPLACE INTO crashes VALUES (?, ?)", (sample, reason))

    # --- reading ---------------------------------------------------------------------------------------------------

    def crashes(self) -> dict[int, str]:
        """Returns the reasons of the samples that ended the process."""
        with self._connected() as connection:
            return dict(connection.execute("SELECT sample, reason FROM crashes").fetchall())

    def done_blocks(self) -> set[int]:
        """Returns the numbers of the blocks that are stored."""
        with self._connected() as connection:
            return {number for (number,) in connection.execute("SELECT number FROM blocks")}

    def num_scanned(self) -> int:
        """Returns the number of samples that are stored; 0 without a file."""
        if not self.exists:
            return 0
        with self._connected() as connection:
            if not self._has_tables:
                found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'crashes'").fetchone()
                if found is None:  # it is just being made
                    return 0
                self._has_tables = True
            (count,) = connection.execute("SELECT coalesce(sum(samples), 0) FROM blocks").fetchone()
            return int(count)

    def note(self) -> str:
        """Returns what `create` was given; "" without a file."""
        if not self.exists:
            return ""
        with self._connected() as connection:
            found = connection.execute("SELECT value FROM meta WHERE name = 'note'").fetchone()
            return "" if found is None else str(json.loads(found[0]))


def _insert(connection: sqlite3.Connection, sample: SampleFacts) -> None:
    size = sum(part.num_bytes for part in sample.parts)
    key = _storable(sample.key)
    connection.execute("INSERT INTO samples VALUES (?, ?, ?, ?)", (sample.index, key, size, bool(sample.reason)))
    connection.executemany(
        "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(sample.index, *astuple(replace(part, name=_storable(part.name)))) for part in sample.parts],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO fields VALUES (?, ?, ?)",
        [
            (_storable(name), _storable(value) if isinstance(value, str) else value, sample.index)
            for name, value in sample.fields
            if value == value  # SQLite stores a number that is none as NULL
        ],
    )
    if sample.reason:
        row = (sample.index, sample.shard, key, sample.stage, _storable(sample.reason))
        connection.execute("INSERT INTO failures VALUES (?, ?, ?, ?, ?)", row)
    if sample.text:
        text = _storable(sample.text).replace("\0", " ")
        connection.execute("INSERT INTO texts (rowid, content) VALUES (?, ?)", (sample.index, text))


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def merge_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns half-open ranges in ascending order, without overlaps and empty ones, neighbours joined."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((int(start), int(stop)) for start, stop in ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        elif stop > start:
            merged.append((start, stop))
    return merged


def remove_old_scans(folder: Path) -> None:
    """Removes the scans that were not opened for `KEPT_SECONDS`."""
    oldest = time.time() - KEPT_SECONDS
    with suppress(OSError):
        for path in folder.glob("*.sqlite"):
            with suppress(OSError):
                if path.stat().st_mtime < oldest:
                    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
                        (folder / name).unlink(missing_ok=True)


NICENESS = 10


class BlockScanner:
    """Scans blocks of datasets. Picklable; a process opens one dataset at a time.

    Args:
        tasks: The datasets, and where to store what is found in each.
    """

    def __init__(self, tasks: Sequence[tuple[ScanSource, ScanStore]]) -> None:
        self._tasks = tasks
        self._number = -1
        self._opened: OpenedScanSource | None = None

    def scan(self, place: tuple[int, int]) -> None:
        """Examines the samples of a block together, and stores what is found.

        Args:
            place: Number of the dataset, and of the block.

        Raises:
            DatasetError: The dataset cannot be opened.
            StorageError: A file cannot be read or written.
        """
        number, block = place
        opened, store = self._open(number)
        store.write_block(block, examine_block(opened, block, store.crashes()))

    def examine(self, place: tuple[int, int]) -> None:
        """Examines one sample, unless it once ended a process, to see whether it ends this one.

        Args:
            place: Number of the dataset, and index of the sample.

        Raises:
            DatasetError: The dataset cannot be opened.
            StorageError: A file cannot be read.
        """
        number, index = place
        opened, store = self._open(number)
        if index not in store.crashes():
            list(examine_samples(opened, index, index + 1))

    def _open(self, number: int) -> tuple[OpenedScanSource, ScanStore]:
        source, store = self._tasks[number]
        if self._opened is None or number != self._number:
            if self._opened is not None:
                self._opened.close()
            self._number, self._opened = number, source.open()
        return self._opened, store


def examine_block(opened: OpenedScanSource, block: int, crashes: dict[int, str]) -> list[SampleFacts]:
    """Returns the facts of the samples of a block.

    Args:
        opened: The dataset.
        block: Number of the block.
        crashes: Reasons of the samples that must not be examined again.
    """
    indices = range(block * BLOCK, min((block + 1) * BLOCK, opened.num_samples))
    if not any(index in crashes for index in indices):
        return list(examine_samples(opened, indices.start, indices.stop))
    found = []
    for index in indices:
        if index in crashes:
            shard, key = opened.reader.name(*opened.reader.locate(index))
            found.append(SampleFacts(index, key, shard, stage="decode", reason=crashes[index]))
        else:
            found += examine_samples(opened, index, index + 1)
    return found


def in_background(function: Callable[[tuple[int, int]], None], place: tuple[int, int]) -> None:
    """Calls a method of a BlockScanner in a process of a scan, which leaves the processors to other programs.

    Args:
        function: The method.
        place: Its argument.

    Raises:
        EnergonDaliError: The method raised it.
        OSError: The method raised it.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    torch.set_num_threads(1)
    try:
        function(place)
    except (EnergonDaliError, OSError):
        raise
    except BaseException:  # memory is full, or code of the dataset ends the process
        traceback.print_exc()
        os._exit(1)
