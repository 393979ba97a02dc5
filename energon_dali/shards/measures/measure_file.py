"""Reads a measure file through a memory map; a remote one is first copied to a local cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
import zlib
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.plan.measured import NOT_MEASURED, TEXT_TOKENS, TOKENS, VISION_TOKENS
from energon_dali.plan.rng import Int64Array
from energon_dali.shards.documents.content import MAX_DOCUMENT_BYTES
from energon_dali.shards.measures.description import BLOCK, HEADER, MAGIC, Column, Description, parse_description
from energon_dali.shards.prepare.journal import cache_folder
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import atomic_file, writing
from energon_dali.shards.storage.local import LocalReader
from energon_dali.shards.storage.retry import with_retries

KEPT_SECONDS = 30 * 24 * 3600.0
"""Copies of remote files that were not opened for this long are removed."""


class MeasureFile:
    """The measured values of a dataset's samples; a `SampleValues`.

    Each block of a column is checked once, when it is first needed. Picklable: the file is opened and checked again in
    the other process.

    Args:
        path: The file, local or remote.
        identity: What its `identity` has to be; None takes any.

    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: It is damaged, has another version, or another identity.
        StorageError: It cannot be read, or its copy cannot be written.
    """

    def __init__(self, path: StoragePath, identity: str | None = None) -> None:
        self.path = path
        self._local = path if path.is_local else _copied(path)
        reader = self._local.open()
        assert isinstance(reader, LocalReader), "the path is local"
        self._reader = reader
        header = self._header()
        _, offset, size, self._size, digest = HEADER.unpack(header)
        if self._size != reader.size or not HEADER.size <= offset <= self._size or offset + size != self._size:
            raise self._damaged(f"has {reader.size:,} bytes and should have {self._size:,}")
        if size > MAX_DOCUMENT_BYTES:
            raise self._damaged(f"has a description of {size:,} bytes")
        content = reader.read_at(offset, size)
        if hashlib.sha256(content).digest() != digest:
            raise self._damaged("is damaged in its description")
        try:
            self.description: Description = parse_description(content, offset)
        except (ValueError, TypeError) as error:
            raise self._damaged(f"is damaged in its description: {error}") from error
        self.identity = hashlib.blake2b(content, digest_size=16).hexdigest()
        if identity is not None and identity != self.identity:
            raise DatasetFormatError(
                f"{path} was written again since it was opened. Start the job again, or keep the file as it is while "
                "jobs run."
            )
        self.num_samples = self.description.num_samples
        self._columns = {column.name: column for column in self.description.columns}
        self._map = with_retries(reader.map, "map", self._local.url)
        self._values: dict[str, npt.NDArray[Any]] = {
            name: np.frombuffer(self._map, f"<i{column.width}", self.num_samples, column.offset)
            for name, column in self._columns.items()
        }
        self._checked = {name: np.zeros(len(column.checksums), bool) for name, column in self._columns.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._columns)

    def take(self, name: str, numbers: Int64Array) -> Int64Array:
        """Returns a value of samples: int64[n], -1 for those that were not measured; see `SampleValues`."""
        if name == TOKENS:
            text, vision = self.take(TEXT_TOKENS, numbers), self.take(VISION_TOKENS, numbers)
            return np.where((text < 0) | (vision < 0), NOT_MEASURED, text + vision)
        column = self._columns.get(name)
        if column is None:
            raise ConfigError(
                f"{self.path} has no values named {name!r}. It has {', '.join((TOKENS, *self.names))}. Choose one of "
                "these, or let measure_sample return it and measure the dataset again."
            )
        numbers = np.asarray(numbers, np.int64)
        if not len(numbers):
            return np.zeros(0, np.int64)
        first, last = int(numbers.min()), int(numbers.max())
        if first < 0 or last >= self.num_samples:
            raise ConfigError(
                f"{self.path} has values of {self.num_samples:,} samples, and those of {first:,} to {last:,} were "
                "asked for. It belongs to other data: measure the dataset again."
            )
        if self._map.size() < self._size:
            raise self._damaged(f"has {self._map.size():,} bytes and had {self._size:,} when it was opened")
        checked = self._checked[name]
        if not checked.all():
            blocks = numbers // BLOCK
            for block in np.unique(blocks[~checked[blocks]]).tolist():
                self._check(column, block)
                checked[block] = True
        found: Int64Array = self._values[name][numbers].astype(np.int64)
        return found

    def check_all(self) -> None:
        """Compares the checksums of all values.

        Raises:
            DatasetFormatError: The file is damaged.
            StorageError: It cannot be read.
        """
        for column in self._columns.values():
            for block in range(len(column.checksums)):
                self._check(column, block)

    def _check(self, column: Column, block: int) -> None:
        """Compares the checksum of a block, which is read and not mapped: a disk error would kill the process."""
        first = block * BLOCK
        size = min(BLOCK, self.num_samples - first) * column.width
        data = self._reader.read_at(column.offset + first * column.width, size)
        if len(data) != size or zlib.crc32(data) != column.checksums[block]:
            raise self._damaged(f"is damaged in the values {column.name}")
        values = np.frombuffer(data, f"<i{column.width}")
        if int(values.min()) < NOT_MEASURED or int(values.max()) > column.largest:
            raise self._damaged(f"has values of {column.name} that are out of their range")

    def _header(self) -> bytes:
        header = self._reader.read_at(0, HEADER.size)
        if len(header) < HEADER.size or header[:8] != MAGIC or header[64:].strip(b"\0"):
            raise self._damaged("does not begin like a measure file of this version")
        return header

    def _damaged(self, what: str) -> DatasetFormatError:
        if not self.path.is_local:
            with suppress(OSError):  # the copy: the next opening makes a new one
                self._local.local.unlink()
        return DatasetFormatError(f"{self.path} {what}. Delete it, and run `energon-dali measure` again.")

    def close(self) -> None:
        """Closes the file; values that were taken stay valid, and so does the map."""
        self._reader.close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeasureFile) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return MeasureFile, (self.path, self.identity)

    def __repr__(self) -> str:
        return f"MeasureFile({self.path}, {self.num_samples:,} samples, {', '.join(self.names)})"


def _copied(path: StoragePath) -> StoragePath:
    """Returns the local copy of a remote file, which is named after its content.

    The processes of a user copy a file once: the others wait.

    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: It does not begin like a measure file.
        StorageError: It cannot be read, or the copy cannot be written.
    """
    with closing(path.open()) as reader:
        header = reader.read_at(0, HEADER.size)
        size = reader.size
    if len(header) < HEADER.size or header[:8] != MAGIC:
        raise DatasetFormatError(
            f"{path} does not begin like a measure file of this version. Delete it, and run `energon-dali measure` "
            "again."
        )
    folder = cache_folder("measures")
    copy = folder / f"{hashlib.blake2b(header, digest_size=16).hexdigest()}.bin"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # file systems without locks: each process makes a copy
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.is_file() or copy.stat().st_size != size:
            _remove_old(folder)
            with atomic_file(copy) as temporary:
                path.copy_to(temporary)
        else:
            with suppress(OSError):
                os.utime(copy)
    finally:
        os.close(lock)
    return StoragePath.of(copy)


def _remove_old(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink()
