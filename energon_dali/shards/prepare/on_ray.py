"""Scans shards on a Ray cluster. Ray starts a task again whose process or machine died."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeVar

from energon_dali import __version__
from energon_dali.errors import ConfigError
from energon_dali.shards.prepare.worker_pool import MAX_DEATHS

T = TypeVar("T")
R = TypeVar("R")

TASKS_PER_CPU = 2
"""Tasks that are handed to the cluster for each of its cores, so that no core waits for the next one."""
_WAIT_SECONDS = 1.0
_KNOCK_SECONDS = 10.0


class RayRunner:
    """Applies a function to items on a Ray cluster; a `Runner`.

    Every machine of the cluster needs this package in the same version, and has to reach the dataset: give a URL, or a
    path on a file system that all of them mount.

    Args:
        address: "auto" for the cluster that this machine belongs to, "ray://HOST:10001" or "HOST:6379" for another,
            "local" for this machine alone. A connection that the program has made is used as it is.

    Raises:
        ConfigError: Ray is not installed.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray  # noqa: F401 - lazy: ray is an extra
        except ImportError as error:
            raise ConfigError(
                f"Preparing on a cluster needs Ray, which cannot be imported ({error}). Run `pip install "
                "'energon-dali[ray]'`, or leave --ray out."
            ) from error
        self._address = address

    def __call__(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        room: Callable[[], int],
        killed: Callable[[T, str], R],
    ) -> Iterator[tuple[int, R]]:
        """Yields (number of the item, result) as they are done; arguments as for `WorkerPool`.

        Raises:
            ConfigError: There is no cluster at the address, or it has another version of this package.
        """
        ray: Any = import_module("ray")
        is_ours = not ray.is_initialized()
        if is_ours:
            try:
                _knock(self._address)
                # A cluster of our own needs no dashboard; others do not take this option.
                own: dict[str, Any] = {"include_dashboard": False} if self._address == "local" else {}
                ray.init(self._address, log_to_driver=False, **own)
            except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"There is no Ray cluster at {self._address!r}: {error}. Give the address that `ray start --head` "
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
