"""Scans the shards of a dataset: in this process, in several, or on a Ray cluster; continues an interrupted run.

What an interrupted run has found is kept in a journal on local disk, from which the next run continues.

The file belongs to one dataset and one way of scanning it. It begins with a line that names both; records follow, one
line per shard:

    BLAKE2b of the rest, 32 digits | [shard, version] as JSON | ShardScan as JSON, its columns in base64

A record is used only if its digest is right, its extents are valid, and the shard still has the size and the version
(ETag, or the time of its last change) that it had when it was scanned. A record that is cut off ends the file.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeAlias

from energon_dali import __version__
from energon_dali.errors import ConfigError
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
KEPT_SECONDS = 30 * 24 * 3600.0
"""Journals of preparations that were never finished are removed after this time."""

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
        known: Versions of shards about which the caller knows everything. Where a shard still has its version, its
            scan is empty, and `is_known`.
    """
    is_slow = not job.root.is_local or job.index_media is not None
    worth_keeping = is_slow or local_bytes(job.root, names, KEPT_BYTES) >= KEPT_BYTES
    journal = (open_journal(job) if worth_keeping else None) or Journal()
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
    job: ShardJob, names: Sequence[str], options: ScanOptions, journal: Journal, known: Mapping[str, str]
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


def cache_folder(purpose: str) -> Path:
    """Returns the folder for what a command keeps for its next run: `energon-dali/PURPOSE` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "energon-dali" / purpose


class Journal:
    """The scans of one unfinished preparation; made by `open_journal`. Without a file, it keeps nothing.

    Args:
        file: The open and locked file.
        path: Its path.
    """

    def __init__(self, file: BinaryIO | None = None, path: Path | None = None) -> None:
        self._file = file
        self._path = path
        self._records: dict[str, tuple[str, int]] = {}
        """Version and offset of the record of each shard."""

    def version(self, shard: str) -> str | None:
        """Returns the version that a shard had when it was scanned; None if it was not."""
        found = self._records.get(shard)
        return None if found is None else found[0]

    def add(self, scan: ShardScan) -> None:
        """Keeps what was found in a shard; a full disk ends the keeping, not the preparation."""
        if self._file is None or scan.error or not scan.version or scan.shard in self._records:
            return
        content = json.dumps([scan.shard, scan.version]) + "\t" + json.dumps(scan, default=_plain)
        try:
            self._file.seek(0, os.SEEK_END)
            self._file.write(f"{_digest(content.encode())}\t{content}\n".encode())
            self._file.flush()
        except OSError as error:
            _log.warning("What was found is no longer kept for a later run: %s.", error)
            self.close()

    def load(self, shard: str) -> ShardScan | None:
        """Returns what was found in a shard, None if the record is damaged."""
        try:
            assert self._file is not None, "it is open as long as it has records"
            self._file.seek(self._records[shard][1])
            digest, _, content = self._file.readline().rstrip(b"\n").partition(b"\t")
            if _digest(content) != digest.decode():
                return None
            facts = json.loads(content.partition(b"\t")[2])
            facts["section"] = base64.b64decode(facts["section"])
            facts["unreadable"] = [UnreadablePart(**bad) for bad in facts["unreadable"]]
            facts["media"] = [tuple(row) for row in facts["media"]]
            facts["media_index"] = [(place, base64.b64decode(entry)) for place, entry in facts["media_index"]]
            scan = ShardScan(**facts)
            scan.extents.check()
        except (OSError, ValueError, TypeError, KeyError, AssertionError):
            return None
        return scan if scan.shard == shard and len(scan.starts) == scan.num_samples + 1 else None

    def remove(self) -> None:
        """Removes the file: the preparation is done."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
        self.close()

    def close(self) -> None:
        """Closes the file; a later run finds it."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None

    def _read(self) -> None:
        """Finds the records, and cuts off what follows the last whole one."""
        assert self._file is not None, "it was just opened"
        offset = self._file.tell()
        for line in self._file:
            try:
                shard, version = json.loads(line.split(b"\t", 2)[1])
            except (ValueError, IndexError):
                break
            if not line.endswith(b"\n"):
                break
            self._records[str(shard)] = str(version), offset
            offset += len(line)
        self._file.truncate(offset)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """Returns what JSON lacks: columns in base64, dataclasses as dicts of their fields."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return {one.name: getattr(value, one.name) for one in fields(value)}


def open_journal(job: ShardJob) -> Journal | None:
    """Returns the journal of a job, with what an earlier run left; None if it is in use, or none can be kept.

    Args:
        job: What to do with each shard; a journal of another job is not used.
    """
    folder = cache_folder("prepare")
    try:
        fingerprint = hashlib.blake2b(pickle.dumps(job, protocol=4), digest_size=16).hexdigest()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_old(folder)
        first = json.dumps({"root": job.root.url, "job": fingerprint, "version": __version__}).encode() + b"\n"
        path = folder / f"{hashlib.blake2b(first, digest_size=16).hexdigest()}.scans"
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
    except (OSError, pickle.PicklingError, AttributeError, TypeError) as error:
        _log.info("What is found is not kept for a later run: %s.", error)
        return None
    journal = Journal(file, path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if file.readline() == first:
            journal._read()
        else:
            file.seek(0)
            file.truncate()
            file.write(first)
            file.flush()
    except OSError as error:  # another process prepares the same dataset
        _log.info("What is found is not kept for a later run: %s.", error)
        journal.close()
        return None
    return journal


def _remove_old(folder: Path) -> None:
    for path in folder.glob("*.scans"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink()
