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

import hashlib
import json
import mmap
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from energon_dali.errors import DatasetFormatError, StorageError
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.index.extents import ShardExtents, columns_bytes
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import writing
from energon_dali.shards.storage.local import LocalReader
from energon_dali.shards.storage.path import RangeReader
from energon_dali.shards.storage.retry import with_retries

MAGIC = b"EDEXT001"
_HEADER = struct.Struct("<8s40sQQQ32s24x")
_ROW = struct.Struct("<8Q")


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
    """Reads the file: a local one is mapped into memory, a remote one is read by ranges.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: It is cut off, or has another version.
        StorageError: It cannot be read.
    """

    def __init__(self, path: StoragePath) -> None:
        self.path = path
        self._reader: RangeReader = path.open()
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
        self._map: mmap.mmap | None = None
        if isinstance(self._reader, LocalReader):
            self._map = with_retries(self._reader.map, "map", path.url)

    def shard(self, index: int) -> ShardExtents:
        """Returns the extents of a shard; views of the mapped file where it is local.

        Raises:
            DatasetFormatError: The section is damaged.
            StorageError: It cannot be read.
        """
        offset, size, names_size, samples, parts, shard_bytes, crc, _ = _ROW.unpack_from(self._table, index * _ROW.size)
        whole = size + names_size
        if offset + whole > self._reader.size or columns_bytes(samples, parts) > size:
            raise self._damaged(f"is damaged in the section of shard {index}")
        # Read even if it is mapped: a disk error while reading the map would kill the process, and can be retried here.
        section: bytes | memoryview = self._reader.read_at(offset, whole)
        if len(section) != whole or zlib.crc32(section) != crc:
            raise self._damaged(f"is damaged in the section of shard {index}")
        if self._map is not None:
            if self._map.size() < self._reader.size:
                raise self._damaged(f"has {self._map.size()} bytes and had {self._reader.size} when it was opened")
            section = memoryview(self._map)[offset : offset + whole]
        try:
            names = parse_json(bytes(section[size:]), any_number=True)
            part_names, formats = names["part_names"], names["formats"]
            if not isinstance(part_names, list) or not isinstance(formats, list):
                raise ValueError("its names are not lists")
            extents = ShardExtents(section[:size], samples, parts, shard_bytes, part_names, formats)
            extents.check()
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"is damaged in the section of shard {index} ({excerpt(str(error))})") from error
        return extents

    def close(self) -> None:
        """Closes the file; mapped extents that are still in use stay valid."""
        self._reader.close()
        self._map = None

    def _damaged(self, what: str) -> DatasetFormatError:
        return DatasetFormatError(f"{self.path} {what}. Delete it, or write it again with `energon-dali prepare PATH`.")
