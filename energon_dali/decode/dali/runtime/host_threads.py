"""The threads of this process that do on the CPU what DALI does not: PIL, PyAV, front ends, and finishing images."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

NUM_THREADS = 2
_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def host_threads() -> ThreadPoolExecutor:
    """Returns the threads, which are started when they are first needed."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="energon-dali-pil")
        return _pool


def _forget_threads() -> None:
    """After a fork: they exist only in the parent."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
