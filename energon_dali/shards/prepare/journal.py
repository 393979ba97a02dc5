"""What an interrupted `prepare` has found, kept on local disk, so that the next run continues from there.

The file belongs to one dataset and one way of scanning it. It begins with a line that names both; records follow, one
per shard:

    "SCAN" | size of the JSON u32 | size of the columns u64 | size of the starts u64 | BLAKE2b of the rest, 16 bytes
    | JSON | columns | starts as int64

A record is used only if its digest is right, its extents are valid, and the shard still has the size and the version
(ETag, or the time of its last change) that it had when it was scanned. A record that is cut off ends the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import pickle
import struct
import time
from array import array
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from energon_dali import __version__
from energon_dali.shards.prepare.shard_job import ShardJob, ShardScan, UnreadablePart

KEPT_SECONDS = 30 * 24 * 3600.0
"""Journals of preparations that were never finished are removed after this time."""

_MAGIC = b"SCAN"
_HEADER = struct.Struct("<4sIQQ16s")
_log = logging.getLogger(__name__)


def work_folder() -> Path:
    """Returns the folder of unfinished work: `energon-dali/prepare` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "energon-dali" / "prepare"


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
        names = ("shard", "version", "part_names", "formats", "num_samples", "num_parts", "shard_bytes", "media")
        facts: dict[str, Any] = {name: getattr(scan, name) for name in names}
        facts["unreadable"] = [asdict(bad) for bad in scan.unreadable]
        body = json.dumps(facts).encode()
        starts = array("q", scan.starts).tobytes()
        digest = hashlib.blake2b(body, digest_size=16)
        digest.update(scan.section)
        digest.update(starts)
        try:
            self._file.seek(0, os.SEEK_END)
            header = _HEADER.pack(_MAGIC, len(body), len(scan.section), len(starts), digest.digest())
            for piece in (header, body, scan.section, starts):
                self._file.write(piece)
            self._file.flush()
        except OSError as error:
            _log.warning("What was found is no longer kept for a later run: %s.", error)
            self.close()

    def load(self, shard: str) -> ShardScan | None:
        """Returns what was found in a shard, None if the record is damaged."""
        try:
            assert self._file is not None, "it is open as long as it has records"
            self._file.seek(self._records[shard][1])
            _, body_size, section_size, starts_size, digest = _HEADER.unpack(self._file.read(_HEADER.size))
            content = self._file.read(body_size + section_size + starts_size)
            if hashlib.blake2b(content, digest_size=16).digest() != digest:
                return None
            facts = json.loads(content[:body_size])
            facts["unreadable"] = [UnreadablePart(**bad) for bad in facts["unreadable"]]
            facts["media"] = [tuple(row) for row in facts["media"]]
            starts = array("q")
            starts.frombytes(content[body_size + section_size :])
            scan = ShardScan(**facts, section=content[body_size : body_size + section_size], starts=starts.tolist())
            scan.extents.check()
        except (OSError, ValueError, TypeError, KeyError, struct.error, AssertionError):
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
        size = os.fstat(self._file.fileno()).st_size
        while True:
            offset = self._file.tell()
            header = self._file.read(_HEADER.size)
            if len(header) < _HEADER.size or not header.startswith(_MAGIC):
                break
            _, body_size, section_size, starts_size, _ = _HEADER.unpack(header)
            end = offset + _HEADER.size + body_size + section_size + starts_size
            if end > size:
                break
            try:
                facts = json.loads(self._file.read(body_size))
                self._records[str(facts["shard"])] = (str(facts["version"]), offset)
            except (ValueError, TypeError, KeyError):
                break
            self._file.seek(end)
        self._file.truncate(offset)


def open_journal(job: ShardJob) -> Journal | None:
    """Returns the journal of a job, with what an earlier run left; None if it is in use, or none can be kept.

    Args:
        job: What to do with each shard; a journal of another job is not used.
    """
    folder = work_folder()
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
