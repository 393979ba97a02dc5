"""A clock for time limits of tests: it stops while the machine stalls, and slows down while processors are busy."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

_TICK_SECONDS = 0.01
_MAX_PROCESSORS = 16
"""Most threads to start, so that they do not keep the interpreter busy on a large machine."""


class RunningTime:
    """Context manager that counts the seconds in which every processor could run all of its work.

    A thread on each processor (of the first 16) sleeps for one tick at a time. If it wakes up late, because of a stall
    or other programs, that tick counts at most double, however long it took. On an idle machine this is wall time.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._counted = dict.fromkeys(sorted(os.sched_getaffinity(0))[:_MAX_PROCESSORS], 0.0)
        self._threads = [threading.Thread(target=self._count, args=(each,)) for each in self._counted]

    @property
    def seconds(self) -> float:
        """Seconds so far on the slowest processor."""
        return min(self._counted.values())

    def _count(self, processor: int) -> None:
        os.sched_setaffinity(0, {processor})  # CPU time of this thread alone
        before = time.monotonic()
        while not self._stop.wait(_TICK_SECONDS):
            now = time.monotonic()
            self._counted[processor] += min(now - before, 2 * _TICK_SECONDS)
            before = now

    def __enter__(self) -> RunningTime:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def wait_until(true: Callable[[], bool], seconds: float) -> bool:
    """Waits until a condition is true, with a limit in seconds of running time; returns whether it is true."""
    with RunningTime() as passed:
        while not true():
            if passed.seconds >= seconds:
                return true()
            time.sleep(_TICK_SECONDS)
    return True
