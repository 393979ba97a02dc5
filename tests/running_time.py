"""Time as a test may bound it: none passes while the machine stands still, little while processors are busy."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

_TICK_SECONDS = 0.01
_MAX_PROCESSORS = 16
"""So that the threads of a large machine do not keep the interpreter busy."""


class RunningTime:
    """Counts seconds, from entering it to leaving it, in which every processor ran what wanted to run.

    A thread on each processor (of the first 16) sleeps for a tick, again and again. Where it wakes up late, by a stall
    or behind other programs, that tick counts double at most, however long it took; on a quiet machine this is the time
    of the clock.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._counted = dict.fromkeys(sorted(os.sched_getaffinity(0))[:_MAX_PROCESSORS], 0.0)
        self._threads = [threading.Thread(target=self._count, args=(each,)) for each in self._counted]

    @property
    def seconds(self) -> float:
        """Seconds so far, of the processor that ran least."""
        return min(self._counted.values())

    def _count(self, processor: int) -> None:
        os.sched_setaffinity(0, {processor})  # of this thread alone
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
    """Waits until something is true, at most for so many seconds of running time; returns whether it is."""
    with RunningTime() as passed:
        while not true():
            if passed.seconds >= seconds:
                return true()
            time.sleep(_TICK_SECONDS)
    return True
