"""What an interrupted `prepare` has found, kept on local disk, so that the next run continues from there.

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
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from energon_dali import __version__
from energon_dali.shards.prepare.shard_job import ShardJob, ShardScan, UnreadablePart

KEPT_SECONDS = 30 * 24 * 3600.0
"""Journals of preparations that were never finished are removed after this time."""

_log = logging.getLogger(__name__)


def cache_folder(purpose: str) -> Path:
    """Returns the folder for what a command keeps for its next run: `energon-dali/PURPOSE` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "energon-dali" / purpose


class Journal:
    """The scans of one unfinished preparation; made by `open_journal`.

    Args:
        file: The open and locked file.
        path: Its path.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file: BinaryIO | None = file
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
        content = json.dumps([scan.shard, scan.version]) + "\t" + json.dumps(asdict(scan), default=_encoded)
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
            scan = ShardScan(**facts)
            scan.extents.check()
        except (OSError, ValueError, TypeError, KeyError, AssertionError):
            return None
        return scan if scan.shard == shard and len(scan.starts) == scan.num_samples + 1 else None

    def remove(self) -> None:
        """Removes the file: the preparation is done."""
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


def _encoded(columns: bytes) -> str:
    return base64.b64encode(columns).decode()


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
