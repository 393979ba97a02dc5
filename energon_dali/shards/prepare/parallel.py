"""Runs a function over a list in several processes, and decides how many of them are worth their start."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

from energon_dali.shards.storage import StoragePath

T = TypeVar("T")
R = TypeVar("R")

BYTES_PER_WORKER = 256 << 20
"""Scanning shards of this size takes less time than starting a process."""


def map_in_order(function: Callable[[T], R], items: Sequence[T], num_workers: int) -> Iterator[R]:
    """Yields `function(item)` for each item, in order; at most two results per process are kept in memory.

    Args:
        function: Must be picklable if there are several processes.
        items: Its arguments.
        num_workers: Number of processes; 1 or less runs in this one.
    """
    num_workers = min(num_workers, len(items))
    if num_workers <= 1:
        yield from map(function, items)
        return
    # Spawned, not forked: the caller may have threads, and CUDA.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= 2 * num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def useful_workers(root: StoragePath, shards: Sequence[str], num_workers: int) -> int:
    """Returns how many processes are worth their start; this process scans small local datasets alone."""
    if num_workers <= 1 or not root.is_local:
        return num_workers
    total = 0
    for shard in shards:
        path = (root / shard).local
        total += path.stat().st_size if path.is_file() else 0
        if total >= num_workers * BYTES_PER_WORKER:
            return num_workers
    return min(num_workers, total // BYTES_PER_WORKER + 1)
