"""The file `.nv-meta/media_index.bin`: the indices of all videos and sounds of a dataset, for memory mapping.

Layout, all little-endian:

    header   magic "EDMIX001" | uuid of the index, 40 bytes | sections u64 | offset of the table u64
             | size of the file u64 | sha-256 of the shard names and counts, 32 bytes | CRC-32 of the table u32
             | zeros to 128 bytes
    section  one per shard, aligned to 8 bytes: place of each media part, u64, increasing | where its entry ends, u64,
             counted from the first entry | JSON {"name": of the shard, "version": , "maker": } | the entries
    table    64 bytes per section: its offset, entries, bytes of the JSON, bytes of all entries, media that were
             described, CRC-32 of places, ends and JSON, 0, 0; each u64

The place of a part is the offset of its content in the shard. A plain folder of files has a single section, and the
place of a file is a hash of its name. An entry is an index (`av.stored_index`), or a zero byte and the reason why there
is none. Entries have checksums of their own. The uuid is that of `index.uuid`: the file is not used for a dataset whose
samples are others, or at other offsets.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetFormatError, StorageError
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.index.extent_file import digest_of_counts
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import writing
from energon_dali.shards.storage.local import LocalReader
from energon_dali.shards.storage.node_files import NodeReader
from energon_dali.shards.storage.protocols import RangeReader
from energon_dali.shards.storage.request_pool import CALLS_AT_ONCE, map_in_threads
from energon_dali.shards.storage.retry import with_retries

MEDIA_INDEX_NAME = "media_index.bin"
MAGIC = b"EDMIX001"
_HEADER = struct.Struct("<8s40sQQQ32sI20x")
_ROW = struct.Struct("<8Q")
_UUID_BYTES = 40
_NO_INDEX = 0
"""First byte of an entry that holds the reason why a file has no index."""
_LONGEST_REASON = 300
_MOST_TEXT_BYTES = 1 << 20
_WHOLE_SECTION_BYTES = 8 << 20
"""A section of a remote file up to this size is fetched in one request; of a larger one, each entry on its own."""
_KEPT_BYTES = 64 << 20
"""Sections of a remote file that are kept in memory."""
Entry = tuple[int, bytes]
"""(place of a media part, what is stored about it)."""


def entry_without_index(reason: str) -> bytes:
    """Returns the entry for a media part that has no index, and is read whole."""
    return bytes((_NO_INDEX,)) + reason[:_LONGEST_REASON].encode("utf-8", "replace")


def reason_in_entry(entry: bytes | memoryview) -> str:
    """Returns why a media part has no index, from its entry; "" if it has one."""
    if len(entry) and entry[0] != _NO_INDEX:
        return ""
    return bytes(entry[1:]).decode("utf-8", "replace") or "no reason was stored"


def place_of_name(name: str) -> int:
    """Returns the place of a file in a plain folder: 64 bits of a hash of its path below the folder."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")


def _short(uuid: str) -> bytes:
    return uuid.encode("ascii", "replace")[:_UUID_BYTES]


@dataclass(frozen=True, slots=True)
class MediaSection:
    """What a section says about its shard."""

    name: str
    """Path of the shard; "" for a plain folder."""
    version: str
    """Size, and ETag or time of the last change, when it was scanned."""
    maker: str
    """Which media were selected, and the version of their indices."""
    num_described: int
    """Media of the shard that were described in the table `media_metadata`."""
    num_entries: int
    """Videos and sounds among them."""


