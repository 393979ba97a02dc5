"""Runs a function over a list in several processes, and gives the results in order, without hoarding them."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_in_order(function: Callable[[T], R], items: Sequence[T], num_workers: int) -> Iterator[R]:
    """Yields `function(item)` for each item, in order; at most two results per process wait in memory.

    Args:
        function: Picklable where there are several processes.
        items: Its arguments.
        num_workers: Processes; 1 or less runs in this one.
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
