"""The file `.nv-meta/extents.bin`: the extents of all shards, for memory mapping.

Layout, all little-endian:

    header   magic "EDEXT001" | uuid of the index, 40 bytes | shards u64 | offset of the table u64
             | size of the file u64 | sha-256 of the shard names and counts, 32 bytes | zeros to 128 bytes
    section  one per shard, aligned to 8 bytes: the columns of `ShardExtents`,
             then JSON {"part_names": [], "formats": []}
    table    64 bytes per shard: offset of the section, its size, size of the JSON, samples, parts, size of the tar,
             CRC-32 of the section, 0; each u64

A process maps the file and touches only the rows of the table and the sections of the shards that it reads, whatever
the number of samples. The uuid is that of `index.uuid`, so that an index rewritten by any program is noticed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import struct
import tempfile
import zlib
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from energon_dali.errors import DatasetFormatError, StorageError
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.index.extents import ShardExtents, columns_bytes
from energon_dali.shards.index.scattered_extents import ScatteredExtents, even_steps
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import writing
from energon_dali.shards.storage.local import LocalReader
from energon_dali.shards.storage.node_files import NodeReader
from energon_dali.shards.storage.protocols import RangeReader
from energon_dali.shards.storage.request_pool import CALLS_AT_ONCE, map_in_threads
from energon_dali.shards.storage.retry import with_retries

MAGIC = b"EDEXT001"
_HEADER = struct.Struct("<8s40sQQQ32s24x")
_ROW = struct.Struct("<8Q")

FETCHED_BYTES = 1 << 20
"""Small sections of a remote file are fetched together up to this size."""
MAPPED_AT_ONCE_BYTES = 64 << 10
"""What a page fault maps: 16 pages. Reading entries of such a section takes several system calls, each of which hands
the interpreter lock over where threads wait for it."""
_LARGE_SECTION = 1 << 20
"""Size of a section from which on checking it touches more pages than should stay mapped."""
_SMALL_MAP_BYTES = 16 << 20
"""Maps up to this size, of about 430,000 samples, keep the pages that were touched."""
_KEPT_NAMES = 4096


def digest_of_counts(shard_counts: Mapping[str, int]) -> bytes:
    """Returns a digest (32 bytes) of the names and counts of all shards, in their order."""
    return hashlib.sha256(json.dumps(list(shard_counts.items())).encode()).digest()


class ExtentFileWriter:
    """Writes the file section by section, in the order of the shards; for use in a `with` statement.

    Args:
        path: Local file to write.

    Raises:
        StorageError: It cannot be written. All methods raise it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with writing(path):
            self._file: BinaryIO = path.open("wb")
            self._file.write(bytes(_HEADER.size))
        self._rows = bytearray()

    def add(self, section: bytes, names: bytes, num_samples: int, num_parts: int, shard_bytes: int) -> None:
        """Adds the next shard.

        Args:
            section: The columns, from `ExtentsBuilder.section`.
            names: The names, from `pack_names`.
            num_samples: Number of samples in the shard.
            num_parts: Number of parts in the shard.
            shard_bytes: Size of the tar in bytes.
        """
        with writing(self._path):
            offset = self._file.tell()
            self._file.write(section)
            self._file.write(names)
            self._file.write(bytes(-(len(section) + len(names)) % 8))
        crc = zlib.crc32(names, zlib.crc32(section))
        self._rows += _ROW.pack(offset, len(section), len(names), num_samples, num_parts, shard_bytes, crc, 0)

    def finish(self, uuid: str, shard_counts: Mapping[str, int]) -> None:
        """Writes the table and the header."""
        digest = digest_of_counts(shard_counts)
        with writing(self._path):
            table = self._file.tell()
            self._file.write(self._rows)
            size = self._file.tell()
            self._file.seek(0)
            self._file.write(_HEADER.pack(MAGIC, uuid.encode(), len(shard_counts), table, size, digest))

    def __enter__(self) -> ExtentFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with writing(self._path):
                self._file.close()
        except StorageError:
            if error is None:  # closing writes what could not be written before
                raise


