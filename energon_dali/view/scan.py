"""The background scan of datasets: finds out what no index holds, in processes of its own."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from energon_dali.errors import ConfigError, EnergonDaliError, StorageError
from energon_dali.view.line_process import LineProcess, ProcessEndedError
from energon_dali.view.scan_filter import SampleFilter
from energon_dali.view.scan_source import ScanSource
from energon_dali.view.scan_store import BLOCK, ScanStore, answer_scans, remove_old_scans, scan_folder

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


@dataclass(frozen=True, slots=True)
class ScanMatches:
    """Some of the samples that meet a filter."""

    indices: list[int]
    """Indices in the whole dataset, ascending."""
    share: float
    """Share of the dataset that was scanned, 0 to 1: samples that were not are missing here."""


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
        self.folder = folder or scan_folder()
        self.num_processes = num_processes or min(4, max(1, (os.cpu_count() or 1) // 2))
        self._lock = threading.Lock()
        self._stores: dict[int, ScanStore] = {}
        self._totals: dict[int, int] = {}
        self._processes: list[LineProcess] = []
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
            self._processes.clear()
            self._thread = threading.Thread(target=self._run, name="energon_dali.view.scan", daemon=True)
            self._thread.start()

    def cancel(self) -> None:
        """Ends the scan, and returns when its processes have ended. What is stored remains; `start` continues.

        Processes that code of the dataset forked may stay, and keep the scan's threads waiting: they are left behind.
        """
        with self._lock:
            self._cancelled.set()
            for process in self._processes:
                process.close()  # SQLite rolls back what is not committed
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

    close = cancel

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
        return ScanProgress(scanned, sum(self._total(number) for number in numbers), running, self._error)

    def _run(self) -> None:
        try:
            remove_old_scans(self.folder)
            tasks: list[tuple[dict[str, object], str]] = []
            for number, source in enumerate(self.sources):
                store = self.store(number, again=True)
                total, note = self._total(number), ""
                if not store.exists:
                    opened = source.open()
                    note = opened.note
                    opened.close()
                store.create({"path": source.path, "num_samples": total, **({"note": note} if note else {})})
                tasks.append((asdict(source), store.path.stem))
            job = (str(self.folder), tasks)
            shares = range(self.num_processes)
            threads = [threading.Thread(target=self._run_share, args=(job, share), daemon=True) for share in shares]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except (EnergonDaliError, OSError) as error:
            self._error = str(error)

    def _run_share(self, job: tuple[str, object], share: int) -> None:
        """Has a process scan the blocks of a share. In a block in which it ends, it examines the samples one by one."""
        process = LineProcess(answer_scans, job, {"OMP_NUM_THREADS": "1"})
        with self._lock:
            if self._cancelled.is_set():
                return
            self._processes.append(process)
        ends = 0

        def ended_by(*request: object) -> str:
            """Returns how a request ended the process, such as "with SIGSEGV"; "" if it did not."""
            nonlocal ends
            try:
                error = process.ask(request, math.inf)
            except ProcessEndedError as ended:
                ends += 1
                if self._cancelled.is_set():
                    raise
                if ends == MAX_CRASHES:
                    raise StorageError(f"The scan ended: decoding ended {MAX_CRASHES} processes.") from ended
                return ended.end
            if error:
                raise StorageError(error)
            return ""

        try:
            process.ask(["begin"], math.inf)
            for number in range(len(self.sources)):
                store, total = self.store(number), self._total(number)
                done = store.done_blocks()
                for block in range(share, -(-total // BLOCK), self.num_processes):
                    while block not in done and ended_by("scan", number, block):
                        for index in range(block * BLOCK, min((block + 1) * BLOCK, total)):
                            end = ended_by("examine", number, index)
                            if end:
                                store.record_crash(index, f"Decoding it ended the process {end}")
        except ProcessEndedError as error:
            if not self._cancelled.is_set():
                self._error = f"The scan ended: a process ended {error.end} before it began."
        except (EnergonDaliError, OSError) as error:
            self._error = str(error)
        finally:
            process.close()
            process.end()

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

    def _total(self, source: int) -> int:
        if source not in self._totals:
            opened = self.sources[source].open()
            self._totals[source] = opened.num_samples
            opened.close()
        return self._totals[source]

    def note(self, source: int = 0) -> str:
        """Returns why samples were not made as dataset.yaml says; "" if they were."""
        return str(self.store(source).description().get("note", ""))

    def matches(
        self,
        wanted: SampleFilter,
        *,
        source: int = 0,
        ranges: Sequence[tuple[int, int]] | None = None,
        after: int = -1,
        limit: int = 100,
        offset: int = 0,
    ) -> ScanMatches:
        """Returns the samples that meet a filter, as far as the dataset was scanned.

        Args:
            wanted: The conditions.
            source: Number of the dataset.
            ranges: (start, stop) of the samples to look at, such as those of a split; None is all.
            after: Only samples with a larger index.
            limit: At most this many.
            offset: Leave out this many of the first.

        Raises:
            StorageError: The file cannot be read, or the query took too long.
        """
        share = self.progress(source).share
        condition, values = wanted.conditions()
        query = (
            "SELECT s.id FROM temp.ranges r CROSS JOIN samples s ON s.id >= max(r.start, ?) AND s.id < r.stop "
            f"WHERE {condition} ORDER BY r.start, s.id LIMIT ? OFFSET ?"
        )
        first, most, left_out = (min(max(0, number), _MOST) for number in (after + 1, limit, offset))
        rows = self._rows(source, query, (first, *values, most, left_out), ranges)
        return ScanMatches([index for (index,) in rows], share)

    def count(self, wanted: SampleFilter, *, source: int = 0, ranges: Sequence[tuple[int, int]] | None = None) -> int:
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

    def failures(self, *, source: int = 0, after: int = -1, limit: int = 100) -> list[ScanFailure]:
        """Returns the samples that fail to decode, by index.

        Args:
            source: Number of the dataset.
            after: Only samples with a larger index.
            limit: At most this many.

        Raises:
            StorageError: The file cannot be read.
        """
        query = "SELECT sample, shard, key, stage, reason FROM failures WHERE sample > ? ORDER BY sample LIMIT ?"
        return [ScanFailure(*row) for row in self._rows(source, query, (after, limit))]

    def failure_of(self, index: int, *, source: int = 0) -> ScanFailure | None:
        """Returns why a sample fails to decode; None if it does not, or was not scanned yet."""
        found = self.failures(source=source, after=index - 1, limit=1)
        return found[0] if found and found[0].index == index else None

    def duplicates_of(self, index: int, *, source: int = 0, limit: int = 100) -> list[tuple[int, str]]:
        """Returns (index, part name) of the other parts whose content equals that of a part of a sample."""
        query = (
            "SELECT DISTINCT q.sample, q.name FROM parts p JOIN parts q ON q.digest = p.digest "
            "WHERE p.sample = ? AND (q.sample <> p.sample OR q.name <> p.name) ORDER BY q.sample LIMIT ?"
        )
        return self._rows(source, query, (index, limit))

    def values_of(self, column: str, *, source: int = 0, limit: int = 100) -> list[tuple[str, int]]:
        """Returns (value, number of parts) of a column, the most frequent first: what a filter can offer.

        Args:
            column: "format", "mode", "kind" or "name".
            source: Number of the dataset.
            limit: At most this many.

        Raises:
            ConfigError: There is no such column.
            StorageError: The file cannot be read.
        """
        if column not in ("format", "mode", "kind", "name"):
            raise ConfigError(f'column={column!r} is unknown. Choose "format", "mode", "kind" or "name".')
        query = (
            f"SELECT {column}, count(*) AS number FROM parts WHERE {column} <> '' "
            f"GROUP BY {column} ORDER BY number DESC, {column} LIMIT ?"
        )
        return self._rows(source, query, (limit,))

    def _rows(
        self, source: int, query: str, values: Sequence[Any], ranges: Sequence[tuple[int, int]] | None = None
    ) -> list[Any]:
        """Returns the rows of a query; none before anything was scanned."""
        store = self.store(source)
        if not store.num_scanned():
            return []
        with store.reading(ranges) as connection:
            return connection.execute(query, values).fetchall()

    def __repr__(self) -> str:
        return f"Scan({len(self.sources)} datasets, {self.folder})"