class MediaIndexFileWriter:
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

    def add(self, section: MediaSection, entries: Sequence[Entry]) -> None:
        """Adds the next section.

        Args:
            section: What it says about its shard; `num_entries` is that of the entries.
            entries: In any order. If several have the same place, none is stored: they could not be distinguished.
        """
        ordered = sorted(entries)
        places = np.array([place for place, _ in ordered], np.uint64)
        is_alone = np.ones(len(places), bool)
        is_alone[1:] &= places[1:] != places[:-1]
        is_alone[:-1] &= places[1:] != places[:-1]
        contents = [content for (_, content), alone in zip(ordered, is_alone.tolist(), strict=True) if alone]
        ends = np.cumsum([len(content) for content in contents], dtype=np.uint64)
        text = json.dumps({"name": section.name, "version": section.version, "maker": section.maker}).encode()
        columns = places[is_alone].astype("<u8").tobytes() + ends.astype("<u8").tobytes()
        self._write(columns + text, contents, (len(contents), len(text), section.num_described))

    def take_over(self, file: MediaIndexFile, number: int) -> None:
        """Adds a section of another file, as it is."""
        head, entries = file.read_section(number)
        section = file.section(number)
        count = section.num_entries
        self._write(head, [entries], (count, len(head) - 16 * count, section.num_described))

    def _write(self, head: bytes, contents: Sequence[bytes], counts: tuple[int, int, int]) -> None:
        size = sum(map(len, contents))
        with writing(self._path):
            offset = self._file.tell()
            self._file.write(head)
            self._file.writelines(contents)
            self._file.write(bytes(-(len(head) + size) % 8))
        count, text_size, described = counts
        self._rows += _ROW.pack(offset, count, text_size, size, described, zlib.crc32(head), 0, 0)

    def finish(self, uuid: str, shard_counts: Mapping[str, int]) -> None:
        """Writes the table and the header.

        Args:
            uuid: Identity of the index of the dataset; "" for a plain folder.
            shard_counts: Number of samples of each shard; none for a plain folder.
        """
        digest = digest_of_counts(shard_counts)
        with writing(self._path):
            table = self._file.tell()
            self._file.write(self._rows)
            size = self._file.tell()
            self._file.seek(0)
            count, crc = len(self._rows) // _ROW.size, zlib.crc32(self._rows)
            self._file.write(_HEADER.pack(MAGIC, _short(uuid), count, table, size, digest, crc))

    def __enter__(self) -> MediaIndexFileWriter:
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


