"""Which blocks a full cache evicts for a new one: those of finished jobs, and of jobs with more than their share.

How much is on disk is written in a ledger. Which jobs use the cache, and which datasets they read, shows an empty file
in `jobs/` for each job and dataset: the processes of the job set its time while they read the dataset. A job of which
no file was set for a while has finished.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from energon_dali.cache.shard_cache.block_file import JOBS
from energon_dali.cache.shard_cache.private_folder import PrivateFolder

ANY_JOB = b"\0" * 8
RUNNING_SECONDS = 600.0
"""A job that read nothing for this long has finished."""
NOTE_SECONDS = 60.0
"""A process sets the time of a file at most this often."""

_ROW = struct.Struct("<8sqd8s")
_CRC = struct.Struct("<I")
_MAGIC = b"EDSHLDG2"


@dataclass(slots=True)
class Ledger:
    """What the processes of a node know together."""

    total_bytes: int
    """On disk, with what is being fetched."""
    refused_until: float = 0.0
    """Until when nobody looks for blocks to evict, in seconds since 1970: there were none."""
    refused_job: bytes = ANY_JOB
    """8 bytes: the job for which there were none, or ANY_JOB."""


def read_ledger(descriptor: int) -> Ledger | None:
    """Returns the ledger, None if there is none yet or it is damaged.

    Raises:
        OSError: It cannot be read.
    """
    data = os.pread(descriptor, _ROW.size + _CRC.size, 0)
    if len(data) != _ROW.size + _CRC.size or crc32(data[: _ROW.size]) != _CRC.unpack_from(data, _ROW.size)[0]:
        return None
    magic, total, until, job = _ROW.unpack_from(data)
    return Ledger(total, until, job) if magic == _MAGIC and total >= 0 else None


def write_ledger(descriptor: int, ledger: Ledger) -> None:
    """Writes the ledger. Call it with the lock held.

    Raises:
        OSError: It cannot be written.
    """
    row = _ROW.pack(_MAGIC, ledger.total_bytes, ledger.refused_until, ledger.refused_job)
    os.pwrite(descriptor, row + _CRC.pack(crc32(row)), 0)


class RunningJobs:
    """The jobs that use a cache.

    Args:
        folder: The folder of the cache.
        own: 8 bytes: key of the job of this process.
    """

    def __init__(self, folder: PrivateFolder, own: bytes) -> None:
        self._folder = folder
        self.own = own
        self._noted: set[bytes] = set()
        self._note_again = 0.0

    def note(self, dataset: bytes) -> None:
        """Notes that this job reads a dataset.

        Args:
            dataset: 8 bytes: its key.

        Raises:
            OSError: The local disk fails.
        """
        now = time.monotonic()
        if now >= self._note_again:
            self._noted.clear()
            self._note_again = now + NOTE_SECONDS
        if dataset not in self._noted:
            descriptor = self._folder.open(f"{JOBS}/{self.own.hex()}-{dataset.hex()}", os.O_RDWR | os.O_CREAT)
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)
            self._noted.add(dataset)

    def datasets(self) -> dict[bytes, set[bytes]]:
        """Returns the keys of the datasets that each running job reads, and removes the files of finished jobs.

        Raises:
            OSError: The local disk fails.
        """
        found: dict[bytes, set[bytes]] = {self.own: set(self._noted)}
        files: dict[bytes, list[str]] = {}
        running = {self.own}
        now = time.time()
        for name in self._folder.list(JOBS):
            try:
                job, dataset = map(bytes.fromhex, name.split("-"))
            except ValueError:
                continue
            found.setdefault(job, set()).add(dataset)
            files.setdefault(job, []).append(f"{JOBS}/{name}")
            status = self._folder.stat(f"{JOBS}/{name}")
            if status is not None and abs(now - status.st_mtime) < RUNNING_SECONDS:
                running.add(job)
        for job in found.keys() - running:
            for name in files[job]:
                self._folder.unlink(name)
        return {job: found[job] for job in running}


def job_key() -> bytes:
    """Returns the 8 bytes by which the job of this process is known, the same for all ranks on a node.

    All ranks of torch.distributed have one address, which jobs that run at the same time on a node cannot share. A
    process without it is a job of its own.
    """
    address = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    name = str(address if all(address) else os.getpid())
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()


class Shares:
    """How running jobs share a cache: each may hold as many bytes as any other.

    A job holds the blocks of the datasets that it reads, so that jobs that read the same ones hold the same blocks.

    Args:
        max_bytes: Size of the cache.
        jobs: By running job, the datasets that it reads.
        dataset_bytes: By dataset, the bytes of its blocks.
    """

    def __init__(
        self, max_bytes: int, jobs: Mapping[bytes, Iterable[bytes]], dataset_bytes: Mapping[bytes, int]
    ) -> None:
        self._share = max_bytes // max(1, len(jobs))
        self._readers: dict[bytes, list[bytes]] = {}
        self._held = dict.fromkeys(jobs, 0)
        for job, datasets in jobs.items():
            for dataset in datasets:
                self._readers.setdefault(dataset, []).append(job)
                self._held[job] += dataset_bytes.get(dataset, 0)

    def has_room(self, job: bytes, size: int) -> bool:
        """Returns whether a job may hold a number of bytes more."""
        return self._held[job] + size <= self._share

    def any_has_room(self, size: int) -> bool:
        """Returns whether a running job may hold a number of bytes more."""
        return any(self.has_room(job, size) for job in self._held)

    def is_finished(self, dataset: bytes) -> bool:
        """Returns whether no running job reads a dataset."""
        return dataset not in self._readers

    def is_surplus(self, dataset: bytes) -> bool:
        """Returns whether running jobs read a dataset, and all of them hold more than their share."""
        return dataset in self._readers and all(self._held[job] > self._share for job in self._readers[dataset])

    def evict(self, dataset: bytes, size: int) -> None:
        """Counts a block that is evicted."""
        for job in self._readers.get(dataset, ()):
            self._held[job] -= size


def choose_victims(
    datasets: Sequence[bytes], sizes: Sequence[int], shares: Shares, wanted: int, *, from_surplus: bool
) -> list[int]:
    """Returns the rows of the blocks to evict, first those of datasets that no running job reads.

    Args:
        datasets: Of each block, the oldest block first.
        sizes: Of each block, in bytes.
        shares: Of the jobs; what is evicted is counted there.
        wanted: Bytes to evict. The result has fewer where there are not as many.
        from_surplus: Evict blocks of jobs that hold more than their share too.
    """
    victims: list[int] = []
    for is_candidate in (shares.is_finished, shares.is_surplus) if from_surplus else (shares.is_finished,):
        for row, (dataset, size) in enumerate(zip(datasets, sizes, strict=True)):
            if wanted <= 0:
                return victims
            if is_candidate(dataset):
                shares.evict(dataset, size)
                victims.append(row)
                wanted -= size
    return victims
