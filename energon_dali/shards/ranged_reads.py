"""Reads many small ranges of remote files in few parallel requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context

from energon_dali.shards.index.extents import PartRun
from energon_dali.shards.storage.path import RangeReader

GAP_BYTES = 256 << 10
"""Bytes between two runs, up to which one request is cheaper than two: what a store sends during one latency."""
REQUEST_BYTES = 8 << 20
"""Runs are joined up to this size of a request."""
THREADS = 8

Response = tuple[Callable[[], bytes], int]
"""(function that waits for the bytes, their offset in the file)."""
Requested = list[tuple[int, list[tuple[PartRun, Response]]]]
"""(position of the sample among all that are read, its runs with their responses)."""


class RangedReads:
    """Joins runs that are near each other, and requests them from several threads.

    Args:
        threads: Number of simultaneous requests.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def request(self, reader: RangeReader, samples: list[tuple[int, list[PartRun]]]) -> Requested:
        """Starts to read the runs of samples of one file, and returns where their bytes will be found.

        Args:
            reader: The file.
            samples: (position of the sample among all that are read, its runs).
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="energon-dali-read")
        responses: dict[int, Future[bytes]] = {}
        for start, size in join_runs([run for _, runs in samples for run in runs]):
            # Each in a copy of the context, because retries belong to the loader that reads.
            future = self._pool.submit(copy_context().run, reader.read_at, start, size)
            responses[start] = future
        starts = sorted(responses)
        return [(position, [(run, _response(run, starts, responses)) for run in runs]) for position, runs in samples]

    def close(self) -> None:
        """Stops the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def join_runs(runs: list[PartRun]) -> list[tuple[int, int]]:
    """Returns (offset, size) of the requests that cover all runs, in the order of the file."""
    requests: list[tuple[int, int]] = []
    for start, size in sorted({(run[2], run[3]) for run in runs}):
        if requests:
            before, length = requests[-1]
            end = max(before + length, start + size)
            if start - (before + length) <= GAP_BYTES and end - before <= max(REQUEST_BYTES, length):
                requests[-1] = (before, end - before)
                continue
        requests.append((start, size))
    return requests


def _response(run: PartRun, starts: list[int], responses: dict[int, Future[bytes]]) -> Response:
    start = starts[bisect_right(starts, run[2]) - 1]
    return responses[start].result, start
