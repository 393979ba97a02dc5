"""What a process holds: threads, descriptors and shared memory, so that those that a case leaves behind can be named.

A thread that is about to end is no leftover, however long a busy machine takes to run it. So what is found is looked
for again, and counts only if it is still there after a time in which every machine would have ended it.

A connection to an object store is no leftover while its client keeps it for later requests: how many it keeps depends
on how many requests met in time, and obstore closes them only 90 to 180 seconds after their last use. So the clients
are dropped, which ends the connections that are theirs at once; one that stays open after that is a leftover.
"""

from __future__ import annotations

import gc
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from energon_dali.decode.dali.runtime import host_decoding
from energon_dali.shards.storage import buckets

T = TypeVar("T")

PATIENCE_SECONDS = 120.0
"""How long to wait for what is about to end, before it counts as left behind."""

_KEPT_THREADS = {"thread energon-dali-pil": host_decoding.num_host_threads()}
"""Threads that a process keeps. A pool starts one when all others are busy, so their number depends on the machine."""
_TO_STORE = "connection to an object store"
_NUMBERS = re.compile(r"[-_ ]*\d+")
_SHARED_MEMORY = ("/memfd:", "/dev/shm/", "/SYSV")


def held() -> Counter[str]:
    """Returns what this process holds: how many threads of each name, descriptors of each kind, and so on."""
    gc.collect()
    found = Counter(f"thread {_NUMBERS.sub('', thread.name)}" for thread in threading.enumerate())
    stores = _store_addresses()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the folder itself
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:") and _peer(int(name)) in stores:
                found[_TO_STORE] += 1
                continue
            is_file = target.startswith("/") and not target.startswith(_SHARED_MEMORY)
            found[f"descriptor of {'a file' if is_file else _NUMBERS.sub('', target)}"] += 1
    for line in Path("/proc/self/maps").read_text().splitlines():
        mapped = line.split(None, 5)[5:]
        if mapped and mapped[0].startswith(_SHARED_MEMORY):
            found[f"shared memory {_NUMBERS.sub('', mapped[0])}"] += 1
    return found


def left_since(before: Counter[str], patience_seconds: float = PATIENCE_SECONDS) -> Counter[str]:
    """Returns what this process holds in addition to what it held, after waiting for what is about to end.

    Clients of object stores are dropped; no connection to a store may be left then, whatever was open before.

    Args:
        before: What it held.
        patience_seconds: Longest time to wait.
    """
    allowed = before | Counter(_KEPT_THREADS)
    del allowed[_TO_STORE]

    def find() -> Counter[str]:
        for bucket in buckets._buckets.values():
            bucket._stores.clear()
        return held() - allowed

    return awaited(find, patience_seconds)


def _store_addresses() -> set[tuple[str, int]]:
    """Returns the (host, port) of the servers of stores that this process opened, as far as they are configured."""
    opened = buckets._buckets.values()
    urls = [urlsplit(getattr(bucket._access, "endpoint", bucket.url) or "") for bucket in opened]
    return {(url.hostname, url.port) for url in urls if url.hostname and url.port}


def _peer(descriptor: int) -> tuple[str, int] | None:
    """Returns the (host, port) that a socket is connected to by TCP; None if it is not."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        peer = copy.getpeername()
        return peer[:2] if isinstance(peer, tuple) else None
    return None


def awaited(find: Callable[[], T], patience_seconds: float) -> T:
    """Returns what `find` finds: nothing as soon as it finds nothing, or else what it finds when the time is over."""
    end = time.monotonic() + patience_seconds
    while (found := find()) and time.monotonic() < end:
        time.sleep(0.05)
    return found
