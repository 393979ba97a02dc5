"""Writes shards as tasks of a Ray cluster. All nodes must see the source and the folder of the shards."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from energon_dali.errors import ConfigError
from energon_dali.pack.shard_job import OnProgress, ShardJob, ShardReport, pack_shard

_IN_FLIGHT_PER_CPU = 2


class RayExecutor:
    """Tasks of a Ray cluster, one CPU each.

    Args:
        address: Address of the cluster, such as "auto", "ray://head:10001" or "10.0.0.1:6379"; "local" starts one on
            this machine.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "--ray was given, and Ray is not installed. Run `pip install 'energon-dali[ray]'`, or leave --ray out."
            ) from error
        self._ray: Any = ray
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"The Ray cluster {address!r} cannot be reached: {error}. Start one with `ray start --head`, and "
                    "give its address."
                ) from error

    def run(self, jobs: Sequence[ShardJob], progress: OnProgress) -> Iterator[ShardReport]:
        ray = self._ray
        task = ray.remote(num_cpus=1, max_retries=3)(pack_shard)
        limit = max(1, int(ray.cluster_resources().get("CPU", 1))) * _IN_FLIGHT_PER_CPU
        left = list(reversed(jobs))
        running: dict[Any, ShardJob] = {}
        try:
            while left or running:
                while left and len(running) < limit:
                    job = left.pop()
                    running[task.remote(job)] = job
                done, _ = ray.wait(list(running))
                for reference in done:
                    job = running.pop(reference)
                    report: ShardReport = self._result(reference)
                    progress(job.shard.samples, report.size)
                    yield report
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _result(self, reference: Any) -> ShardReport:
        """Returns the result of a task; its errors are those that it raised."""
        try:
            report: ShardReport = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        return report

    def close(self) -> None:
        """Leaves the cluster, unless the caller had joined it."""
        if self._is_ours:
            self._ray.shutdown()
