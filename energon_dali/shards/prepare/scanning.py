"""Scans the shards of a dataset: in this process, in several, or on a Ray cluster; continues an interrupted run.

What an interrupted run has found is kept in a journal on local disk, from which the next run continues. A record is
used only if its digest is right, its extents are valid, and the shard still has the size and the version (ETag, or the
time of its last change) that it had when it was scanned.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from energon_dali import __version__
from energon_dali.errors import ConfigError
from energon_dali.shards.prepare.journal import Journal
from energon_dali.shards.prepare.parallel import killed_message, map_in_order
from energon_dali.shards.prepare.shard_job import ShardJob, ShardScan, UnreadablePart, index_shard
from energon_dali.shards.storage import StoragePath

BYTES_PER_WORKER = 256 << 20
"""Scanning shards of this size takes less time than starting a process."""
INDEXED_BYTES_PER_WORKER = 32 << 20
"""The same if videos are indexed, which takes about ten times as long."""
ShardTask: TypeAlias = tuple[str, str | None]
"""A shard to scan, and its version if that is already known."""
KEPT_BYTES = 256 << 20
"""What is found in local shards of less than this in all is not kept for a later run: scanning takes seconds."""
MOST_WINDOWS_AHEAD = 8
"""Windows of one remote shard that are requested at the same time."""

NOTHING_KNOWN: Mapping[str, str] = MappingProxyType({})

_log = logging.getLogger(__name__)


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
def scanning(
    job: ShardJob, names: Sequence[str], options: ScanOptions, known: Mapping[str, str] = NOTHING_KNOWN
) -> Iterator[Iterator[ShardScan]]:
    """Context manager around the scans of shards, in order; one per shard.

    What is found is kept on local disk until the block ends without an error, so that the next run need not find it
    again.

    Args:
        job: What to do with each shard.
        names: The shards.
        options: Where and how.
        known: Versions of shards whose scans the caller already has. Where a shard still has its version, its
            scan is empty, and `is_known`.
    """
    is_slow = not job.root.is_local or job.index_media is not None
    worth_keeping = is_slow or local_bytes(job.root, names, KEPT_BYTES) >= KEPT_BYTES
    journal = (open_journal(job) if worth_keeping else None) or ScanJournal()
    scans = _scans(job, names, options, journal, known)
    try:
        yield scans
    except BaseException:
        journal.close()
        raise
    else:
        journal.remove()
    finally:
        scans.close()  # type: ignore[attr-defined]  # a generator


def _scans(
    job: ShardJob, names: Sequence[str], options: ScanOptions, journal: ScanJournal, known: Mapping[str, str]
) -> Iterator[ShardScan]:
    tasks = [(name, known.get(name) or journal.version(name)) for name in names]
    scan_all = partial(map_in_order, killed=_killed, arrived=journal.add)
    for scan in _scan_somewhere(job, tasks, options, scan_all):
        if not scan.is_known or scan.shard in known:
            yield scan
            continue
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
        shards = [shard for shard, _ in tasks]
        num_workers = useful_workers(job.root, shards, options.num_workers, bytes_per_worker(job))
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
        worthwhile = workers_worthwhile(size * len(rest) // len(first), bytes_per_worker(job))
        num_workers = min(options.num_workers, worthwhile, len(rest), in_flight)
        yield from scan_all(scan_one, rest, num_workers, threads=-(-in_flight // num_workers))


def useful_workers(root: StoragePath, shards: Sequence[str], num_workers: int, share: int = BYTES_PER_WORKER) -> int:
    """Returns how many processes are worth their start; this process scans small local datasets alone.

    Args:
        root: Folder of the dataset.
        shards: The shards.
        num_workers: The most.
        share: Bytes for which another process is worth its start.
    """
    if num_workers <= 1 or not root.is_local:
        return num_workers
    return min(num_workers, workers_worthwhile(local_bytes(root, shards, num_workers * share), share))


def workers_worthwhile(size: int, share: int = BYTES_PER_WORKER) -> int:
    """Returns how many processes are worth their start for shards of a size in bytes, at least 1."""
    return size // share + 1


def bytes_per_worker(job: ShardJob) -> int:
    """Returns for how many bytes of shards another process is worth its start."""
    return BYTES_PER_WORKER if job.index_media is None else INDEXED_BYTES_PER_WORKER


def local_bytes(root: StoragePath, shards: Sequence[str], enough: int) -> int:
    """Returns the size of local shards in bytes; stops counting when it is `enough`."""
    total = 0
    for shard in shards:
        path = (root / shard).local
        total += path.stat().st_size if path.is_file() else 0
        if total >= enough:
            return enough
    return total


def _index(job: ShardJob, task: ShardTask) -> ShardScan:
    return index_shard(job, *task)


def _killed(task: ShardTask, end: str) -> ShardScan:
    return ShardScan(task[0], error=killed_message(task[0], end))


class ScanJournal(Journal):
    """The scans of one unfinished preparation; made by `open_journal`."""

    def add(self, scan: ShardScan) -> None:
        """Keeps what was found in a shard."""
        if not scan.error and scan.version and not scan.is_known:
            self.write(scan.shard, scan.version, scan, _plain)

    def load(self, shard: str) -> ShardScan | None:
        """Returns what was found in a shard, None if the record is damaged."""
        try:
            facts = self.read(shard)
            facts["section"] = base64.b64decode(facts["section"])
            facts["unreadable"] = [UnreadablePart(**bad) for bad in facts["unreadable"]]
            facts["media"] = [tuple(row) for row in facts["media"]]
            facts["media_index"] = [(place, base64.b64decode(entry)) for place, entry in facts["media_index"]]
            scan = ShardScan(**facts)
            scan.extents.check()
        except (OSError, ValueError, TypeError, LookupError):
            return None
        return scan if scan.shard == shard and len(scan.starts) == scan.num_samples + 1 else None


def _plain(value: Any) -> Any:
    """Returns what JSON lacks: columns in base64, dataclasses as dicts of their fields."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return {one.name: getattr(value, one.name) for one in fields(value)}


def open_journal(job: ShardJob) -> ScanJournal | None:
    """Returns the journal of a job, with what an earlier run left; None if it is in use, or none can be kept.

    Args:
        job: What to do with each shard; a journal of another job is not used.
    """
    try:
        fingerprint = hashlib.blake2b(pickle.dumps(job, protocol=4), digest_size=16).hexdigest()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        _log.info("What is found is not kept for a later run: %s.", error)
        return None
    work = {"root": job.root.url, "job": fingerprint, "version": __version__}
    return ScanJournal.open("prepare", ".scans", work)
