"""Brings the elements of a rank to the trainer: in its own thread, or from a thread that runs ahead."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from energon_dali.datasets.stream import plain
from energon_dali.errors import WorkerError
from energon_dali.loader.rank_stream import RankStream, Seal
from energon_dali.loader.watchdog import WaitExpired, WaitMonitor, Watchdog

if TYPE_CHECKING:
    from energon_dali.datasets.rank_iterator import RankIterator
    from energon_dali.datasets.stream import State
    from energon_dali.loader.workers.pool import WorkerPool

logger = logging.getLogger("energon_dali.loader")

_JOIN_SECONDS = 10.0
_CLOSED = "The loader was closed; make a new iterator to go on."


class Delivery(Protocol):
    """Gives the elements of a rank, one by one."""

    def next(self) -> Any:
        """Returns the next element.

        Raises:
            StopIteration: The epoch is over; the next call begins the next epoch.
            Exception: Whatever a stage or a worker raised.
        """

    def state(self) -> State:
        """Returns the state of the rank after the last element that `next` returned."""

    @property
    def occupancy(self) -> float | None:
        """Share of the queue that is filled; None where there is none."""

    def close(self) -> None:
        """Ends threads and processes; may be called again."""


class DirectDelivery:
    """Runs the rank's part in the trainer's thread.

    Args:
        rank: Gives the elements.
        pool: The workers, if there are any.
        watchdog: Judges how long a wait may take.
        change: Applied to every element.
    """

    occupancy: float | None = None

    def __init__(
        self, rank: RankIterator[Any], pool: WorkerPool | None, watchdog: Watchdog, change: Callable[[Any], Any] | None
    ) -> None:
        self._rank = rank
        self._pool = pool
        self._watchdog = watchdog
        self._change = change
        # With workers the pool asks the watchdog itself while it waits.
        self._monitor = WaitMonitor(watchdog) if pool is None else None
        self._state = rank.snapshot()
        self._busy = self._closed = False
        rank.metrics.on_dropped = self._check_open

    def next(self) -> Any:
        self._busy = True
        try:
            if self._closed:
                raise WorkerError(_CLOSED)
            return self._take()
        except WaitExpired as expired:
            assert self._monitor is not None
            assert self._monitor.error is not None
            raise self._monitor.error from expired
        finally:
            self._busy = False
            if self._closed:
                self._rank.close()

    def _take(self) -> Any:
        if self._monitor is not None:
            self._monitor.begin()
        try:
            element = next(self._rank)
            if self._change is not None:
                element = self._change(element)
        except StopIteration:
            self._state = self._rank.snapshot()
            if self._monitor is not None:
                self._monitor.close()
            raise
        finally:
            if self._monitor is not None:
                self._monitor.end()
        # Taken now, not when it is asked for: an exception on the way to the next element must not blur it.
        self._state = self._rank.snapshot()
        self._watchdog.fed()
        return element

    def _check_open(self) -> None:
        """Ends a wait in which all samples are dropped, where a signal handler or another thread closed."""
        if self._closed:
            raise WorkerError(_CLOSED)

    def state(self) -> State:
        state: State = plain(self._state)
        return state

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        if self._pool is not None:
            self._pool.close()
        self._closed = True
        self._rank.interrupt()
        # Else a signal handler or another thread closes inside of `next`, whose element still counts.
        if not self._busy:
            self._rank.close()


class ThreadedDelivery:
    """Runs the rank's part in a thread of its own, some elements ahead of the trainer.

    Args:
        rank: Gives the elements; only the thread uses it from now on.
        pool: The workers, if there are any.
        watchdog: Judges how long a wait may take.
        change: Applied to every element, in the thread.
        depth: Elements that wait for the trainer at most, at least 1.
    """

    def __init__(
        self,
        rank: RankIterator[Any],
        pool: WorkerPool | None,
        watchdog: Watchdog,
        change: Callable[[Any], Any] | None,
        depth: int,
    ) -> None:
        self._pool = pool
        self._interrupt = rank.interrupt
        self._watchdog = watchdog
        self._state = rank.snapshot()
        self._depth = depth
        self._line = _Line(depth)
        rank.metrics.on_dropped = self._line.check_open
        self._stream = RankStream()
        self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=_run_ahead, args=(rank, change, self._line, self._stream), name="energon-dali-rank", daemon=True
        )
        self._thread.start()

    def next(self) -> Any:
        if self._failure is not None:
            raise self._failure
        if self._ended:
            self._ended = False
            self._line.resume.put(True)
        kind, value, state = self._take()
        if kind is _FAILED:
            self._failure = value
            raise value
        self._state = state
        self._watchdog.fed()
        if kind is _ENDED:
            self._ended = True
            raise StopIteration
        self._line.room.put(True)
        element, seal = value
        self._stream.hand_over(element, seal)
        return element

    def _take(self) -> tuple[object, Any, Any]:
        limit = self._watchdog.limit_seconds
        began = time.monotonic()
        while True:
            try:
                return self._line.items.get(timeout=limit)
            except queue.Empty:
                self._watchdog.check(time.monotonic() - began)
                limit = 1.0

    @property
    def occupancy(self) -> float | None:
        return min(1.0, self._line.items.qsize() / self._depth)

    def state(self) -> State:
        state: State = plain(self._state)
        return state

    def close(self) -> None:
        self._line.stop()
        self._interrupt()
        if self._pool is not None:
            self._pool.interrupt()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
            if self._thread.is_alive():
                logger.warning(
                    "A hook or the decoder did not return within %g s; its thread is left alone.", _JOIN_SECONDS
                )
        if self._pool is not None:
            self._pool.close()


_ELEMENT, _ENDED, _FAILED = object(), object(), object()


class _Line:
    """What the thread and the trainer share. SimpleQueue is native: it gives the interpreter lock away only to wait."""

    def __init__(self, depth: int) -> None:
        self.items: queue.SimpleQueue[tuple[object, Any, Any]] = queue.SimpleQueue()
        self.room: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.resume: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.stopped = False
        for _ in range(depth):
            self.room.put(True)

    def check_open(self) -> None:
        """Ends the thread where it would drop samples without end after the loader was closed."""
        if self.stopped:
            raise WorkerError(_CLOSED)

    def stop(self) -> None:
        self.stopped = True
        self.room.put(False)
        self.resume.put(False)


def _run_ahead(rank: RankIterator[Any], change: Callable[[Any], Any] | None, line: _Line, stream: RankStream) -> None:
    """Is the thread: holds nothing of the loader, so that a forgotten loader is collected and ends it."""
    try:
        stream.enter()
        while line.room.get() and not line.stopped:
            try:
                element = next(rank)
            except StopIteration:
                line.room.put(True)
                line.items.put((_ENDED, None, rank.snapshot()))
                # The next epoch begins when it is asked for: after the last one nobody wants it.
                if not line.resume.get():
                    break
                continue
            if change is not None:
                element = change(element)
            seal: Seal = stream.seal(element)
            line.items.put((_ELEMENT, (element, seal), rank.snapshot()))
            element = None
        line.items.put((_FAILED, WorkerError(_CLOSED), None))  # whoever still waits would wait for ever
    except BaseException as error:
        line.items.put((_FAILED, error, None))
    finally:
        rank.close()
