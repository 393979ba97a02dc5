"""What a process holds: threads, descriptors and shared memory, so that those that a case leaves behind can be named.

A thread that is about to end is no leftover, however long a busy machine takes to run it. So what is found is looked
for again, and counts only if it is still there after a time in which every machine would have ended it.
"""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from energon_dali.decode.dali.runtime import host_threads

T = TypeVar("T")

PATIENCE_SECONDS = 120.0
"""How long to wait for what is about to end, before it counts as left behind."""

_KEPT_THREADS = {"thread energon-dali-pil": host_threads.NUM_THREADS}
"""Threads that a process keeps. A pool starts one when all others are busy, so their number depends on the machine."""
_NUMBERS = re.compile(r"[-_ ]*\d+")
_SHARED_MEMORY = ("/memfd:", "/dev/shm/", "/SYSV")


def held() -> Counter[str]:
    """Returns what this process holds: how many threads of each name, descriptors of each kind, and so on."""
    gc.collect()
    found = Counter(f"thread {_NUMBERS.sub('', thread.name)}" for thread in threading.enumerate())
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the folder itself
            target = os.readlink(f"/proc/self/fd/{name}")
            is_file = target.startswith("/") and not target.startswith(_SHARED_MEMORY)
            found[f"descriptor of {'a file' if is_file else _NUMBERS.sub('', target)}"] += 1
    for line in Path("/proc/self/maps").read_text().splitlines():
        mapped = line.split(None, 5)[5:]
        if mapped and mapped[0].startswith(_SHARED_MEMORY):
            found[f"shared memory {_NUMBERS.sub('', mapped[0])}"] += 1
    return found


def left_since(before: Counter[str], patience_seconds: float = PATIENCE_SECONDS) -> Counter[str]:
    """Returns what this process holds in addition to what it held, after waiting for what is about to end.

    Args:
        before: What it held.
        patience_seconds: Longest time to wait.
    """
    allowed = before | Counter(_KEPT_THREADS)
    return awaited(lambda: held() - allowed, patience_seconds)


def awaited(find: Callable[[], T], patience_seconds: float) -> T:
    """Returns what `find` finds: nothing as soon as it finds nothing, or else what it finds when the time is over."""
    end = time.monotonic() + patience_seconds
    while (found := find()) and time.monotonic() < end:
        time.sleep(0.05)
    return found
