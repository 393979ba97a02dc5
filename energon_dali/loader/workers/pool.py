"""The workers of a rank as one feed of blocks: starts them, keeps them busy, notices their death, and ends them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from energon_dali.errors import ConfigError, WorkerDiedError, WorkerError
from energon_dali.loader.workers.channel import Channel
from energon_dali.loader.workers.failure import task_error
from energon_dali.loader.workers.fed_stream import FedStream
from energon_dali.loader.workers.handle import WorkerHandle, end_workers
from energon_dali.loader.workers.interrupts import interrupts_deferred
from energon_dali.loader.workers.launch import StartMethod, check_start_method, launch
from energon_dali.loader.workers.messages import BlockSent, StartStream, StillAtWork, StreamFailed, WorkerTask
from energon_dali.loader.workers.task_pickle import pickle_task

if TYPE_CHECKING:
    from energon_dali.cache import CachePool
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.datasets.stream import Block, State
    from energon_dali.datasets.worker_border import WorkerBorder
    from energon_dali.shards import RetryPolicy

_WAKE_MS = 1000
"""A waiting rank looks up this often: for the watchdog, and for deaths where the kernel has no pidfd."""


class WorkerPool:
    """Runs the streams of a rank in worker processes; a `BlockSource`.

    Only one thread at a time may ask for blocks; `close` may be called from any thread.

    Args:
        borders: The worker borders of a tree, by number; workers run what is below them.
        metrics: Takes what the workers' `Metrics` counted.
        prefetch_factor: Blocks per stream that a worker makes ahead, at least 1; where there are more than two
            borders, twice as many over all of them, but at least one of each.
        start_method: How processes start, see `launch.StartMethod`.
        cache_pool: What the workers' hooks see as `TaskEncoder.cache`; None fetches nothing ahead.
        retry_policy: How the workers repeat reading after errors; None is the default.

    Raises:
        ConfigError: prefetch_factor or start_method cannot work.
    """

    def __init__(
        self,
        borders: Sequence[WorkerBorder],
        metrics: Metrics,
        *,
        prefetch_factor: int = 2,
        start_method: str = "spawn",
        cache_pool: CachePool | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        if prefetch_factor < 1:
            raise ConfigError(f"prefetch_factor={prefetch_factor} leaves the workers nothing to do: give at least 1.")
        self._method: StartMethod = check_start_method(start_method)
        self._borders = list(borders)
        self._metrics = metrics
        self._cache_pool = cache_pool
        self._retry_policy = retry_policy
        # A blend of many borders must not hold blocks of all of them in proportion: one or two are asked of each.
        self._prefetch = max(1, -(-2 * prefetch_factor // len(borders))) if len(borders) > 2 else prefetch_factor
        self.on_wait: Callable[[float], None] | None = None
        """Called with the seconds waited so far, about once per second, while a block is waited for; may raise."""
        self._streams: dict[int, FedStream] = {}
        self._workers: list[WorkerHandle] = []
        self._interrupted = False
        self._config = config = borders[0].worker_config
        self._worker_of = {
            border.block_stream(stream): worker
            for border in borders
            for worker in range(max(1, config.num_workers))
            for stream in config.layout.worker_streams(config.rank, worker)
        }
        self._poll = select.poll()
        self._by_fd: dict[int, WorkerHandle] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.POLLIN)
        try:
            self._lifeline, self._lifeline_end = os.pipe2(os.O_CLOEXEC)
        except OSError:  # at the limit of open files, of which the one above is not to be one for ever
            os.close(self._wake)
            raise
        self._owner = os.getpid()
        self._end = weakref.finalize(
            self, end_workers, self._workers, [self._wake, self._lifeline, self._lifeline_end], self._owner
        )

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that were started."""
        return [worker.process.pid for worker in self._workers]

    def launch(self) -> None:
        """Starts the processes, if that has not happened; returns at once.

        Raises:
            WorkerError: What the workers need cannot be pickled, or the pool is closed.
        """
        self._check_open()
        if self._workers:
            return
        config = self._config
        tasks = [
            WorkerTask(
                self._borders,
                config.rank,
                number,
                config.seed_offset,
                self._spare_arenas(number),
                self._cache_pool,
                self._retry_policy,
            )
            for number in range(max(1, config.num_workers))
        ]
        pickled = [self._pickled(task) for task in tasks]
        for task, data in zip(tasks, pickled, strict=True):
            self._launch_one(task, data)

    def _spare_arenas(self, number: int) -> int:
        """Returns how many free arenas a worker keeps: one per block on the way, and one for each side's hands."""
        return 2 + self._prefetch * sum(worker == number for worker in self._worker_of.values())

    def _pickled(self, task: WorkerTask) -> bytes | None:
        try:
            # Also for "fork": cloudpickle then knows the classes of the script when their instances come back.
            return pickle_task(task)
        except Exception as error:
            if self._method == "fork":
                return None
            raise WorkerError(
                f"The dataset cannot travel to a worker process, because something in it cannot be pickled: {error}. "
                "Keep open files, locks, generators and the like out of the task encoder's attributes (open them when "
                'they are first used), or use start_method="fork".'
            ) from error

    def _launch_one(self, task: WorkerTask, pickled: bytes | None) -> None:
        with interrupts_deferred():  # a process that is not in the list of workers would never be waited for
            self._launch_worker(task, pickled)

    def _launch_worker(self, task: WorkerTask, pickled: bytes | None) -> None:
        ours, theirs = Channel.pair()
        foreign = [self._lifeline_end, self._wake, ours.fileno()]
        foreign += [fd for worker in self._workers for fd in worker.descriptors]
        try:
            process = launch(self._method, theirs, self._lifeline, task, foreign)
        finally:
            theirs.close()
        worker = WorkerHandle(task.worker, process, ours, process.open_sentinel())
        self._workers.append(worker)
        for descriptor in worker.descriptors:
            self._poll.register(descriptor, select.POLLIN)
            self._by_fd[descriptor] = worker
        if self._method != "fork" and pickled is not None:
            with contextlib.suppress(OSError):  # it is gone already; reading finds out how it ended
                ours.send(pickled)

    def start_all(self, streams: Iterable[int]) -> None:
        """Starts streams of the job at their beginning below every border, so that all workers begin at once."""
        for stream in streams:
            for border in self._borders:
                self.start(border.block_stream(stream), None)

    def start(self, stream: int, state: State | None) -> None:
        """Starts a stream at a state, or at its beginning; a stream that already runs begins anew there."""
        before = self._streams.get(stream)
        if before is not None and state is None and before.untouched:
            return  # it was started ahead of time
        fed = FedStream(stream, 0 if before is None else before.generation + 1, fresh=state is None)
        self._streams[stream] = fed
        self.launch()
        worker = self._workers[self._worker_of[stream]]
        worker.starts.append(StartStream(stream, fed.generation, state, self._prefetch))
        if before is not None:
            worker.progress.unseen_arenas += before.discard()
            worker.progress.credits.pop(stream, None)
            if stream in worker.progress.next_epoch:
                worker.progress.next_epoch.remove(stream)
        worker.tell()

    def ready(self, stream: int) -> bool:
        """Returns whether `next_block` would return or raise at once."""
        fed = self._streams.get(stream)
        if fed is None or fed.paused:
            return False
        worker = self._workers[self._worker_of[stream]]
        while not (fed.blocks or fed.error or worker.failure):
            if not self._receive(worker):
                return False
        return True

    def next_block(self, stream: int) -> Block:
        """Returns the next block of a stream; waits for it.

        Raises:
            WorkerDiedError: A worker process ended unasked.
            WorkerError: The pool is closed, or an exception of a worker cannot be shown as what it was.
            Exception: Whatever error ended the stream in the worker.
        """
        self._check_open()
        if stream not in self._streams:
            self.start(stream, None)
        fed = self._streams[stream]
        worker = self._workers[self._worker_of[stream]]
        if fed.paused:
            fed.paused = False
            worker.progress.next_epoch.append(stream)
        began: float | None = None
        while not fed.blocks:
            if fed.error is not None:
                raise fed.error
            if worker.failure is not None:
                raise worker.failure
            for other in self._workers:
                other.tell()
            began = began or time.monotonic()
            self._wait(began)
        block = fed.take(worker.views)
        worker.progress.credits[stream] = worker.progress.credits.get(stream, 0) + 1
        worker.tell()
        return block

    def _wait(self, began: float) -> None:
        """Waits for something to happen in any worker, and takes note of it."""
        events = self._poll.poll(_WAKE_MS)
        self._check_open()
        if self.on_wait is not None and time.monotonic() - began >= 1.0:
            self.on_wait(time.monotonic() - began)
        seen = {self._by_fd[fd].number for fd, _ in events if fd in self._by_fd}
        for number in seen or [worker.number for worker in self._workers if worker.sentinel is None]:
            worker = self._workers[number]
            if not self._receive(worker) and worker.process.poll() is not None:
                while self._receive(worker):  # its last words came between
                    pass
                self._bury(worker)

    def _receive(self, worker: WorkerHandle) -> bool:
        """Takes one message of a worker; returns whether there was one."""
        if worker.at_end:
            return False
        try:
            received = worker.receive()
        except EOFError:
            worker.process.join(2.0)
            self._bury(worker)
            return False
        if received is None:
            return False
        message, payload = received
        if isinstance(message, BlockSent):
            self._metrics.merge(message.record)
            if not self._streams[message.stream].accept(message, payload) and message.arena >= 0:
                worker.progress.unseen_arenas.append(message.arena)
        elif isinstance(message, StillAtWork):
            self._metrics.merge(message.record)
        elif isinstance(message, StreamFailed):
            self._metrics.merge(message.record)
            if message.stream < 0:
                worker.failure = task_error(message, f"worker {worker.number}")
            else:
                self._streams[message.stream].fail(message, worker.number)
        return True

    def _bury(self, worker: WorkerHandle) -> None:
        """Notes that a worker ended."""
        if worker.at_end:
            return
        end = worker.bury(self._poll)
        worker.failure = worker.failure or WorkerDiedError(
            f"Worker {worker.number} of rank {self._config.rank} (process {worker.process.pid}) ended "
            f"unasked: {end}. What it printed last stands on its standard error. Restore the last state to continue."
        )

    def show_stacks(self) -> None:
        """Asks all workers to print the stacks of their threads to their standard error."""
        for worker in self._workers:
            worker.process.signal(signal.SIGUSR1)

    def _check_open(self) -> None:
        if self._interrupted or not self._end.alive:
            raise WorkerError("The worker processes were ended with close(); make a new iterator to go on.")

    def interrupt(self) -> None:
        """Makes a thread that waits for a block, or asks for the next, give up with a WorkerError."""
        self._interrupted = True
        # The counter is one with that of the process that a forked copy comes from: its wait would never be one again.
        if self._end.alive and os.getpid() == self._owner:
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Ends all workers and gives all descriptors back; may be called again. Elements that are held stay valid."""
        with interrupts_deferred():
            self._end()
