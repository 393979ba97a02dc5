"""Puts Ctrl-C off while processes are started or ended: an exception in the middle would lose one of them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Runs a block to its end before Python's handlers of SIGINT and SIGTERM run, which raise exceptions there.

    Blocking the signals would not do: another thread takes them, and Python runs the handlers in the main thread all
    the same. In other threads nothing needs to be done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):  # neither the system's default, nor ignored, nor of a library in C
                handlers[number] = handler
                signal.signal(number, lambda signum, frame: came.append((signum, frame)))
        yield
    finally:
        for restored, handler in handlers.items():
            signal.signal(restored, handler)
        for signum, frame in came:
            handlers[signum](signum, frame)
