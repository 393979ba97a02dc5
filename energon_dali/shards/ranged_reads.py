"""Reads many small pieces of remote files in few, parallel requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context

from energon_dali.shards.index.extents import Piece
from energon_dali.shards.storage.path import RangeReader

GAP_BYTES = 256 << 10
"""Bytes between two pieces up to which one request is cheaper than two: about what a store sends in its latency."""
REQUEST_BYTES = 8 << 20
"""A request does not grow beyond this by joining pieces."""
THREADS = 8

Answer = tuple[Callable[[], bytes], int]
"""(function that waits for the bytes, their offset in the file)."""
Asked = list[tuple[int, list[tuple[Piece, Answer]]]]
"""(position of the sample among all that are read, its pieces with their answers)."""


class RangedReads:
    """Joins pieces that are near each other and asks for them in several threads.

    Args:
        threads: Requests at a time.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def ask(self, reader: RangeReader, samples: list[tuple[int, list[Piece]]]) -> Asked:
        """Begins to read the pieces of samples of one file, and returns what gives their bytes.

        Args:
            reader: The file.
            samples: (position of the sample among all that are read, its pieces).
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="energon-dali-read")
        answers = {}
        for start, size in join_pieces([piece for _, pieces in samples for piece in pieces]):
            # In a copy of the context each: retries belong to the loader that asks.
            future = self._pool.submit(copy_context().run, reader.read_at, start, size)
            answers[start] = (start + size, future)
        starts = sorted(answers)
        return [
            (position, [(piece, _answer(piece, starts, answers)) for piece in pieces]) for position, pieces in samples
        ]

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def join_pieces(pieces: list[Piece]) -> list[tuple[int, int]]:
    """Returns (offset, size) of the requests that cover all pieces, in the order of the file."""
    requests: list[tuple[int, int]] = []
    for start, size in sorted({(piece[2], piece[3]) for piece in pieces}):
        if requests:
            before, length = requests[-1]
            end = max(before + length, start + size)
            if start - (before + length) <= GAP_BYTES and end - before <= max(REQUEST_BYTES, length):
                requests[-1] = (before, end - before)
                continue
        requests.append((start, size))
    return requests


def _answer(piece: Piece, starts: list[int], answers: dict[int, tuple[int, Future[bytes]]]) -> Answer:
    start = starts[bisect_right(starts, piece[2]) - 1]
    return answers[start][1].result, start
