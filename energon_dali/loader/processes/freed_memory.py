"""Keeps freed memory in a child process, so that the next batch does not wait for fresh pages."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's mallopt."""
_KEPT_BYTES = 1 << 30
"""Freed memory at the end of the heap that stays with the process; more goes back to the system."""
_PAD_BYTES = 64 << 20
_SETTINGS_OF_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Lets glibc's allocator keep what this process frees; returns whether it does.

    By default glibc gives large buffers back to the system, and the system clears each page that a new one touches. For
    batches of tens of megabytes this takes longer than filling them. A process keeps at most what it once needed at the
    same time. Other C libraries, and users who set the allocator's variables themselves, are left alone.
    """
    if any(name in os.environ for name in _SETTINGS_OF_USERS):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all(
        set_option(name, value) == 1
        for name, value in ((_MMAP_THRESHOLD, _KEPT_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES), (_TOP_PAD, _PAD_BYTES))
    )
