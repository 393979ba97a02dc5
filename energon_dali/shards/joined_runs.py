"""Which runs of bytes one request covers."""

from __future__ import annotations

from collections.abc import Iterable

from energon_dali.shards.index.extents import PartRun

REQUEST_BYTES = 4 << 20
"""Runs are joined up to this size of a request."""

GAP_BYTES = 1536
GAP_SHARE = 10
"""Two runs are joined if at most GAP_BYTES and a tenth of the larger run are between them. That is little next to large
samples. Next to small ones it may be several times their size, because a request costs far more than these bytes."""


def join_runs(runs: Iterable[PartRun]) -> list[tuple[int, int]]:
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
