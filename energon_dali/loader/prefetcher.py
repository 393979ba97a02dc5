"""Brings the batches of a rank to the trainer: made in its thread, in a thread that runs ahead, or in a process."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.worker_border import rank_seeds_generators
from energon_dali.errors import WorkerError
from energon_dali.loader.cuda_handoff import CudaHandoff, ReadyEvents, pin_for_trainer
from energon_dali.loader.decode_process.process import DecodeProcess, DecodeTask
from energon_dali.loader.rank_pipeline import RankPipeline, rank_has_work
from energon_dali.loader.watchdog import WaitExpired, WaitMonitor, Watchdog

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.datasets.stage_clock import StageClock
    from energon_dali.datasets.stream import State
    from energon_dali.loader.loader_options import LoaderOptions
    from energon_dali.loader.workers.pool import WorkerPool

logger = logging.getLogger("energon_dali.loader")

_JOIN_SECONDS = 10.0
_CLOSED = "The loader was closed; make a new iterator to go on."


def open_prefetcher(
    dataset: SavableDataset[Any],
    options: LoaderOptions,
    state: State | None,
    metrics: Metrics,
    watchdog: Watchdog,
) -> Prefetcher:
    """Returns what brings the batches of a rank to the trainer; its workers, processes and threads run.

    Args:
        dataset: The tree, cut by `cut_tree`.
        options: The loader's, resolved.
        state: Where to start; None is the beginning.
        metrics: Takes counts and times.
        watchdog: Judges how long a wait may take.

    Raises:
        WorkerError: What the processes need cannot be pickled.
        ConfigError: The start method cannot work here.
        StateError: The state is of another dataset.
    """
    change = pin_for_trainer if options.pin_memory else None
    if options.decode_process:
        return ProcessPrefetcher(dataset, options, state, metrics, watchdog, change)
    pipeline = RankPipeline(dataset, metrics, options, state)
    rank, pool = pipeline.iterator, pipeline.pool
    if pool is not None:
        watchdog.show_workers = pool.show_stacks
    # feed="native" has no workers; num_workers > 0 then asks for prefetching.
    ahead = pool is not None or dataset.worker_config.num_workers > 0
    try:
        if ahead and rank_seeds_generators(dataset):
            logger.warning(
                "Hooks marked @stateless(restore_seeds=True) run when the trainer asks for a batch, not ahead of it: "
                "in a thread, their random numbers would mix with the trainer's. Give decode_process=True to run them "
                "ahead."
            )
        elif ahead and (change is not None or rank_has_work(dataset)):
            return ThreadPrefetcher(rank, pool, watchdog, change, options.prefetch_factor)
        if pool is not None:
            pool.on_wait = watchdog.check
        return DirectPrefetcher(rank, pool, watchdog, change)
    except BaseException:
        pipeline.close()
        raise


class Prefetcher(Protocol):
    """Gives the elements of a rank, one by one."""

    snapshot: State
    """The state of the rank after the last element that `next` returned; `plain` makes JSON of it."""

    @property
    def occupancy(self) -> float | None:
        """How full the queue is, 0 to 1; None if there is no queue."""

    def next(self) -> Any:
        """Returns the next element.

        Raises:
            StopIteration: The epoch is over; the next call begins the next epoch.
            Exception: Whatever a stage or a worker raised.
        """

    def close(self) -> None:
        """Ends threads and processes; may be called again."""


class DirectPrefetcher:
    """Runs the rank's pipeline in the trainer's thread; only its workers, if any, run ahead.

    Args:
        rank: Gives the elements.
        pool: The workers, if there are any.
        watchdog: Judges how long a wait may take.
        change: Applied to every element.
    """

    occupancy: float | None = None
    """How full the queue is, 0 to 1; None as there is no queue."""

    def __init__(
        self, rank: RankIterator[Any], pool: WorkerPool | None, watchdog: Watchdog, change: Callable[[Any], Any] | None
    ) -> None:
        self._rank = rank
        self._processes = pool
        self._watchdog = watchdog
        self._change = change
        # With workers, the pool asks the watchdog while it waits.
        self._monitor = WaitMonitor(watchdog) if pool is None else None
        self.snapshot = rank.snapshot()
        """The state of the rank after the last element that `next` returned; `stream.plain` makes JSON of it."""
        self._busy = self._closed = False
        rank.metrics.on_dropped = self._check_open

    def next(self) -> Any:
        """Returns the next element.

        Raises:
            StopIteration: The epoch is over; the next call begins the next epoch.
            Exception: Whatever a stage or a worker raised.
        """
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
            self.snapshot = self._rank.snapshot()
            if self._monitor is not None:
                self._monitor.close()
            raise
        finally:
            if self._monitor is not None:
                self._monitor.end()
        # Taken now, not on request: an exception on the way to the next element must not affect it.
        self.snapshot = self._rank.snapshot()
        self._watchdog.reset()
        return element

    def _check_open(self) -> None:
        """Ends a wait during which all samples are dropped, if a signal handler or another thread closed the loader."""
        if self._closed:
            raise WorkerError(_CLOSED)

    def close(self) -> None:
        """Ends threads and processes; may be called again."""
        if self._monitor is not None:
            self._monitor.close()
        if self._processes is not None:
            self._processes.close()
        self._closed = True
        self._rank.interrupt()
        # While busy, a signal handler or another thread closes inside `next`, whose element still counts.
        if not self._busy:
            self._rank.close()


class ThreadPrefetcher:
    """Runs the rank's pipeline in a thread of its own, some elements ahead of the trainer.

    Args:
        rank: Gives the elements; from now on only the thread uses it.
        processes: The workers, or the decode process, if there are any.
        watchdog: Judges how long a wait may take.
        change: Applied to every element, in the thread.
        depth: Elements that wait for the trainer at most, at least 1.
    """

    thread_name = "energon-dali-rank"
    """Named in `processes/fork_safety`, as this thread runs hooks."""

    def __init__(
        self,
        rank: RankIterator[Any] | DecodeProcess,
        processes: WorkerPool | DecodeProcess | None,
        watchdog: Watchdog,
        change: Callable[[Any], Any] | None,
        depth: int,
    ) -> None:
        self._processes = processes
        self._interrupt = rank.interrupt
        self._watchdog = watchdog
        self.snapshot = rank.snapshot()
        self._depth = depth
        self._queue = _Queue(depth)
        rank.metrics.on_dropped = self._queue.check_open
        self._handoff = CudaHandoff()
        self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=_run_ahead, args=(rank, change, self._queue, self._handoff), name=self.thread_name, daemon=True
        )
        self._thread.start()

    def next(self) -> Any:
        if self._failure is not None:
            raise self._failure
        if self._ended:
            self._ended = False
            self._queue.resume.put(True)
        kind, value, snapshot = self._take()
        if kind is _FAILED:
            self._failure = value
            raise value
        self.snapshot = snapshot
        self._watchdog.reset()
        if kind is _ENDED:
            self._ended = True
            raise StopIteration
        self._queue.room.put(True)
        element, ready = value
        self._handoff.receive(element, ready)
        return element

    def _take(self) -> tuple[object, Any, Any]:
        limit = self._watchdog.limit_seconds
        started = time.monotonic()
        while True:
            try:
                return self._queue.items.get(timeout=limit)
            except queue.Empty:
                self._watchdog.check(time.monotonic() - started)
                limit = 1.0

    @property
    def occupancy(self) -> float | None:
        """How full the queue is, 0 to 1."""
        return min(1.0, self._queue.items.qsize() / self._depth)

    def close(self) -> None:
        self._queue.stop()
        self._interrupt()
        if self._processes is not None:
            self._processes.interrupt()
        try:
            if self._thread is not threading.current_thread():
                self._thread.join(_JOIN_SECONDS)
                if self._thread.is_alive():
                    logger.warning(
                        "A hook or the decoder did not return within %g s; its thread is left running.", _JOIN_SECONDS
                    )
        finally:  # also after another Ctrl-C
            if self._processes is not None:
                self._processes.close()


class ProcessPrefetcher(ThreadPrefetcher):
    """Takes batches of a decode process in a thread of the trainer's process, one ahead of the trainer.

    Unpickling a list of 64 tensors in the trainer's thread made it wait 1.0 ms per batch; this way it is 0.06 ms. Next
    to a busy thread it was 3.5 ms compared with less than 1 ms, and a fifth more batches arrived (two cores).

    Args:
        dataset: The tree, cut by `cut_tree`.
        options: The loader's, resolved.
        state: Where to start; None is the beginning.
        metrics: Takes counts and times.
        watchdog: Judges how long a wait may take.
        change: Applied to every batch, in the thread.
    """

    thread_name = "energon-dali-receive"

    def __init__(
        self,
        dataset: SavableDataset[Any],
        options: LoaderOptions,
        state: State | None,
        metrics: Metrics,
        watchdog: Watchdog,
        change: Callable[[Any], Any] | None,
    ) -> None:
        import torch

        def first_state() -> State:
            return state if state is not None else RankIterator(dataset).state_dict()

        cuda: Any = torch.cuda
        device = cuda.current_device() if cuda.is_initialized() else None
        self.process = DecodeProcess(DecodeTask(dataset, state, options, device), metrics, first_state)
        watchdog.show_workers = self.process.show_stacks
        try:
            # One batch waits in the trainer's process; the others wait in the decode process.
            super().__init__(self.process, self.process, watchdog, change, depth=1)
        except BaseException:
            self.process.close()
            raise

    def next(self) -> Any:
        batch = super().next()
        self.process.note_streams()
        return batch


_ELEMENT, _ENDED, _FAILED = object(), object(), object()


class _Queue:
    """What the thread and the trainer share. SimpleQueue is native: it releases the interpreter lock only to wait."""

    def __init__(self, depth: int) -> None:
        self.items: queue.SimpleQueue[tuple[object, Any, Any]] = queue.SimpleQueue()
        self.room: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.resume: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.stopped = False
        for _ in range(depth):
            self.room.put(True)

    def check_open(self) -> None:
        """Ends a thread that drops samples without end after the loader was closed."""
        if self.stopped:
            raise WorkerError(_CLOSED)

    def stop(self) -> None:
        self.stopped = True
        self.room.put(False)
        self.resume.put(False)


def _has_room(shared: _Queue, waiting: StageClock) -> bool:
    """Waits for room in the queue; returns False if there is no need for it any more."""
    outer = waiting.begin()
    try:
        return shared.room.get()
    finally:
        waiting.end(outer)


def _run_ahead(
    rank: RankIterator[Any] | DecodeProcess, change: Callable[[Any], Any] | None, shared: _Queue, handoff: CudaHandoff
) -> None:
    """Thread body. Keeps no reference to the loader, so that a forgotten loader is collected and ends the thread."""
    try:
        handoff.enter()
        waiting = rank.metrics.clock("wait for trainer")
        while _has_room(shared, waiting) and not shared.stopped:
            try:
                element = next(rank)
            except StopIteration:
                shared.room.put(True)
                shared.items.put((_ENDED, None, rank.snapshot()))
                # The next epoch begins when it is asked for: after the last one nobody wants it.
                if not shared.resume.get():
                    break
                continue
            if change is not None:
                element = change(element)
            ready: ReadyEvents = handoff.record(element)
            shared.items.put((_ELEMENT, (element, ready), rank.snapshot()))
            element = None
        shared.items.put((_FAILED, WorkerError(_CLOSED), None))  # a thread that still waits would wait indefinitely
    except BaseException as error:
        shared.items.put((_FAILED, error, None))
    finally:
        if isinstance(rank, RankIterator):
            rank.close()
