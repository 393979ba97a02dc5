"""Reads samples in an order that is known ahead: requests are in flight before their samples are wanted.

The order is integers, so the next rows are known as far ahead as one likes, and the index says which bytes they need.
A reader plans rows, requests the bytes of those that come soon, and returns the samples in order:

    planned   it is known which bytes the sample needs
    issued    its bytes were requested: the request is queued, in flight, or done
    taken     the sample was returned

A request covers the wanted samples that are near each other in a shard, also those that are wanted later, if they are
planned already. So shards are streamed in large requests where the order keeps to a window that fits into the limit of
memory. Of samples that are scattered more widely, only neighbours that come soon after each other share a request.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from energon_dali.errors import DatasetError, EnergonDaliError, StoreUnavailableError
from energon_dali.shards.ranged_part import Run
from energon_dali.shards.raw_sample import RawSample
from energon_dali.shards.storage.forks import drop_in_child
from energon_dali.shards.storage.protocols import RangeReader
from energon_dali.shards.storage.request_pool import RequestPool
from energon_dali.shards.storage.store import current_scope

REQUEST_BYTES = 4 << 20
"""Runs are joined up to this size of a request."""

GAP_BYTES = 1536
GAP_SHARE = 10
"""Two runs are joined if at most GAP_BYTES and a tenth of the larger run are between them. That is little next to large
samples. Next to small ones it may be several times their size, because a request costs far more than these bytes."""

FEWEST_REQUEST_BYTES = 256 << 10
"""Size of joined requests where memory is short."""

ISSUED_BYTES = 32 << 20
"""Bytes that are requested before they are wanted, where they fit into the limit."""

FIRST_ROWS = 64
"""Rows that are planned before the first sample is requested. Their number may double each time."""

FEWEST_ROWS = 16
MOST_ROWS = 65_536
"""Limits of the number of rows that are planned."""

_NEIGHBOURS = 3
"""How far apart, in samples, two planned samples of a shard may be to share a request."""


class PlannedSource(Protocol):
    """What reading ahead needs of a dataset."""

    def open_shards(self, numbers: Iterable[int], num_samples: int) -> None:
        """Prepares for planning samples of shards, whose index is fetched together. Errors are raised by `runs`.

        Args:
            numbers: Indices of the shards.
            num_samples: Number of samples.
        """

    def runs(self, shard: int, sample: int, seed: int | None = None) -> tuple[RangeReader, Sequence[Run]]:
        """Returns the file of a sample, and what has to be read of it.

        Args:
            shard: Index of its shard.
            sample: Index within it.
            seed: Seed of the sample, by which ranges of its parts are chosen; None reads them whole.

        Raises:
            DatasetError: The shard cannot be opened, or has no such sample.
        """

    def assemble(self, shard: int, sample: int, pieces: Sequence[tuple[Any, bytes | memoryview, int]]) -> RawSample:
        """Returns the sample.

        Args:
            shard: Index of its shard.
            sample: Index within it.
            pieces: (run, bytes that contain it, their offset in the file).

        Raises:
            DatasetError: The shard differs from its index.
        """

    def unreadable(self, shard: int, error: Exception) -> DatasetError:
        """Returns the error for a shard that cannot be read."""


_Piece = tuple[Future[list[bytes | memoryview]], int]
"""The bytes of a run: which of those that a request brings."""


@dataclass(slots=True, eq=False)
class _Row:
    """A sample that is planned."""

    shard: int
    sample: int
    reader: RangeReader | None = None
    runs: Sequence[Run] = ()
    size: int = 0
    pieces: list[_Piece] | None = None  # one per run, as soon as they are requested
    error: DatasetError | None = None


class PlannedReads:
    """Reads the samples of one stream of a source, in a planned order. Not thread-safe.

    Args:
        source: The dataset.
        window: Window of the order's shuffle, in samples. With the lanes, it sets how far to plan for large requests.
        lanes: Number of its interleave lanes.
        is_limited: Keep to the limit of bytes; False where the caller wants all rows at once.
    """

    _closed = True  # until the pool has been joined

    def __init__(self, source: PlannedSource, window: int = 0, lanes: int = 1, *, is_limited: bool = True) -> None:
        self._source = source
        self._is_limited = is_limited
        self._window = window
        self._lanes = lanes
        self.after_fork()
        self._request_bytes = REQUEST_BYTES
        self._reserved_bytes = 0
        """What samples that are wanted later leave to those that come next."""
        self._rows_seen = 0
        self._bytes_seen = 0
        self._rows_taken = 0
        self._pool: RequestPool = current_scope().requests
        self._user = object()
        self._pool.join(self._user)
        self._closed = False
        drop_in_child(self)

    def after_fork(self) -> None:
        """Forgets all rows in a forked child, which does not have the threads that read them."""
        self._planned: deque[_Row] = deque()
        self._issued: deque[_Row] = deque()
        self._unissued: dict[int, dict[int, _Row]] = {}
        self._held_bytes = 0

    def __len__(self) -> int:
        """Returns the number of rows that are planned and not taken."""
        return len(self._planned) + len(self._issued)

    def rows_wanted(self) -> int:
        """Returns how many more rows to plan now; 0 if enough are planned."""
        issued, planned = self._targets()
        missing = planned - len(self)
        if len(self) >= issued and 8 * missing < planned:  # planned in groups, which costs less than one by one
            return 0
        return min(missing, FIRST_ROWS + self._rows_seen)

    def _targets(self) -> tuple[int, int]:
        """Returns (rows to have issued, rows to have planned), the second at least as large as the first."""
        row_bytes = max(512, self._bytes_seen // self._rows_seen if self._rows_seen else 64 << 10)
        limit = self._pool.bytes_per_user
        issued = min(ISSUED_BYTES, limit // 2) // row_bytes
        # The neighbours of a sample in its shard come within four windows of it. If these are planned, and what each
        # lane needs for a large request, shards are streamed. A window and a half are held then.
        spare = limit - (issued + 3 * self._window // 2) * row_bytes
        if spare >= 0 and 4 * self._window <= MOST_ROWS:
            self._reserved_bytes = 0
            self._request_bytes = min(REQUEST_BYTES, max(FEWEST_REQUEST_BYTES, spare // self._lanes))
            ahead = 4 * self._window + 2 * self._lanes * self._request_bytes // row_bytes
            return max(FEWEST_ROWS, min(issued, MOST_ROWS // 16)), FEWEST_ROWS + min(issued + ahead, MOST_ROWS)
        # The window does not fit, so that samples are scattered. What is left of the limit holds neighbours that are
        # wanted later: it is full if those that come within about three times as many rows are fetched together. It is
        # filled slowly, or reading would be slower at first.
        self._request_bytes = REQUEST_BYTES
        issued = max(FEWEST_ROWS, min(issued, 4 * self._pool.limit))
        self._reserved_bytes = issued * row_bytes
        fitting = max(0, limit // row_bytes - issued)
        return issued, 2 * issued + min(3 * fitting, 4 * self._window, MOST_ROWS, self._rows_taken // 2)

    def plan(self, shards: Sequence[int], samples: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        """Adds the next rows.

        Args:
            shards: Indices of shards.
            samples: Indices of the samples within them.
            seeds: Their seeds, where ranges of parts are chosen by them; None reads parts whole.

        Raises:
            StoreUnavailableError: The store returned only errors for too long.
        """
        source, unissued = self._source, self._unissued
        source.open_shards(dict.fromkeys(shards), len(shards))
        for number, (shard, sample) in enumerate(zip(shards, samples, strict=True)):
            row = _Row(shard, sample)
            try:
                if seeds is None:
                    row.reader, row.runs = source.runs(shard, sample)
                else:
                    row.reader, row.runs = source.runs(shard, sample, seeds[number])
            except StoreUnavailableError:
                raise
            except DatasetError as error:
                row.error = error
            except (EnergonDaliError, OSError) as error:
                row.error = source.unreadable(shard, error)
            else:
                for run in row.runs:
                    row.size += run[3]
                unissued.setdefault(shard, {}).setdefault(sample, row)
            self._rows_seen += 1
            self._bytes_seen += row.size
            self._planned.append(row)
        if self._rows_seen > MOST_ROWS:  # a mean over the last rows
            self._rows_seen //= 2
            self._bytes_seen //= 2

    def issue(self, count: int | None = None) -> None:
        """Requests the bytes of the rows that come next.

        Args:
            count: Number of rows, from the next one on; None issues as many as the limits allow.
        """
        caller_sets_depth = count is not None
        if count is None:
            count = self._targets()[0]
        while self._planned and len(self._issued) < count:
            row = self._planned[0]
            if self._issued and row.pieces is None and not self._fits(row.size, caller_sets_depth):
                return
            self._issue_next()

    def _fits(self, size: int, caller_sets_depth: bool = False) -> bool:
        """Returns whether more bytes may be held.

        Args:
            size: Number of bytes.
            caller_sets_depth: Whether the caller says how far to read, for all datasets of a mixture together.
        """
        if not self._is_limited:
            return True
        if caller_sets_depth:
            return self._pool.bytes_held + size <= self._pool.read_ahead_bytes
        return self._held_bytes + size <= self._pool.bytes_per_user

    def _issue_next(self) -> None:
        row = self._planned.popleft()
        self._issued.append(row)
        if row.pieces is None and row.error is None:
            self._request(self._take_group(row))

    def _take_group(self, row: _Row) -> list[_Row]:
        """Returns a row with the planned ones near it in its shard, which one request may cover."""
        unissued = self._unissued.get(row.shard, {})
        if unissued.get(row.sample) is row:  # a sample that comes twice is there once
            del unissued[row.sample]
        group = [row]
        self._hold(row.size)
        total = row.size
        for step in (1, -1) if row.runs and unissued else ():
            last = row
            while total < self._request_bytes:
                for distance in range(step, step * (_NEIGHBOURS + 1), step):
                    found = unissued.get(last.sample + distance)
                    if found is not None:
                        break
                else:
                    break
                far = not found.runs or _gap(last, found, step) > gap_limit(last.size, found.size)
                if far or not self._fits(found.size + self._reserved_bytes):
                    break
                del unissued[found.sample]
                group.append(found)
                self._hold(found.size)
                total += found.size
                last = found
        if not unissued:
            self._unissued.pop(row.shard, None)
        return group

    def _request(self, group: list[_Row]) -> None:
        """Requests the runs of rows of one shard."""
        reader = group[0].reader
        assert reader is not None
        self._pool.count_wanted(sum(row.size for row in group))
        if len(group) == 1 and len(group[0].runs) == 1:
            _, _, offset, size = group[0].runs[0]
            group[0].pieces = [(self._pool.submit(size, _read, reader, offset, size, [(0, size)]), 0)]
            return
        spans = join_runs([run for row in group for run in row.runs])
        offsets = [offset for offset, _ in spans]
        cuts: list[list[tuple[int, int]]] = [[] for _ in spans]
        where: list[list[tuple[int, int]]] = []  # for each run of each row: number of the request, index in it
        for row in group:
            where.append([])
            for _, _, start, size in row.runs:
                number = bisect_right(offsets, start) - 1
                where[-1].append((number, len(cuts[number])))
                cuts[number].append((start - offsets[number], size))
        futures = [
            self._pool.submit(size, _read, reader, offset, size, pieces)
            for (offset, size), pieces in zip(spans, cuts, strict=True)
        ]
        for row, found in zip(group, where, strict=True):
            row.pieces = [(futures[number], index) for number, index in found]

    def is_next_read(self) -> bool:
        """Returns whether the bytes of the next sample are there."""
        if not self._issued:
            return False
        for future, _ in self._issued[0].pieces or ():
            if not future.done() or future.exception() is not None:
                return False
        return True

    def take(self) -> RawSample | DatasetError:
        """Returns the next sample, or the error that prevented reading it; waits for its bytes.

        Raises:
            StoreUnavailableError: The store returned only errors for too long.
            IndexError: No row is planned.
        """
        if not self._issued:
            self._issue_next()
        row = self._issued[0]
        found = row.error or self._assemble(row)
        self._issued.popleft()
        self._rows_taken += 1
        for future, index in row.pieces or ():
            if future.exception() is None:
                future.result()[index] = b""  # what a request brought for other samples stays
        self._hold(-row.size)
        return found

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._pool.hold(self._user, self._held_bytes)

    def _assemble(self, row: _Row) -> RawSample | DatasetError:
        try:
            pieces = [
                (run, future.result()[index], run[2])
                for run, (future, index) in zip(row.runs, row.pieces or (), strict=True)
            ]
            return self._source.assemble(row.shard, row.sample, pieces)
        except StoreUnavailableError:
            raise
        except DatasetError as error:
            return error
        except (EnergonDaliError, OSError) as error:
            return self._source.unreadable(row.shard, error)

    def clear(self) -> None:
        """Forgets all rows, and cancels the requests that have not begun."""
        for row in (*self._issued, *self._planned):
            for future, _ in row.pieces or ():
                future.cancel()
        self._issued.clear()
        self._planned.clear()
        self._unissued.clear()
        self._hold(-self._held_bytes)

    def close(self) -> None:
        """Forgets all rows, and leaves the pool."""
        self.clear()
        if not self._closed:
            self._closed = True
            self._pool.leave(self._user)

    def __del__(self) -> None:
        if not self._closed:  # whoever iterated did not close the iterator
            self.close()


def read_planned(
    source: PlannedSource, shards: Sequence[int], samples: Sequence[int], seeds: Sequence[int] | None = None
) -> list[RawSample | DatasetError]:
    """Returns samples that are all requested at once.

    Args:
        source: The dataset.
        shards: Indices of shards.
        samples: Indices of the samples within them.
        seeds: As in `PlannedReads.plan`.

    Raises:
        StoreUnavailableError: The store returned only errors for too long.
    """
    reads = PlannedReads(source, is_limited=False)
    try:
        reads.plan(shards, samples, seeds)
        reads.issue(len(shards))
        return [reads.take() for _ in shards]
    finally:
        reads.close()


def _read(reader: RangeReader, offset: int, size: int, pieces: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
    """Reads a range, and returns pieces of it, as copies where there are several: none keeps the memory of others.

    Args:
        reader: The file.
        offset: First byte.
        size: Number of bytes.
        pieces: (offset in the range, size).
    """
    data = reader.read_view(offset, size)
    if len(pieces) == 1:
        start, length = pieces[0]
        return [data[start : start + length]]
    return [bytes(data[start : start + length]) for start, length in pieces]


def _gap(row: _Row, neighbour: _Row, step: int) -> int:
    """Returns the number of bytes between two rows, the second of which follows (step 1) or precedes (-1) the first."""
    if step < 0:
        row, neighbour = neighbour, row
    _, _, start, size = row.runs[-1]
    gap = neighbour.runs[0][2] - (start + size)
    return gap if gap >= 0 else sys.maxsize  # samples that are not in the order of the file are not joined


def join_runs(runs: Iterable[Run]) -> list[tuple[int, int]]:
    """Returns (offset, size) of the requests that cover all runs, in the order of the file."""
    requests: list[tuple[int, int]] = []
    before = 0
    for start, size in sorted({(run[2], run[3]) for run in runs}):
        if requests:
            first, length = requests[-1]
            end = max(first + length, start + size)
            gap = start - (first + length)
            if gap <= gap_limit(before, size) and end - first <= max(REQUEST_BYTES, length):
                requests[-1] = (first, end - first)
                before = size
                continue
        requests.append((start, size))
        before = size
    return requests


def gap_limit(size: int, following: int) -> int:
    """Returns the number of bytes between two runs up to which they are joined."""
    return GAP_BYTES + max(size, following) // GAP_SHARE
