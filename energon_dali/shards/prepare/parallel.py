"""Runs a function over a list in threads, processes or a cluster, and decides how many processes are worth it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from energon_dali.errors import ShardError
from energon_dali.shards.prepare.worker_pool import WorkerPool
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.request_pool import map_in_threads

T = TypeVar("T")
R = TypeVar("R")

BYTES_PER_WORKER = 256 << 20
"""Scanning shards of this size takes less time than starting a process."""

AHEAD_OF_CLUSTER = 512
"""Results of a cluster that may wait for earlier ones."""


class Runner(Protocol):
    """Applies a function to items somewhere, as `map_as_done` does."""

    def __call__(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        room: Callable[[], int],
        killed: Callable[[T, str], R],
        /,
    ) -> Iterator[tuple[int, R]]:
        """Yields (number of the item, result) as they are done; arguments as for `WorkerPool`."""


def give_up(item: object, end: str) -> object:
    """Raises the error for an item that keeps ending its process.

    Raises:
        ShardError: Always.
    """
    raise ShardError(killed_message(item, end), str(item))


def killed_message(item: object, end: str) -> str:
    """Returns the message for an item that keeps ending its process."""
    return (
        f"{item} ended each process that worked on it ({end}). If memory ran out, give the machine more or use fewer "
        "processes. Otherwise check this file, or leave it out."
    )


def map_in_order(
    function: Callable[[T], R],
    items: Sequence[T],
    num_workers: int,
    *,
    threads: int = 1,
    run: Runner | None = None,
    killed: Callable[[T, str], R] | None = None,
    arrived: Callable[[R], object] | None = None,
) -> Iterator[R]:
    """Yields `function(item)` for each item, in order; results that wait for earlier ones are kept in memory.

    A process that dies is replaced, and its items are done again.

    Args:
        function: Must be picklable if there are several processes.
        items: Its arguments.
        num_workers: Number of processes; 1 or less runs in this one.
        threads: Items that each process works on at the same time.
        run: Runs the function elsewhere instead.
        killed: Takes an item that keeps ending its process, and how; returns its result. By default it is a ShardError.
        arrived: Receives each result at once, before earlier ones may be done.
    """
    threads = min(threads, len(items))
    num_workers = min(num_workers, -(-len(items) // max(1, threads)))
    done: dict[int, R] = {}
    position = 0
    ahead = 2 * max(1, num_workers) * max(1, threads) if run is None else AHEAD_OF_CLUSTER

    def room() -> int:
        return position + ahead

    fallback: Callable[[T, str], R] = killed or give_up  # type: ignore[assignment]
    results: Iterator[tuple[int, R]]
    if run is not None:
        results = run(function, items, room, fallback)
    elif num_workers > 1:
        results = WorkerPool(function, items, num_workers, threads, fallback).results(room)
    elif threads > 1:
        results = enumerate(map_in_threads(function, items, threads, room))
    else:
        results = enumerate(map(function, items))
    try:
        for number, result in results:
            if arrived is not None:
                arrived(result)
            done[number] = result
            while position in done:
                yield done.pop(position)
                position += 1
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()


def usable_workers(asked: int) -> int:
    """Returns the number of processes: at most the CPU cores that this process may use."""
    return max(1, min(asked, len(os.sched_getaffinity(0))))


def useful_workers(root: StoragePath, shards: Sequence[str], num_workers: int) -> int:
    """Returns how many processes are worth their start; this process scans small local datasets alone."""
    if num_workers <= 1 or not root.is_local:
        return num_workers
    return min(num_workers, workers_worthwhile(local_bytes(root, shards, num_workers * BYTES_PER_WORKER)))


def workers_worthwhile(size: int) -> int:
    """Returns how many processes are worth their start for shards of a size in bytes, at least 1."""
    return size // BYTES_PER_WORKER + 1


def local_bytes(root: StoragePath, shards: Sequence[str], enough: int) -> int:
    """Returns the size of local shards in bytes; stops counting when it is `enough`."""
    total = 0
    for shard in shards:
        path = (root / shard).local
        total += path.stat().st_size if path.is_file() else 0
        if total >= enough:
            return enough
    return total
