"""Who writes the shards of a plan: processes of this machine, or tasks of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Protocol

from energon_dali.errors import WorkerDiedError
from energon_dali.pack.shard_job import OnProgress, ShardJob, ShardReport, pack_shard
from energon_dali.shards.prepare.on_ray import RayRunner
from energon_dali.shards.prepare.worker_pool import WorkerPool

BYTES_PER_WORKER = 64 << 20
"""Copying this much takes less time than starting a process."""


class Executor(Protocol):
    """Runs the jobs of a plan somewhere."""

    def run(self, jobs: Sequence[ShardJob], progress: OnProgress) -> Iterator[ShardReport]:
        """Yields the reports, in any order.

        Args:
            jobs: What to write.
            progress: Called with (samples, bytes) since the last call.

        Raises:
            ConfigError: There is no such cluster, or processes do not start.
            DatasetError: The source has changed, or a job is strict and found a sample that cannot be read.
            StorageError: A shard cannot be written.
            WorkerDiedError: A shard ended each process that worked on it.
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
        pool: WorkerPool[ShardJob, ShardReport] = WorkerPool(pack_shard, jobs, count, 1, _give_up, progress)
        for _, report in pool.results(lambda: len(jobs)):
            yield report

    def _useful(self, jobs: Sequence[ShardJob]) -> int:
        total = sum(job.shard.estimated_bytes for job in jobs)
        return min(len(os.sched_getaffinity(0)), total // BYTES_PER_WORKER + 1)


class RayExecutor:
    """Tasks of a Ray cluster, one CPU each. All machines must see the source, and the folder of the shards.

    Args:
        address: "auto" for the cluster that this machine belongs to, "ray://HOST:10001" or "HOST:6379" for another,
            "local" for this machine alone. A connection that the program has made is used as it is.

    Raises:
        ConfigError: Ray is not installed.
    """

    def __init__(self, address: str) -> None:
        self._run = RayRunner(address)

    def run(self, jobs: Sequence[ShardJob], progress: OnProgress) -> Iterator[ShardReport]:
        if not jobs:
            return
        for number, report in self._run(pack_shard, jobs, lambda: len(jobs), _give_up):
            progress(jobs[number].shard.samples, report.size)
            yield report


def _give_up(job: ShardJob, end: str) -> ShardReport:
    """Raises the error for a shard that keeps ending its process.

    Raises:
        WorkerDiedError: Always.
    """
    raise WorkerDiedError(
        f"The shard {job.shard.name} ended each process that wrote it ({end}). If memory ran out, give the machine "
        "more or use fewer --workers. Then run again: finished shards are kept."
    )
