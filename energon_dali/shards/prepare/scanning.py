"""Scans the shards of a dataset: in this process, in several, or on a Ray cluster; continues an interrupted run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from energon_dali.errors import ConfigError
from energon_dali.shards.prepare.journal import Journal, open_journal
from energon_dali.shards.prepare.parallel import (
    killed_message,
    local_bytes,
    map_in_order,
    useful_workers,
    workers_worthwhile,
)
from energon_dali.shards.prepare.shard_job import ShardJob, ShardScan, index_shard

ShardTask: TypeAlias = tuple[str, str | None]
"""A shard to scan, and its version if that is already known."""
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
    tasks = [(name, None if journal is None else journal.version(name)) for name in names]
    scan_all = partial(
        map_in_order,
        killed=_killed,
        arrived=None if journal is None else journal.add,
    )
    for scan in _scan_somewhere(job, tasks, options, scan_all):
        if not scan.is_known:
            yield scan
            continue
        assert journal is not None, "only a journal records versions"
        kept = journal.load(scan.shard)
        yield index_shard(job, scan.shard) if kept is None else replace(kept, is_known=True)


def _scan_somewhere(
    job: ShardJob, tasks: Sequence[ShardTask], options: ScanOptions, scan_all: Callable[..., Iterator[ShardScan]]
) -> Iterator[ShardScan]:
    """Yields the scans, and chooses where to make them."""
    if options.ray_address is not None:
        yield from scan_all(partial(_index, job), tasks, 1, ray_address=options.ray_address)
        return
    if job.root.is_local:
        num_workers = useful_workers(job.root, [shard for shard, _ in tasks], options.num_workers)
        yield from scan_all(partial(_index, job), tasks, num_workers)
        return
    in_flight = options.shards_in_flight
    ahead = in_flight // max(1, len(tasks)) - 1
    scan_one = partial(_index, replace(job, windows_ahead=max(0, min(ahead, MOST_WINDOWS_AHEAD))))
    # The first shards say how large all are, and so how many processes are worth their start.
    first = tasks[:in_flight] if options.num_workers > 1 else tasks
    size = 0
    for scan in scan_all(scan_one, first, 1, threads=in_flight):
        size += scan.shard_bytes
        yield scan
    rest = tasks[len(first) :]
    if rest:
        worthwhile = workers_worthwhile(size * len(rest) // len(first))
        num_workers = min(options.num_workers, worthwhile, len(rest), in_flight)
        yield from scan_all(scan_one, rest, num_workers, threads=-(-in_flight // num_workers))


def _index(job: ShardJob, task: ShardTask) -> ShardScan:
    return index_shard(job, *task)


def _killed(task: ShardTask, end: str) -> ShardScan:
    return ShardScan(task[0], error=killed_message(task[0], end))
