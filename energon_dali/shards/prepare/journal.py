"""Keeps on local disk what an interrupted command has found, so that its next run continues from there.

A journal belongs to one piece of work, which its first line names; records follow, one line each:

    BLAKE2b of the rest, 32 digits | [name, version] as JSON | what was found as JSON

A record is used only if its digest is right. A record that is cut off ends the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from typing_extensions import Self

KEPT_SECONDS = 30 * 24 * 3600.0
"""Journals of work that was never finished are removed after this time."""

_log = logging.getLogger(__name__)


def cache_folder(purpose: str) -> Path:
    """Returns the folder for what a command keeps for its next run: `energon-dali/PURPOSE` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "energon-dali" / purpose


class Journal:
    """What was found in one unfinished piece of work; made by `open`. Without a file, it keeps nothing.

    Args:
        file: The open and locked file.
        path: Its path.
    """

    def __init__(self, file: BinaryIO | None = None, path: Path | None = None) -> None:
        self._file = file
        self._path = path
        self._records: dict[str, tuple[str, int]] = {}
        """Version and offset of each record, by name."""

    @classmethod
    def open(cls, purpose: str, suffix: str, work: Mapping[str, str]) -> Self | None:
        """Returns the journal of a piece of work, with what an earlier run left; None if it is in use, or none can be
        kept.

        Args:
            purpose: Folder in the user's cache.
            suffix: Of the file's name.
            work: What names the work. A journal of other work is not used.
        """
        folder = cache_folder(purpose)
        first = json.dumps(dict(work)).encode() + b"\n"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _remove_old(folder, suffix)
            path = folder / f"{hashlib.blake2b(first, digest_size=16).hexdigest()}{suffix}"
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
        except OSError as error:
            _log.info("What is found is not kept for a later run: %s.", error)
            return None
        journal = cls(file, path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file.readline() == first:
                journal._read()
            else:
                file.seek(0)
                file.truncate()
                file.write(first)
                file.flush()
        except OSError as error:  # another process does the same work
            _log.info("What is found is not kept for a later run: %s.", error)
            journal.close()
            return None
        return journal

    def version(self, name: str) -> str | None:
        """Returns the version of a record; None if there is none of that name."""
        found = self._records.get(name)
        return None if found is None else found[0]

    def write(self, name: str, version: str, content: Any, default: Callable[[Any], Any] | None = None) -> None:
        """Keeps a record, unless there is one of that name; a full disk ends the keeping, not the work.

        Args:
            name: By which it is found.
            version: Of what it is about.
            content: What was found, for JSON.
            default: Makes plain values of what JSON lacks.
        """
        if self._file is None or name in self._records:
            return
        line = json.dumps([name, version]) + "\t" + json.dumps(content, default=default)
        try:
            self._file.seek(0, os.SEEK_END)
            self._file.write(f"{_digest(line.encode())}\t{line}\n".encode())
            self._file.flush()
        except OSError as error:
            _log.warning("What was found is no longer kept for a later run: %s.", error)
            self.close()

    def read(self, name: str) -> Any:
        """Returns what a record of an earlier run holds.

        Raises:
            OSError: It cannot be read.
            ValueError: It is damaged.
            KeyError: There is none of that name.
        """
        offset = self._records[name][1]
        if self._file is None:
            raise ValueError("the journal is closed")
        self._file.seek(offset)
        digest, _, content = self._file.readline().rstrip(b"\n").partition(b"\t")
        if _digest(content) != digest.decode():
            raise ValueError("the record is damaged")
        return json.loads(content.partition(b"\t")[2])

    def remove(self) -> None:
        """Removes the file: the work is done."""
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
                name, version = json.loads(line.split(b"\t", 2)[1])
            except (ValueError, IndexError):
                break
            if not line.endswith(b"\n"):
                break
            self._records[str(name)] = str(version), offset
            offset += len(line)
        self._file.truncate(offset)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _remove_old(folder: Path, suffix: str) -> None:
    for path in folder.glob(f"*{suffix}"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink()
