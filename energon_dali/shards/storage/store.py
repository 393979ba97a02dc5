"""Stores: what fails and answers as a whole, such as a mounted file system, a web server or a bucket."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

Probe = Callable[[int], object]
"""Reads one byte at an offset of a file that was read before; raises if it cannot."""

_SPENT_FILES = 1000
"""Files per store that are remembered as failing."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class Store:
    """What this process knows about one store.

    Fields are written without a lock: each write is one assignment, and a lost one does no harm.

    Args:
        name: Mount point, or scheme and host or bucket.
    """

    __slots__ = ("last_success", "last_warning", "name", "silent_retries", "spent", "witness")

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_success = float("-inf")
        """When anything was last read from it, on the clock of `retry`."""
        self.witness: tuple[Probe, int] | None = None
        """A file and an offset of it that could be read; reading it again shows whether the store answers."""
        self.spent: dict[str, float] = {}
        """Files of which a request failed for good, and when."""
        self.last_warning = float("-inf")
        self.silent_retries = 0
        """Retries since the last warning."""

    def spend(self, place: str, now: float) -> None:
        """Notes that a request for a file failed for good."""
        self.spent[place] = now
        while len(self.spent) > _SPENT_FILES:
            self.spent.pop(next(iter(self.spent)), None)

    def answers(self) -> bool:
        """Returns whether the file that was read last can still be read; False if none was read yet."""
        witness = self.witness
        if witness is None:
            return False
        probe, offset = witness
        try:
            probe(offset)
        except Exception:
            return False
        return True

    def __repr__(self) -> str:
        return f"Store({self.name!r})"


_stores: dict[str, Store] = {}


def store_of(place: str) -> Store:
    """Returns the store of a local path or URL, the same object for all files of one store."""
    name = _mount_of(os.path.dirname(place)) if "://" not in place else _host_of(place)
    return _stores.get(name) or _stores.setdefault(name, Store(name))


def _host_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@lru_cache(maxsize=4096)
def _mount_of(folder: str) -> str:
    """Returns the mount point of a folder by the kernel's table: asking the file system itself may fail or hang."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            mounts = [_OCTAL.sub(lambda code: chr(int(code[1], 8)), line.split(" ", 5)[4]) for line in table]
    except (OSError, IndexError):
        return folder
    real = os.path.realpath(folder)
    inside = [mount for mount in mounts if real == mount or real.startswith(mount.rstrip("/") + "/")]
    return max(inside, key=len, default="/")