def pack_names(part_names: list[str], formats: list[str]) -> bytes:
    """Returns the names of a section in their stored form."""
    return json.dumps({"part_names": part_names, "formats": formats}).encode()


class ExtentFile:
    """Reads the file through a memory map; a remote file is copied, section by section, into a temporary file.

    Each section is checked once, when it is first asked for. After that, asking again costs microseconds, so the
    extents of a shard need not be kept. The pages of the map are given back by `release_pages`.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: It is cut off, or has another version.
        StorageError: It cannot be read, or its copy cannot be written.
    """

    def __init__(self, path: StoragePath) -> None:
        self.path = path
        self._reader: RangeReader = path.open() if path.is_local else NodeReader(path)
        header = self._reader.read_at(0, _HEADER.size)
        if len(header) < _HEADER.size or header[:8] != MAGIC:
            self._reader.close()
            raise self._damaged("does not begin like a file of this version")
        _, uuid, self.num_shards, table, size, self.digest = _HEADER.unpack(header)
        self.uuid = uuid.rstrip(b"\0").decode("ascii", "replace")
        if size != self._reader.size or table < _HEADER.size or table + self.num_shards * _ROW.size != size:
            self._reader.close()
            raise self._damaged(f"has {self._reader.size} bytes and should have {size}")
        self._table = self._reader.read_at(table, self.num_shards * _ROW.size)
        self._checked = bytearray(self.num_shards)
        self._steps = array("q", bytes(16 * self.num_shards))  # of each checked section, see even_steps
        self._names: dict[bytes, tuple[list[str], list[str]]] = {}
        self._copy: _LocalCopy | None = None
        if isinstance(self._reader, LocalReader):
            self._map = with_retries(self._reader.map, "map", path.url)
        else:
            self._copy = _LocalCopy(self._reader, self._table)
            self._map = self._copy.map
        self._read = self._reader.read_at if self._copy is None else self._copy.read_at
        self._read_entry = self._reader.read_entry if isinstance(self._reader, LocalReader) else self._read

    def shard(self, index: int, *, is_scattered: bool = False) -> ShardExtents:
        """Returns the extents of a shard.

        Args:
            index: Index of the shard.
            is_scattered: Read each entry when it is wanted instead of mapping them, for samples from everywhere. A
                section that one page fault maps is mapped nevertheless.

        Raises:
            DatasetFormatError: The section is damaged.
            StorageError: It cannot be read.
        """
        offset, size, names_size, samples, parts, shard_bytes, crc, _ = _ROW.unpack_from(self._table, index * _ROW.size)
        if not self._checked[index]:
            self._check(index, offset, size, size + names_size, columns_bytes(samples, parts), crc)
        if self._map.size() < self._reader.size:
            raise self._damaged(f"has {self._map.size()} bytes and had {self._reader.size} when it was opened")
        try:
            part_names, formats = self._names_of(self._read(offset + size, names_size))
            section = memoryview(self._map)[offset : offset + size]
            if not self._checked[index]:
                extents = ShardExtents(section, samples, parts, shard_bytes, part_names, formats)
                extents.check()
                self._steps[2 * index : 2 * index + 2] = array("q", even_steps(extents))
                self._checked[index] = 1
                if size >= _LARGE_SECTION:
                    self.release_pages()
            if is_scattered and size > MAPPED_AT_ONCE_BYTES:
                steps = self._steps[2 * index], self._steps[2 * index + 1]
                return ScatteredExtents(
                    self._read_entry, offset, samples, parts, shard_bytes, part_names, formats, steps
                )
            return ShardExtents(section, samples, parts, shard_bytes, part_names, formats)
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"is damaged in the section of shard {index} ({excerpt(str(error))})") from error

    def _check(self, index: int, offset: int, size: int, whole: int, least: int, crc: int) -> None:
        """Fetches a section, if it is remote, and compares its checksum, chunk by chunk.

        It is read even if it is mapped: a disk error while reading the map would kill the process, and can be retried
        here.

        Raises:
            DatasetFormatError: The section is damaged.
            StorageError: It cannot be read.
        """
        if offset + whole > self._reader.size or least > size:
            raise self._damaged(f"is damaged in the section of shard {index}")
        if self._copy is not None:
            self._copy.fetch([index])
        found = done = 0
        while done < whole:
            chunk = self._read(offset + done, min(FETCHED_BYTES, whole - done))
            if not chunk:
                break
            found, done = zlib.crc32(chunk, found), done + len(chunk)
        if done != whole or found != crc:
            if self._copy is not None:
                self._copy.forget(index)
            raise self._damaged(f"is damaged in the section of shard {index}")

    def _names_of(self, packed: bytes) -> tuple[list[str], list[str]]:
        """Returns the names of parts and formats of a section; sections that have the same ones share the lists."""
        found = self._names.get(packed)
        if found is None:
            names = parse_json(packed, any_number=True)
            part_names, formats = names["part_names"], names["formats"]
            if not isinstance(part_names, list) or not isinstance(formats, list):
                raise ValueError("its names are not lists")
            if len(self._names) >= _KEPT_NAMES:
                self._names.clear()
            found = self._names[packed] = (part_names, formats)
        return found

    def fetch(self, indices: Iterable[int]) -> None:
        """Copies the sections of shards from remote storage, several at a time; does nothing for a local file.

        Raises:
            StorageError: One cannot be read, or its copy cannot be written.
        """
        if self._copy is not None:
            self._copy.fetch(indices)

    def release_pages(self) -> None:
        """Gives back the pages of a large map that were touched; the page cache of the system keeps them."""
        if self._map.size() > _SMALL_MAP_BYTES:
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Closes the file; extents that are still in use stay valid."""
        self._reader.close()

    def _damaged(self, what: str) -> DatasetFormatError:
        return DatasetFormatError(f"{self.path} {what}. Delete it, or write it again with `energon-dali prepare PATH`.")


class _LocalCopy:
    """A temporary file, deleted already, that receives the sections of a remote file at the offsets they have there.

    Args:
        reader: The remote file.
        table: Its table.

    Raises:
        StorageError: The file cannot be made.
    """

    def __init__(self, reader: RangeReader, table: bytes) -> None:
        self._reader = reader
        self._table = table
        self._copied = bytearray(len(table) // _ROW.size)
        with writing(tempfile.gettempdir()):
            self._file = tempfile.TemporaryFile(prefix="energon-dali-")  # noqa: SIM115 - lives as long as the index
            os.ftruncate(self._file.fileno(), max(1, reader.size))
        self.map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def fetch(self, indices: Iterable[int]) -> None:
        """Copies the sections of shards, and their neighbours where these are small."""
        requests: list[tuple[int, int, list[int]]] = []
        asked: set[int] = set()
        for index in sorted(indices):
            if self._copied[index] or index in asked:
                continue
            start, end = self._bounds(index)
            numbers = [index]
            for neighbour in range(index + 1, len(self._copied)):
                first, last = self._bounds(neighbour)
                if first < end or last - start > FETCHED_BYTES or self._copied[neighbour]:
                    break
                numbers.append(neighbour)
                end = last
            asked.update(numbers)
            requests.append((start, end - start, numbers))
        for _ in map_in_threads(lambda request: self._fetch(*request), requests, CALLS_AT_ONCE):
            pass

    def _fetch(self, start: int, size: int, numbers: list[int]) -> None:
        data = self._reader.read_at(start, size)
        with writing(tempfile.gettempdir()):
            if os.pwrite(self._file.fileno(), data, start) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for number in numbers:
            self._copied[number] = 1

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns what was copied."""
        return os.pread(self._file.fileno(), size, offset)

    def forget(self, index: int) -> None:
        """Makes the next request copy a section again, from the file itself."""
        self._copied[index] = 0
        if isinstance(self._reader, NodeReader):
            self._reader.is_alone = True

    def _bounds(self, index: int) -> tuple[int, int]:
        """Returns the offsets of the first byte of a section and of the one after its last."""
        offset, size, names_size = _ROW.unpack_from(self._table, index * _ROW.size)[:3]
        return offset, offset + size + names_size
