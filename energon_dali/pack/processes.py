"""Writes shards in processes of this machine."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from energon_dali.errors import WorkerDiedError
from energon_dali.pack.shard_job import OnProgress, ShardJob, ShardReport, pack_shard

BYTES_PER_WORKER = 64 << 20
"""Copying this much takes less time than starting a process."""
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.2
_counts: Any = None
"""Samples and bytes that all processes have written, int64[2] in shared memory."""


class Executor(Protocol):
    """Runs the jobs of a plan somewhere."""

    def run(self, jobs: Sequence[ShardJob], progress: OnProgress) -> Iterator[ShardReport]:
        """Yields the reports, in any order.

        Args:
            jobs: What to write.
            progress: Called with (samples, bytes) since the last call.

        Raises:
            DatasetError: The source has changed, or a job is strict and found a sample that cannot be read.
            StorageError: A shard cannot be written.
            WorkerDiedError: A process ended unexpectedly.
        """


class LocalExecutor:
    """Processes of this machine.

    Args:
        num_workers: Number of processes; None is one per CPU core, if there is enough to do.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self._num_workers = num_workers

    def run(self, jobs: Sequence[ShardJob], progress: OnProgress) -> Iterator[ShardReport]:
        count = min(len(jobs), self._useful(jobs) if self._num_workers is None else self._num_workers)
        if count <= 1:
            for job in jobs:
                yield pack_shard(job, progress)
            return
        yield from _run_in_processes(jobs, count, progress)

    def _useful(self, jobs: Sequence[ShardJob]) -> int:
        total = sum(job.shard.estimated_bytes for job in jobs)
        return min(len(os.sched_getaffinity(0)), total // BYTES_PER_WORKER + 1)


def _run_in_processes(jobs: Sequence[ShardJob], count: int, progress: OnProgress) -> Iterator[ShardReport]:
    # Spawned, not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    counts = context.Array("q", 2)
    seen = [0, 0]

    def report() -> None:
        now = [counts[0], counts[1]]
        progress(now[0] - seen[0], now[1] - seen[1])
        seen[:] = now

    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start, initargs=(os.getpid(), counts))
    try:
        waiting: set[Future[ShardReport]] = {pool.submit(_pack_counted, job) for job in jobs}
        while waiting:
            done, waiting = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
            report()
            for future in done:
                yield future.result()
    except BrokenProcessPool as error:
        raise WorkerDiedError(
            "A process that wrote a shard was killed; often the memory was full. Run again with fewer --workers: "
            "finished shards are kept."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(parent: int, counts: Any) -> None:
    """Sets a process up: it ends with its parent, and leaves Ctrl-C to it."""
    global _counts
    _counts = counts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the signal was requested
        os._exit(1)


def _pack_counted(job: ShardJob) -> ShardReport:
    def count(samples: int, written_bytes: int) -> None:
        with _counts.get_lock():
            _counts[0] += samples
            _counts[1] += written_bytes

    return pack_shard(job, count)
