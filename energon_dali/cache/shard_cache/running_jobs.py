"""Which jobs use a cache, and which datasets they read.

There is an empty file in `jobs/` for each job and dataset. The processes of the job set its time while they read the
dataset. A job of which no file was set for a while has finished.
"""

from __future__ import annotations

import hashlib
import os
import time

from energon_dali.cache.shard_cache.block_listing import JOBS
from energon_dali.cache.shard_cache.private_folder import PrivateFolder

RUNNING_SECONDS = 600.0
"""A job that read nothing for this long has finished."""
NOTE_SECONDS = 60.0
"""A process sets the time of a file at most this often."""


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