class MediaIndexFile:
    """Reads the file: a local one through a memory map, of a remote one the sections that are asked for.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: It is cut off or damaged, or has another version.
        StorageError: It cannot be read.
    """

    def __init__(self, path: StoragePath) -> None:
        self.path = path
        self._reader: RangeReader = path.open() if path.is_local else NodeReader(path)
        try:
            header = self._reader.read_at(0, _HEADER.size)
            if len(header) < _HEADER.size or header[:8] != MAGIC:
                raise self._damaged("does not begin like a file of this version")
            _, uuid, self.num_sections, table, size, self.digest, crc = _HEADER.unpack(header)
            self.uuid = uuid.rstrip(b"\0").decode("ascii", "replace")
            if size != self._reader.size or table < _HEADER.size or table + self.num_sections * _ROW.size != size:
                raise self._damaged(f"has {self._reader.size} bytes and should have {size}")
            self._table = self._reader.read_at(table, self.num_sections * _ROW.size)
            if len(self._table) != self.num_sections * _ROW.size or zlib.crc32(self._table) != crc:
                raise self._damaged("has a damaged table")
            self._map: mmap.mmap | None = None
            if isinstance(self._reader, LocalReader):
                self._map = with_retries(self._reader.map, "map", path.url)
        except BaseException:
            self._reader.close()
            raise
        self._checked: dict[int, MediaSection] = {}
        self._fetched: OrderedDict[int, bytes] = OrderedDict()

    def belongs_to(self, uuid: str, shard_counts: Mapping[str, int]) -> bool:
        """Returns whether the file was made for an index of a dataset: the same samples at the same offsets."""
        return bool(
            self.uuid == _short(uuid).decode("ascii", "replace")
            and self.digest == digest_of_counts(shard_counts)
            and self.num_sections == (len(shard_counts) or 1)
        )

    def entry(self, number: int, place: int) -> memoryview | bytes | None:
        """Returns what is stored about a media part, possibly a view of the file; None if nothing is.

        Takes O(log n) for n media in the shard.

        Args:
            number: Index of the shard; 0 in a plain folder.
            place: Offset of its content in the shard; in a plain folder `place_of_name`.

        Raises:
            DatasetFormatError: The section is damaged.
            StorageError: It cannot be read.
        """
        section = self.section(number)
        head = self._head(number, section.num_entries)
        places = np.frombuffer(head, "<u8", section.num_entries)
        at = int(np.searchsorted(places, np.uint64(place)))
        if at == len(places) or places[at] != place:
            return None
        ends: npt.NDArray[np.uint64] = np.frombuffer(head, "<u8", section.num_entries, 8 * section.num_entries)
        start, end = int(ends[at - 1]) if at else 0, int(ends[at])
        offset, count, text_size, _, _, _, _, _ = self._row(number)
        return self._read(number, offset + 16 * count + text_size + start, end - start)

    def section(self, number: int) -> MediaSection:
        """Returns what a section says about its shard, and checks its columns when it is first asked for.

        Raises:
            DatasetFormatError: It is damaged.
            StorageError: It cannot be read.
        """
        found = self._checked.get(number)
        if found is None:
            found = self._checked[number] = self._check(number)
        return found

    def entries(self, number: int) -> Iterator[Entry]:
        """Yields (place, entry) of all media of a section."""
        head, contents = self.read_section(number)
        count = self.section(number).num_entries
        ends = np.frombuffer(head, "<u8", count, 8 * count).tolist()
        for place, start, end in zip(np.frombuffer(head, "<u8", count).tolist(), [0, *ends], ends, strict=False):
            yield place, contents[start:end]

    def read_section(self, number: int) -> tuple[bytes, bytes]:
        """Returns (places, ends and JSON; entries) of a section."""
        count = self.section(number).num_entries
        offset, _, text_size, size, _, _, _, _ = self._row(number)
        head_size = 16 * count + text_size
        head, entries = self._reader.read_at(offset, head_size), self._reader.read_at(offset + head_size, size)
        if len(head) + len(entries) != head_size + size:
            raise self._damaged(f"is cut off in section {number}")
        return bytes(head), bytes(entries)

    def fetch(self, numbers: Iterable[int]) -> None:
        """Fetches sections of a remote file, several at a time; does nothing for a local one.

        Raises:
            StorageError: One cannot be read.
        """
        if self._map is None:
            missing = [number for number in sorted(set(numbers)) if number not in self._fetched]
            for number, content in zip(missing, map_in_threads(self._fetch, missing, CALLS_AT_ONCE), strict=True):
                self._keep(number, content)

    def close(self) -> None:
        """Closes the file; entries that are still in use stay valid."""
        self._reader.close()

    def _row(self, number: int) -> tuple[int, ...]:
        return _ROW.unpack_from(self._table, number * _ROW.size)

    def _check(self, number: int) -> MediaSection:
        offset, count, text_size, size, described, crc, _, _ = self._row(number)
        head_size = 16 * count + text_size
        if offset + head_size + size > self._reader.size or text_size > _MOST_TEXT_BYTES:
            raise self._damaged(f"is damaged in section {number}")
        # It is read even if it is mapped: a disk error while reading the map would kill the process.
        head = (
            self._reader.read_at(offset, head_size) if self._map is not None else self._read(number, offset, head_size)
        )
        if len(head) != head_size or zlib.crc32(head) != crc:
            self._forget(number)
            raise self._damaged(f"is damaged in section {number}")
        ends = np.frombuffer(head, "<u8", count, 8 * count)
        if count and (int(ends[-1]) != size or (ends[1:] < ends[:-1]).any()):
            raise self._damaged(f"is damaged in section {number}")
        try:
            facts = parse_json(bytes(head[16 * count :]))
            return MediaSection(str(facts["name"]), str(facts["version"]), str(facts["maker"]), described, count)
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"is damaged in section {number} ({excerpt(str(error))})") from error

    def _head(self, number: int, count: int) -> memoryview | bytes:
        return self._read(number, self._row(number)[0], 16 * count)

    def _read(self, number: int, offset: int, size: int) -> memoryview | bytes:
        """Returns bytes of a section, from the map, what was fetched of it, or the remote file."""
        if self._map is not None:
            if self._map.size() < self._reader.size:
                raise self._damaged(f"has {self._map.size()} bytes and had {self._reader.size} when it was opened")
            return memoryview(self._map)[offset : offset + size]
        start, count, text_size, entries_size, _, _, _, _ = self._row(number)
        head_size = 16 * count + text_size
        is_whole = head_size + entries_size <= _WHOLE_SECTION_BYTES
        if not is_whole and offset >= start + head_size:
            return self._reader.read_at(offset, size)
        content = self._fetched.get(number)
        if content is None:
            content = self._fetch(number)
            self._keep(number, content)
        else:
            self._fetched.move_to_end(number)
        return memoryview(content)[offset - start : offset - start + size]

    def _fetch(self, number: int) -> bytes:
        """Returns a remote section, or what precedes its entries if it is large."""
        start, count, text_size, entries_size, _, _, _, _ = self._row(number)
        size = 16 * count + text_size
        whole = size + entries_size
        return bytes(self._reader.read_at(start, whole if whole <= _WHOLE_SECTION_BYTES else size))

    def _keep(self, number: int, content: bytes) -> None:
        self._fetched[number] = content
        while sum(map(len, self._fetched.values())) > _KEPT_BYTES and len(self._fetched) > 1:
            self._fetched.popitem(last=False)

    def _forget(self, number: int) -> None:
        """Makes the next request fetch a section again, from the file itself."""
        self._fetched.pop(number, None)
        if isinstance(self._reader, NodeReader):
            self._reader.is_alone = True

    def _damaged(self, what: str) -> DatasetFormatError:
        return DatasetFormatError(
            f"{self.path} {what}. Delete it, or write it again with `energon-dali prepare-media PATH`."
        )
