"""Reads samples in an order that is known ahead: requests are in flight before their samples are wanted.

The order is integers, so the next rows are known as far ahead as one likes, and the index tells which bytes they need.
A reader plans rows, requests the bytes of those that come soon, and hands the samples out in order:

    planned   the index told which bytes the sample needs
    issued    its bytes were requested: they are waited for, in flight, or here
    taken     the sample was returned

A request covers the wanted samples that are near each other in a shard, also those that are wanted later, if they are
planned already. So shards are streamed in large requests where the order keeps to a window that fits into the limit of
memory, and samples that are scattered more widely are requested one by one.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from energon_dali.errors import DatasetError, EnergonDaliError, StoreUnavailableError
from energon_dali.shards.index.extents import PartRun
from energon_dali.shards.raw_sample import RawSample
from energon_dali.shards.storage.path import RangeReader
from energon_dali.shards.storage.request_pool import RequestPool
from energon_dali.shards.storage.store import current_scope

REQUEST_BYTES = 4 << 20
"""Runs are joined up to this size of a request."""

GAP_BYTES = 1536
GAP_SHARE = 10
"""Two runs are joined if there are at most GAP_BYTES and a tenth of the larger one between them. So at most a fifth
more is fetched than is wanted of large samples, and four times as much of samples of 200 bytes, whose request costs far
more than their bytes."""

ISSUED_BYTES = 32 << 20
"""Bytes that are requested before they are wanted, where they fit into the limit."""

FEWEST_ROWS = 16
MOST_ROWS = 65_536
"""Limits of the number of rows that are planned."""

_NEIGHBOURS = 3
"""How many samples further the next wanted one may be to be joined."""


class PlannedSource(Protocol):
    """What reads ahead needs to know of a dataset."""

    def open_shards(self, numbers: Iterable[int], num_samples: int) -> None:
        """Prepares for planning samples of shards, whose index is fetched together. Errors are raised by `runs`.

        Args:
            numbers: Indices of the shards.
            num_samples: Number of samples.
        """

    def runs(self, shard: int, sample: int) -> tuple[RangeReader, list[PartRun]]:
        """Returns the file of a sample, and what has to be read of it.

        Raises:
            DatasetError: The shard cannot be opened, or has no such sample.
        """

    def assemble(self, shard: int, sample: int, pieces: Sequence[tuple[PartRun, bytes, int]]) -> RawSample:
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


class _Request:
    """Bytes of one file that were requested."""

    __slots__ = ("future", "is_shared", "offset")

    def __init__(self, offset: int, future: Future[bytes], is_shared: bool) -> None:
        self.offset = offset
        self.future = future
        self.is_shared = is_shared


class _Row:
    """A sample that is planned."""

    __slots__ = ("error", "reader", "requests", "runs", "sample", "shard", "size")

    def __init__(self, shard: int, sample: int) -> None:
        self.shard = shard
        self.sample = sample
        self.reader: RangeReader | None = None
        self.runs: list[PartRun] = []
        self.size = 0
        self.requests: list[_Request] | None = None
        self.error: DatasetError | None = None


class PlannedReads:
    """Reads the samples of one stream of a source, in a planned order. Not thread-safe.

    Args:
        source: The dataset.
        window: Window of the order's shuffle, in samples. With the lanes, it tells how far to plan for large requests.
        lanes: Number of its interleave lanes.
    """

    def __init__(self, source: PlannedSource, window: int = 0, lanes: int = 1) -> None:
        self._source = source
        self._window = window
        self._lanes = lanes
        self._planned: deque[_Row] = deque()
        self._issued: deque[_Row] = deque()
        self._unissued: dict[int, dict[int, _Row]] = {}
        self._issued_bytes = 0
        self._rows_seen = 0
        self._bytes_seen = 0
        self._pool: RequestPool = current_scope().requests
        self._pool.join()
        self._closed = False

    def __len__(self) -> int:
        """Returns the number of rows that are planned and not taken."""
        return len(self._planned) + len(self._issued)

    def rows_wanted(self) -> int:
        """Returns how many more rows to plan now; 0 if enough are planned."""
        issued, planned = self._targets()
        missing = planned - len(self)
        # Planned in groups, which costs less than one by one.
        return missing if 8 * missing >= planned or len(self._issued) + len(self._planned) < issued else 0

    def _targets(self) -> tuple[int, int]:
        """Returns (rows to have issued, rows to have planned), the second at least as large as the first."""
        row_bytes = max(512, self._bytes_seen // self._rows_seen if self._rows_seen else 64 << 10)
        limit = self._pool.bytes_per_user
        issued = min(ISSUED_BYTES, limit // 2) // row_bytes
        # The neighbours of a sample in its shard come within four windows. So if these are planned, and what the lanes
        # need for requests of some size, runs are streamed whole.
        spare = limit // 2 - 4 * self._window * row_bytes
        if spare > 0 and 4 * self._window <= MOST_ROWS:
            ahead = 4 * self._window + min(spare, 2 * self._lanes * REQUEST_BYTES) // row_bytes
            return max(FEWEST_ROWS, min(issued, MOST_ROWS // 16)), FEWEST_ROWS + min(issued + ahead, MOST_ROWS)
        issued = max(FEWEST_ROWS, min(issued, 4 * self._pool.limit))
        return issued, 2 * issued

    def plan(self, shards: Sequence[int], samples: Sequence[int]) -> None:
        """Adds the next rows.

        Args:
            shards: Indices of shards.
            samples: Indices of the samples within them.

        Raises:
            StoreUnavailableError: The store returned only errors for too long.
        """
        source, unissued = self._source, self._unissued
        source.open_shards(dict.fromkeys(shards), len(shards))
        for shard, sample in zip(shards, samples, strict=True):
            row = _Row(shard, sample)
            try:
                row.reader, row.runs = source.runs(shard, sample)
            except StoreUnavailableError:
                raise
            except DatasetError as error:
                row.error = error
            else:
                for run in row.runs:
                    row.size += run[3]
                unissued.setdefault(shard, {})[sample] = row
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
        if count is None:
            count = self._targets()[0]
            limit, held = self._pool.bytes_per_user, self._issued_bytes
        else:
            limit, held = self._pool.read_ahead_bytes, self._pool.bytes_held
        while self._planned and len(self._issued) < count:
            held += self._planned[0].size
            if self._issued and held > limit:
                return
            self._issue_next()

    def _issue_next(self) -> None:
        row = self._planned.popleft()
        self._hold(row.size)
        self._issued.append(row)
        if row.requests is None and row.error is None:
            self._request(self._take_group(row))

    def _take_group(self, row: _Row) -> list[_Row]:
        """Returns a row with the planned ones near it in its shard, which one request may cover."""
        unissued = self._unissued[row.shard]
        if unissued.get(row.sample) is row:
            del unissued[row.sample]
        group = [row]
        if row.runs and unissued:
            total = row.size
            for step in (1, -1):
                last = row
                while total < REQUEST_BYTES:
                    for distance in range(step, step * (_NEIGHBOURS + 1), step):
                        found = unissued.get(last.sample + distance)
                        if found is not None:
                            break
                    else:
                        break
                    if not found.runs or _gap(last, found, step) > _gap_limit(last.size, found.size):
                        break
                    del unissued[found.sample]
                    group.append(found)
                    total += found.size
                    last = found
        if not unissued:
            del self._unissued[row.shard]
        return group

    def _request(self, group: list[_Row]) -> None:
        """Requests the runs of rows of one shard."""
        reader = group[0].reader
        assert reader is not None
        if len(group) == 1 and len(group[0].runs) == 1:
            _, _, offset, size = group[0].runs[0]
            spans = [(offset, size)]
        else:
            spans = join_runs([run for row in group for run in row.runs])
        submit, is_shared = self._pool.submit, len(group) > 1
        requests = [_Request(offset, submit(reader.read_at, offset, size), is_shared) for offset, size in spans]
        self._pool.count_wanted(sum(row.size for row in group))
        offsets = [request.offset for request in requests]
        for row in group:
            row.requests = [requests[bisect_right(offsets, run[2]) - 1] for run in row.runs]

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
        self._hold(-row.size)
        return found

    def _hold(self, size: int) -> None:
        self._issued_bytes += size
        self._pool.hold(size)

    def _assemble(self, row: _Row) -> RawSample | DatasetError:
        requests = row.requests or []
        try:
            pieces = [
                (run, request.future.result(), request.offset) for run, request in zip(row.runs, requests, strict=True)
            ]
            sample = self._source.assemble(row.shard, row.sample, pieces)
        except StoreUnavailableError:
            raise
        except DatasetError as error:
            return error
        except (EnergonDaliError, OSError) as error:
            return self._source.unreadable(row.shard, error)
        if requests and requests[0].is_shared:
            # Views would keep the bytes of all samples of the request.
            parts = sample.parts
            for name, part in parts.items():
                if type(part) is memoryview:
                    parts[name] = bytes(part)
        return sample

    def clear(self) -> None:
        """Forgets all rows, and cancels the requests that have not begun."""
        for row in (*self._issued, *self._planned):
            for request in row.requests or ():
                request.future.cancel()
        self._issued.clear()
        self._planned.clear()
        self._unissued.clear()
        self._hold(-self._issued_bytes)

    def close(self) -> None:
        """Forgets all rows, and leaves the threads to others."""
        self.clear()
        if not self._closed:
            self._closed = True
            self._pool.leave()


def read_planned(
    source: PlannedSource, shards: Sequence[int], samples: Sequence[int]
) -> list[RawSample | DatasetError]:
    """Returns samples that are all requested at once.

    Args:
        source: The dataset.
        shards: Indices of shards.
        samples: Indices of the samples within them.

    Raises:
        StoreUnavailableError: The store returned only errors for too long.
    """
    reads = PlannedReads(source)
    try:
        reads.plan(shards, samples)
        reads.issue(len(shards))
        return [reads.take() for _ in shards]
    finally:
        reads.close()


def join_runs(runs: Iterable[PartRun]) -> list[tuple[int, int]]:
    """Returns (offset, size) of the requests that cover all runs, in the order of the file."""
    requests: list[tuple[int, int]] = []
    before = 0
    for start, size in sorted({(run[2], run[3]) for run in runs}):
        if requests:
            first, length = requests[-1]
            end = max(first + length, start + size)
            gap = start - (first + length)
            if gap <= _gap_limit(before, size) and end - first <= max(REQUEST_BYTES, length):
                requests[-1] = (first, end - first)
                before = size
                continue
        requests.append((start, size))
        before = size
    return requests


def _gap(row: _Row, neighbour: _Row, step: int) -> int:
    """Returns the number of bytes between two rows, the second of which follows (step 1) or precedes (-1) the first."""
    if step < 0:
        row, neighbour = neighbour, row
    _, _, start, size = row.runs[-1]
    gap = neighbour.runs[0][2] - (start + size)
    return gap if gap >= 0 else sys.maxsize  # samples that are not in the order of the file are not joined


def _gap_limit(size: int, following: int) -> int:
    """Returns the number of bytes between two runs up to which they are joined."""
    return GAP_BYTES + max(size, following) // GAP_SHARE
