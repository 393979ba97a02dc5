"""Scans the shards of a dataset: in this process, in several, or on a Ray cluster; goes on from an interrupted run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from energon_dali.errors import ConfigError
from energon_dali.shards.prepare.journal import Journal, open_journal
from energon_dali.shards.prepare.parallel import Runner, killed_message, local_bytes, map_in_order, useful_workers
from energon_dali.shards.prepare.shard_job import ShardJob, ShardScan, ShardTask, index_shard

KEPT_BYTES = 256 << 20
"""What is found in local shards of less than this in all is not kept for a later run: scanning takes seconds."""
MOST_WINDOWS_AHEAD = 8
"""Windows of one remote shard that are requested at the same time."""


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Where shards are scanned, and how many at the same time.

    Raises:
        ConfigError: A number is less than 1.
    """

    num_workers: int = 1
    """Number of processes."""
    shards_in_flight: int = 32
    """Remote shards that are read at the same time, by all processes together."""
    ray_address: str | None = None
    """Address of a Ray cluster that scans them: "auto", "local", "ray://HOST:10001" or "HOST:6379"."""

    def __post_init__(self) -> None:
        if self.shards_in_flight < 1:
            raise ConfigError(
                f"shards_in_flight={self.shards_in_flight} is invalid: give a whole number of at least 1."
            )


@contextmanager
def scanning(job: ShardJob, names: Sequence[str], options: ScanOptions) -> Iterator[Iterator[ShardScan]]:
    """Context manager around the scans of shards, in order; one per shard.

    What is found is kept on local disk until the block ends without an error, so that the next run need not find it
    again.

    Args:
        job: What to do with each shard.
        names: The shards.
        options: Where and how.
    """
    worth_keeping = not job.root.is_local or local_bytes(job.root, names, KEPT_BYTES) >= KEPT_BYTES
    journal = open_journal(job) if worth_keeping else None
    scans = _scans(job, names, options, journal)
    try:
        yield scans
    except BaseException:
        if journal is not None:
            journal.close()
        raise
    else:
        if journal is not None:
            journal.remove()
    finally:
        scans.close()  # type: ignore[attr-defined]  # a generator


def _scans(job: ShardJob, names: Sequence[str], options: ScanOptions, journal: Journal | None) -> Iterator[ShardScan]:
    threads, num_workers = 1, useful_workers(job.root, names, options.num_workers)
    if not job.root.is_local:
        num_workers = max(1, min(num_workers, len(names), options.shards_in_flight))
        threads = -(-options.shards_in_flight // num_workers)
        ahead = options.shards_in_flight // max(1, len(names)) - 1
        job = replace(job, windows_ahead=max(0, min(ahead, MOST_WINDOWS_AHEAD)))
    run: Runner | None = None
    if options.ray_address is not None:
        from energon_dali.shards.prepare.on_ray import RayRunner  # lazy: ray is an extra

        run = RayRunner(options.ray_address)
    scans = map_in_order(
        partial(index_shard, job),
        [ShardTask(name, None if journal is None else journal.version(name)) for name in names],
        num_workers,
        threads=threads,
        run=run,
        killed=_killed,
        arrived=None if journal is None else journal.add,
    )
    for scan in scans:
        if not scan.is_known:
            yield scan
            continue
        assert journal is not None, "only a journal knows versions"
        kept = journal.load(scan.shard)
        yield index_shard(job, scan.shard) if kept is None else replace(kept, is_known=True)


def _killed(task: ShardTask, end: str) -> ShardScan:
    return ShardScan(task.shard, error=killed_message(task, end))
