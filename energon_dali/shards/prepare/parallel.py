"""Runs a function over a list in threads, processes or a Ray cluster, and decides how many processes are worth it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from energon_dali import __version__
from energon_dali.errors import ConfigError, ShardError
from energon_dali.shards.prepare.worker_pool import MAX_DEATHS, WorkerPool
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.request_pool import map_in_threads

T = TypeVar("T")
R = TypeVar("R")

BYTES_PER_WORKER = 256 << 20
"""Scanning shards of this size takes less time than starting a process."""

AHEAD_OF_CLUSTER = 512
"""Results of a cluster that may wait for earlier ones."""
TASKS_PER_CPU = 2
"""Tasks that are handed to the cluster for each of its cores, so that no core waits for the next one."""
_WAIT_SECONDS = 1.0
_KNOCK_SECONDS = 10.0


def give_up(item: object, end: str) -> NoReturn:
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
    ray_address: str | None = None,
    killed: Callable[[T, str], R] = give_up,
    arrived: Callable[[R], object] | None = None,
) -> Iterator[R]:
    """Yields `function(item)` for each item, in order; results that wait for earlier ones are kept in memory.

    A process or task that dies is replaced, and its items are done again.

    Args:
        function: Must be picklable if there are several processes.
        items: Its arguments.
        num_workers: Number of processes; 1 or less runs in this one.
        threads: Items that each process works on at the same time.
        ray_address: Address of a Ray cluster that runs the function instead; see `map_on_ray`.
        killed: Takes an item that keeps ending its process, and how; returns its result. By default it is a ShardError.
        arrived: Receives each result at once, before earlier ones may be done.
    """
    threads = min(threads, len(items))
    num_workers = min(num_workers, -(-len(items) // max(1, threads)))
    done: dict[int, R] = {}
    position = 0
    ahead = 2 * max(1, num_workers) * max(1, threads) if ray_address is None else AHEAD_OF_CLUSTER

    def room() -> int:
        return position + ahead

    results: Iterator[tuple[int, R]]
    if ray_address is not None:
        results = map_on_ray(ray_address, function, items, room, killed)
    elif num_workers > 1:
        results = WorkerPool(function, items, num_workers, threads, killed).results(room)
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


def import_ray() -> Any:
    """Returns the package Ray.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"Preparing on a cluster needs Ray, which cannot be imported ({error}). Run `pip install "
            "'energon-dali[ray]'`, or leave --ray out."
        ) from error
    return ray


def map_on_ray(
    address: str,
    function: Callable[[T], R],
    items: Sequence[T],
    room: Callable[[], int],
    killed: Callable[[T, str], R],
) -> Iterator[tuple[int, R]]:
    """Yields (number of the item, result) as they are done on a Ray cluster.

    Every machine of the cluster needs this package in the same version, and has to reach the dataset: give a URL, or a
    path on a file system that all of them mount. Ray starts a task again whose process or machine died.

    Args:
        address: "auto" for the cluster that this machine belongs to, "ray://HOST:10001" or "HOST:6379" for another,
            "local" for this machine alone. A connection that the program has made is used as it is.
        function: As for `WorkerPool`.
        items: Likewise.
        room: Likewise.
        killed: Likewise.

    Raises:
        ConfigError: Ray is not installed, there is no cluster at the address, or it has another version of this
            package.
    """
    ray = import_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        try:
            _knock(address)
            # A cluster of our own needs no dashboard; others do not take this option.
            own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
            ray.init(address, log_to_driver=False, **own)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"There is no Ray cluster at {address!r}: {error}. Give the address that `ray start --head` "
                "printed, auto for the cluster of this machine, or local."
            ) from error
    waiting: dict[Any, int] = {}
    following = 0
    try:
        task = ray.remote(num_cpus=1, max_retries=MAX_DEATHS - 1)(_apply)
        shared = ray.put(function)
        while following < len(items) or waiting:
            most = TASKS_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while len(waiting) < most and following < min(len(items), room()):
                waiting[task.remote(shared, items[following], __version__)] = following
                following += 1
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=_WAIT_SECONDS)
            for reference in done:
                number = waiting.pop(reference)
                yield number, _result(ray, reference, items[number], killed)
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
        if is_ours:
            ray.shutdown()


def _knock(address: str) -> None:
    """Makes sure that something listens at HOST:PORT; Ray itself would wait for minutes.

    Raises:
        OSError: Nothing does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _KNOCK_SECONDS).close()


def _result(ray: Any, reference: Any, item: T, killed: Callable[[T, str], R]) -> R:
    try:
        found: R = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from None
    except (ray.exceptions.RaySystemError, ray.exceptions.GetTimeoutError):
        raise
    except ray.exceptions.RayError as error:  # the process or the machine died, or was out of memory
        return killed(item, " ".join(str(error).split())[:300] or type(error).__name__)
    return found


def _apply(function: Callable[[T], R], item: T, version: str) -> R:
    """What runs on the cluster."""
    if version != __version__:
        raise ConfigError(
            f"This machine has energon_dali {version} and a machine of the cluster has {__version__}. Install the same "
            "version everywhere."
        )
    return function(item)
