"""Stores: what fails and recovers as a whole, such as a mounted file system, a web server or a bucket."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

Probe = Callable[[int], object]
"""Reads one byte at an offset of a file that was read before; raises if it cannot."""

_FAILED_FILES = 1000
"""Failed files that are remembered per store."""

_PREPARED = "/.nv-meta/"
_OCTAL = re.compile(r"\\([0-7]{3})")


class Clock:
    """Time and pauses, in one place so that tests can replace them."""

    now = staticmethod(time.monotonic)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Pauses until the time is over or `stop` is set; returns whether it is set."""
        return stop.wait(seconds)


clock = Clock()


class Store:
    """What this process knows about one store.

    Fields are written without a lock: each write is one assignment, and losing one does no harm.

    Args:
        name: Mount point, or scheme and host or bucket.
    """

    __slots__ = ("_latest", "_other", "failed_files", "last_success", "last_warning", "name", "silent_retries")

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_success = float("-inf")
        """When anything was last read from it, on `clock`."""
        self._latest: tuple[str, Probe, int] | None = None
        self._other: tuple[str, Probe, int] | None = None
        self.failed_files: dict[str, float] = {}
        """Files for which all attempts of a request failed, and when."""
        self.last_warning = float("-inf")
        self.silent_retries = 0
        """Retries since the last warning."""

    def succeeded(self, path: str, probe: Probe, offset: int) -> None:
        """Records that a file could be read at an offset.

        Args:
            path: Local path or URL of the file.
            probe: Reads it again.
            offset: Where it was read, in bytes.
        """
        self.last_success = clock.now()
        latest = self._latest
        if latest is not None and latest[0] != path:
            if _PREPARED in path:  # a small file, which a cache may still hold when nothing else can be read
                return
            if _PREPARED not in latest[0]:
                self._other = latest
        self._latest = path, probe, offset

    def forget_successes(self) -> None:
        """Forgets which files could be read."""
        self._latest = self._other = None

    def mark_failed(self, path: str, now: float) -> None:
        """Records that all attempts of a request for a file failed."""
        self.failed_files[path] = now
        while len(self.failed_files) > _FAILED_FILES:
            self.failed_files.pop(next(iter(self.failed_files)), None)

    def responds(self, now: float) -> bool:
        """Returns whether one of the last two files that were read can be read again; False if none was read yet."""
        for witness in (self._other, self._latest):
            if witness is not None:
                _, probe, offset = witness
                try:
                    probe(offset)
                except Exception:
                    continue
                self.last_success = now
                return True
        return False

    def __repr__(self) -> str:
        return f"Store({self.name!r})"


_stores: dict[str, Store] = {}


def store_of(path: str) -> Store:
    """Returns the store of a local path or URL, the same object for all files of one store."""
    name = _mount_of(os.path.dirname(path)) if "://" not in path else _host_of(path)
    return _stores.get(name) or _stores.setdefault(name, Store(name))


def _host_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@lru_cache(maxsize=4096)
def _mount_of(folder: str) -> str:
    """Returns the mount point of a folder from the kernel's table: asking the file system itself may fail or hang."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            mounts = [_OCTAL.sub(lambda code: chr(int(code[1], 8)), line.split(" ", 5)[4]) for line in table]
    except (OSError, IndexError):
        return folder
    real = os.path.realpath(folder)
    inside = [mount for mount in mounts if real == mount or real.startswith(mount.rstrip("/") + "/")]
    return max(inside, key=len, default="/")
