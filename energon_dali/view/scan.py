"""The background scan of datasets: finds out what no index holds, in processes of its own."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from energon_dali.errors import ConfigError, EnergonDaliError, StorageError
from energon_dali.shards.prepare.journal import cache_folder
from energon_dali.shards.prepare.worker_pool import WorkerPool
from energon_dali.view.query import Ranges, SampleFilter
from energon_dali.view.scan_source import ScanSource
from energon_dali.view.scan_store import BLOCK, BlockScanner, ScanStore, in_background, remove_old_scans

MAX_CRASHES = 100
"""Times that decoding may end a process before the scan gives up."""

_END_SECONDS = 5.0
"""How long a cancelled scan may take to end: its processes are killed."""
_MOST = 1 << 62
"""SQLite takes integers of 64 bits."""


@dataclass(frozen=True, slots=True)
class ScanProgress:
    """How far a scan is."""

    scanned: int
    """Number of samples that are stored."""
    total: int
    """Number of samples of the datasets."""
    running: bool
    """Whether it goes on."""
    error: str = ""
    """Why it ended before the end; "" if it did not."""

    @property
    def share(self) -> float:
        """Share that was scanned, 0 to 1."""
        return self.scanned / self.total if self.total else 1.0

    @property
    def is_complete(self) -> bool:
        """Whether every sample is stored."""
        return self.scanned >= self.total


@dataclass(frozen=True, slots=True)
class ScanFailure:
    """A sample that fails to decode."""

    index: int
    """Index in the whole dataset."""
    shard: str
    """Name of its shard."""
    key: str
    """Its key."""
    stage: str
    """"read", "load" or "decode"."""
    reason: str
    """Why, in one line, as a loader would say it."""


class Scan:
    """Scans datasets in the background, and answers from what was found so far.

    What it finds is kept in the user's cache folder, one file for each dataset. A scan that was cancelled or
    interrupted goes on where it ended; a dataset that changed is scanned again. Thread-safe.

    Args:
        sources: The datasets. Methods name one of them by its number in this list.
        folder: The folder of scans; None is `energon-dali/view` in the user's cache.
        num_processes: Number of processes that scan; None is half the number of cores, at most 4.

    Raises:
        ConfigError: There is no dataset, or the number of processes is not positive.
    """

    def __init__(
        self, sources: Sequence[ScanSource], *, folder: Path | None = None, num_processes: int | None = None
    ) -> None:
        if not sources:
            raise ConfigError("A scan was given no dataset. Give at least one ScanSource.")
        if num_processes is not None and num_processes < 1:
            raise ConfigError(f"num_processes={num_processes} is invalid: it must be at least 1.")
        self.sources = tuple(sources)
        self.folder = folder or cache_folder("view")
        self.num_processes = num_processes or min(4, max(1, (os.cpu_count() or 1) // 2))
        self._lock = threading.Lock()
        self._stores: dict[int, ScanStore] = {}
        self._facts: dict[int, tuple[int, str]] = {}
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._error = ""

    # --- running ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts or continues the scan and returns at once; does nothing while it runs."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._error = ""
            self._cancelled.clear()
            self._thread = threading.Thread(target=self._run, name="energon_dali.view.scan", daemon=True)
            self._thread.start()

    def cancel(self) -> None:
        """Ends the scan, and returns when its processes have ended. What is stored remains; `start` continues.

        Processes that code of the dataset forked may stay, and keep threads of the scan waiting, which is ignored.
        """
        self._cancelled.set()  # the processes are killed; SQLite rolls back what is not committed
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_SECONDS)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end of the scan.

        Args:
            timeout: Longest wait in seconds; None waits as long as it takes.

        Returns:
            Whether it has ended.
        """
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def progress(self, source: int | None = None) -> ScanProgress:
        """Returns how far the scan is.

        Args:
            source: Number of a dataset; None is all of them together.

        Raises:
            DatasetError: A dataset cannot be opened.
            StorageError: A file cannot be read.
        """
        numbers = range(len(self.sources)) if source is None else (source,)
        running = self._thread is not None and self._thread.is_alive()
        scanned = sum(self.store(number).num_scanned() for number in numbers)
        return ScanProgress(scanned, sum(self._look_at(number)[0] for number in numbers), running, self._error)

    def _run(self) -> None:
        try:
            remove_old_scans(self.folder)
            tasks: list[tuple[ScanSource, ScanStore]] = []
            blocks: list[tuple[int, int]] = []
            for number, source in enumerate(self.sources):
                store = self.store(number, again=True)
                total, note = self._look_at(number)
                store.create(note)
                tasks.append((source, store))
                done = store.done_blocks()
                blocks += [(number, block) for block in range(-(-total // BLOCK)) if block not in done]
            self._scan(BlockScanner(tasks), blocks)
        except CancelledError:
            pass
        except (EnergonDaliError, OSError) as error:
            self._error = str(error)

    def _scan(self, scanner: BlockScanner, blocks: Sequence[tuple[int, int]]) -> None:
        """Has processes scan blocks. In a block in which one ends, samples are examined one by one to find which."""
        crashes = itertools.count(1)

        def count_crash() -> None:
            if next(crashes) == MAX_CRASHES:
                raise StorageError(f"The scan ended: decoding ended {MAX_CRASHES} processes.")

        def record_sample(place: tuple[int, int], end: str) -> None:
            count_crash()
            self.store(place[0]).record_crash(place[1], f"Decoding it ended the process {end}")

        def scan_again(place: tuple[int, int], _: str) -> None:
            count_crash()
            number, block = place
            samples = range(block * BLOCK, min((block + 1) * BLOCK, self._look_at(number)[0]))
            self._in_processes(scanner.examine, [(number, index) for index in samples], record_sample)
            self._in_processes(scanner.scan, [place], scan_again)

        self._in_processes(scanner.scan, blocks, scan_again, self.num_processes)

    def _in_processes(
        self,
        function: Callable[[tuple[int, int]], None],
        places: Sequence[tuple[int, int]],
        killed: Callable[[tuple[int, int], str], None],
        most: int = 1,
    ) -> None:
        """Calls a function for places in processes, which are ended when the scan is cancelled.

        Raises:
            CancelledError: It was.
        """

        def room() -> int:
            if self._cancelled.is_set():
                raise CancelledError
            return len(places)

        pool = WorkerPool(partial(in_background, function), places, min(most, len(places)), 1, killed, max_deaths=1)
        for _ in pool.results(room):
            pass

    # --- answers ---------------------------------------------------------------------------------------------------

    def store(self, source: int = 0, *, again: bool = False) -> ScanStore:
        """Returns the file of a dataset's scan.

        Args:
            source: Number of the dataset.
            again: Look whether the dataset changed.

        Raises:
            DatasetError: The dataset cannot be opened.
            StorageError: It cannot be read.
        """
        if again or source not in self._stores:
            self._stores[source] = ScanStore(self.folder, self.sources[source].identity())
        return self._stores[source]

    def _look_at(self, source: int) -> tuple[int, str]:
        """Returns (number of samples, why they are not made as dataset.yaml says) of a dataset."""
        if source not in self._facts:
            opened = self.sources[source].open()
            self._facts[source] = opened.num_samples, opened.note
            opened.close()
        return self._facts[source]

    def note(self, source: int = 0) -> str:
        """Returns why samples were not made as dataset.yaml says; "" if they were."""
        return self.store(source).note()

    def matches(
        self,
        wanted: SampleFilter,
        *,
        source: int = 0,
        ranges: Ranges = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[int]:
        """Returns the indices of the samples that meet a filter, as far as the dataset was scanned.

        Args:
            wanted: The conditions.
            source: Number of the dataset.
            ranges: (start, stop) of the samples to look at, such as those of a split; None is all.
            limit: At most this many.
            offset: Leave out this many of the first.

        Raises:
            StorageError: The file cannot be read, or the query took too long.
        """
        condition, values = wanted.conditions()
        query = (
            "SELECT s.id FROM temp.ranges r CROSS JOIN samples s ON s.id >= r.start AND s.id < r.stop "
            f"WHERE {condition} ORDER BY r.start, s.id LIMIT ? OFFSET ?"
        )
        most, left_out = (min(max(0, number), _MOST) for number in (limit, offset))
        return [index for (index,) in self._rows(source, query, (*values, most, left_out), ranges)]

    def count(self, wanted: SampleFilter, *, source: int = 0, ranges: Ranges = None) -> int:
        """Returns how many scanned samples meet a filter; arguments as in `matches`.

        Raises:
            StorageError: The file cannot be read, or the query took too long.
        """
        condition, values = wanted.conditions()
        query = (
            "SELECT count(*) FROM temp.ranges r CROSS JOIN samples s ON s.id >= r.start AND s.id < r.stop "
            f"WHERE {condition}"
        )
        return sum(count for (count,) in self._rows(source, query, values, ranges))

    def failures(self, *, source: int = 0, limit: int = 100) -> list[ScanFailure]:
        """Returns the samples that fail to decode, by index.

        Args:
            source: Number of the dataset.
            limit: At most this many.

        Raises:
            StorageError: The file cannot be read.
        """
        query = "SELECT sample, shard, key, stage, reason FROM failures ORDER BY sample LIMIT ?"
        return [ScanFailure(*row) for row in self._rows(source, query, (limit,))]

    def _rows(self, source: int, query: str, values: Sequence[Any], ranges: Ranges = None) -> list[Any]:
        """Returns the rows of a query; none before anything was scanned."""
        store = self.store(source)
        if not store.num_scanned():
            return []
        with store.reading(ranges) as connection:
            return connection.execute(query, values).fetchall()

    def __repr__(self) -> str:
        return f"Scan({len(self.sources)} datasets, {self.folder})"
