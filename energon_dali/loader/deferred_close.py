"""Closes what a forgotten loader left open: at once, or in a thread of its own if the garbage collector found it.

The garbage collector runs finalizers in the middle of whatever a thread is doing, with its locks held. Closing a
prefetcher waits for its threads, and for locks that they or this very thread hold. So a finalizer that the collector
runs must not close it; it only starts a thread that does. A loader whose last reference is dropped is closed at once.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import os
import threading
import time
import weakref
from typing import Any, Protocol

_EXIT_SECONDS = 15.0
"""How long the end of the process waits for closing that has started."""


class Closeable(Protocol):
    """A prefetcher, or what closes one."""

    def close(self) -> None:
        """Ends its threads and processes."""


_open: dict[int, Closeable] = {}
_closing: dict[int, Closeable] = {}


def close_when_collected(owner: object, prefetcher: Closeable) -> weakref.finalize[..., Any]:
    """Returns the finalizer that closes a prefetcher when its owner is collected; `detach` it to close it yourself.

    What is still open at the end of the process is closed then.

    Args:
        owner: The loader.
        prefetcher: Brings its batches.
    """
    _open[id(prefetcher)] = prefetcher
    finalizer = weakref.finalize(owner, _close_forgotten, prefetcher)
    finalizer.atexit = False  # `_close_all` does that, and waits
    return finalizer


def forget(prefetcher: Closeable) -> None:
    """Notes that a prefetcher is closed by its owner."""
    _open.pop(id(prefetcher), None)


def _close_forgotten(prefetcher: Closeable) -> None:
    number = id(prefetcher)
    _closing[number] = prefetcher
    _open.pop(number, None)
    if _collecting == threading.get_ident():
        try:
            # Takes no lock, as `threading.Thread.start` would.
            _thread.start_new_thread(_close_in_thread, (number,))
            return
        except RuntimeError:  # no more threads: close here rather than never
            pass
    _close(number)


_collecting: int | None = None
"""The thread in which the garbage collector is running."""


def _note_collection(phase: str, info: object) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else None


gc.callbacks.append(_note_collection)


def _close_in_thread(number: int) -> None:
    # A Thread object: closing asks which thread it runs in.
    threading.Thread(target=_close, args=(number,), name="energon-dali-close", daemon=True).start()


def _close(number: int) -> None:
    try:
        _closing[number].close()
    finally:
        _closing.pop(number, None)


@atexit.register
def _close_all() -> None:
    while _open:
        _open.popitem()[1].close()
    end = time.monotonic() + _EXIT_SECONDS
    while _closing and time.monotonic() < end:
        time.sleep(0.01)


def _after_fork() -> None:
    _closing.clear()  # their threads are the parent's


os.register_at_fork(after_in_child=_after_fork)
