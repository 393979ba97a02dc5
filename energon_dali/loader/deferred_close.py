"""Closes what a forgotten loader left open: at once, or in a thread of its own where the garbage collector found it.

The garbage collector runs finalizers in the middle of whatever a thread is doing, locks held. Closing a delivery waits
for its threads, and for locks that they hold or that this very thread holds. So a finalizer that the collector runs
must not close it; it only starts a thread that does. A loader whose last reference is dropped is closed at once.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.loader.delivery import Delivery

_EXIT_SECONDS = 15.0
"""How long the end of the process waits for closing that has begun."""

_open: dict[int, Delivery] = {}
_closing: dict[int, Delivery] = {}


def close_when_collected(owner: object, delivery: Delivery) -> weakref.finalize[..., Any]:
    """Returns the finalizer that closes a delivery when its owner is collected; `detach` it to close it oneself.

    What is open at the end of the process is closed there.

    Args:
        owner: The loader.
        delivery: What brings its batches.
    """
    _open[id(delivery)] = delivery
    end = weakref.finalize(owner, _owner_is_gone, delivery)
    end.atexit = False  # `_close_all` does that, and waits
    return end


def forget(delivery: Delivery) -> None:
    """Notes that a delivery is closed by its owner."""
    _open.pop(id(delivery), None)


def _owner_is_gone(delivery: Delivery) -> None:
    number = id(delivery)
    _closing[number] = delivery
    _open.pop(number, None)
    if _collecting == threading.get_ident():
        try:
            # Takes no lock, as `threading.Thread.start` would.
            _thread.start_new_thread(_close_in_thread, (number,))
            return
        except RuntimeError:  # no more threads: better here than never
            pass
    _close(number)


_collecting: int | None = None
"""The thread in which the garbage collector runs."""


def _note_collection(phase: str, info: object) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else None


gc.callbacks.append(_note_collection)


def _close_in_thread(number: int) -> None:
    # A thread with a name: what closes may ask which thread it runs in.
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
