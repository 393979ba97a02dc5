"""Watches the waits for batches: measures them, and where none arrives, shows all stacks, and warns or ends the run."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from energon_dali.datasets.metrics import Metrics, describe_dropped
from energon_dali.errors import WatchdogTimeoutError
from energon_dali.loader.processes.fork_safety import frames_of_threads, without_forks
from energon_dali.loader.waiting import describe_wait

logger = logging.getLogger("energon_dali.loader")


class TrainerClock:
    """Measures how long the trainer waits, in constant memory. A wait counts while it lasts.

    Threads that wait at the same time count as one: the trainer is blocked while any of them waits.

    Args:
        now: The clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        # Re-entrant: a signal handler during a wait may ask for a batch as well.
        self._lock = threading.RLock()
        self._began: float | None = None
        self._batches = 0
        self._waits: list[float] = []
        """Waits that last, by when they began."""
        self._since = 0.0
        """When the first of them began, or the first batch arrived during it."""
        self._blocked = 0.0
        self._starting = 0.0
        """Time of the waits before the first batch arrived."""

    def start(self) -> float:
        """Returns the time at which the trainer asked for a batch."""
        with self._lock:
            now = self._now()
            if self._began is None:
                self._began = now
            if not self._waits:
                self._since = now
            self._waits.append(now)
            return now

    def stop(self, started: float, occupancy: float | None = None) -> None:
        """Notes that the batch requested at `started` arrived, and how full the queue was then, 0 to 1; for a trace."""
        with self._lock:
            self._count(self._now())
            self._waits.remove(started)
            self._batches += 1

    def stop_without_batch(self, started: float, reason: str) -> None:
        """Notes that the wait that began at `started` ended without a batch, and why; nothing if it has ended."""
        with self._lock:
            if started in self._waits:
                self._count(self._now())
                self._waits.remove(started)

    def _count(self, now: float) -> None:
        """Adds the time up to now to those of waits."""
        waited = now - self._since
        if self._batches:
            self._blocked += waited
        else:
            self._starting += waited
        self._since = now

    def times(self) -> dict[str, Any]:
        """Returns the fields of LoaderStatistics that are measured here, until now."""
        with self._lock:
            now = self._now()
            waiting = now - self._since if self._waits else 0.0
            return {
                "batches": self._batches,
                "elapsed_seconds": 0.0 if self._began is None else now - self._began,
                "blocked_seconds": self._blocked + (waiting if self._batches else 0.0),
                "starting_seconds": self._starting + (0.0 if self._batches else waiting),
                "first_batch_seconds": self._starting if self._batches else None,
                "waiting_seconds": waiting,
            }


class Watchdog:
    """Judges how long a wait for a batch may take. The waiting thread asks it; it has no thread of its own.

    Args:
        timeout_seconds: Longest normal wait; None never complains.
        initial_timeout_seconds: The same for the first batch; None is `timeout_seconds`.
        fail_on_timeout: Raise instead of warning.
        show_workers: Makes worker processes print their stacks.
        metrics: Counts the dropped samples, for the message.
    """

    def __init__(
        self,
        timeout_seconds: float | None,
        initial_timeout_seconds: float | None,
        *,
        fail_on_timeout: bool,
        show_workers: Callable[[], None] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._timeout = timeout_seconds
        self._initial = initial_timeout_seconds if initial_timeout_seconds is not None else timeout_seconds
        self._fail = fail_on_timeout
        self.show_workers = show_workers
        self._metrics = metrics or Metrics()
        self._dropped: Counter[str] = Counter()
        self._first = True
        self._complained = False

    @property
    def limit_seconds(self) -> float | None:
        """Longest normal wait now; None if there is no limit."""
        return self._initial if self._first else self._timeout

    def reset(self) -> None:
        """Notes that a batch arrived."""
        self._first = self._complained = False
        self._dropped = self._metrics.dropped()

    def check(self, waited_seconds: float) -> None:
        """Complains if a wait is too long, once per wait.

        Raises:
            WatchdogTimeoutError: It is too long, and `fail_on_timeout` is set.
        """
        limit = self.limit_seconds
        if limit is None or waited_seconds < limit or self._complained:
            return
        self._complained = True
        dropped = describe_dropped(self._metrics.dropped() - self._dropped)
        text = (
            f"No batch arrived for {waited_seconds:.1f} s; the watchdog allows {limit:g} s. "
            f"Now {describe_wait(self._metrics)}. "
        )
        if dropped:
            text += f"Of the samples since the last batch, {dropped}: if all are, correct the hook or filter. "
        text += (
            "If a long wait is normal here, raise watchdog_timeout_seconds (or watchdog_initial_timeout_seconds for "
            "the first batch)."
        )
        # A log handler of the user's that fails must not keep the error below from the waiting thread.
        with contextlib.suppress(Exception):
            logger.warning(
                "%s The stacks of all threads of this process follow; workers print theirs to standard error.\n%s",
                text,
                stacks(),
            )
        with contextlib.suppress(Exception):
            if self.show_workers is not None:
                self.show_workers()
        if self._fail:
            raise WatchdogTimeoutError(f"{text} The log shows the stacks of all threads.")


class WaitExpired(BaseException):
    """Interrupts a thread whose wait took too long.

    Not an Exception: hooks and readers would take that for a bad sample and continue.
    """


class WaitMonitor:
    """A thread that watches the waits of another one, if everything runs in the trainer's thread.

    Args:
        watchdog: Judges the waits.
    """

    error: WatchdogTimeoutError | None = None
    """Why a wait was interrupted."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._since: tuple[float, int] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._interrupted = False
        # Re-entrant: a signal handler during a wait may ask for a batch as well.
        self._lock = threading.RLock()

    def begin(self) -> None:
        """Notes that the calling thread starts to wait."""
        if self._watchdog.limit_seconds is None:
            return
        self._since = time.monotonic(), threading.get_ident()
        if self._thread is None:
            # Stored once it runs: Ctrl-C may arrive before, and a thread that never started cannot be joined.
            thread = threading.Thread(target=self._watch, args=(self._stop,), name="energon-dali-watchdog", daemon=True)
            thread.start()
            self._thread = thread

    def end(self) -> None:
        """Notes that the wait is over: from now on nothing interrupts the thread."""
        with self._lock:
            since, self._since = self._since, None
            if self._interrupted and since is not None:
                self._interrupted = False
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(since[1]), None)

    def close(self) -> None:
        """Ends the thread."""
        self.end()
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None
        self._stop = threading.Event()

    def _watch(self, stop: threading.Event) -> None:
        judged: tuple[float, int] | None = None
        while not stop.wait(min(1.0, (self._watchdog.limit_seconds or 4.0) / 4)):
            since, limit = self._since, self._watchdog.limit_seconds
            if since is None or since is judged or limit is None:
                continue
            waited = time.monotonic() - since[0]
            # This thread may have been suspended since it looked: a wait that is over was not that long.
            if waited < limit or self._since is not since:
                continue
            judged = since
            error: WatchdogTimeoutError | None = None
            try:
                with without_forks():
                    self._watchdog.check(waited)
            except WatchdogTimeoutError as raised:
                error = raised
            while error is not None:
                with self._lock:
                    if self._since is not since:
                        break
                    self.error, self._interrupted = error, True
                    # The only way to interrupt another thread: it raises at its next line of Python.
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(since[1]), ctypes.py_object(WaitExpired))
                if stop.wait(1.0):  # again, in case a bare `except:` of a hook caught it
                    return


def stacks() -> str:
    """Returns the stacks of all threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames_of_threads().items()
    )
