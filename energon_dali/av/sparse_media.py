"""A media file of which an index and some ranges are in memory; the rest is fetched when it is needed."""

from __future__ import annotations

import io
import os
import pickle
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    from energon_dali.av.media_index import MediaIndex, StreamIndex

ByteRange = tuple[int, int]
"""(offset, size) in a file."""

FETCHED_TOGETHER_BYTES = 4 << 20
"""Packets that are missing are fetched together up to this size."""
DEMUXER_BYTES = 256 << 10
"""Bytes that are fetched at a time when a demuxer reads the file."""


class _Ranges:
    """Parts of a file, sorted by offset."""

    def __init__(self, parts: Iterable[tuple[int, bytes | memoryview]]) -> None:
        ordered = sorted(parts, key=lambda part: part[0])
        self.starts = [offset for offset, _ in ordered]
        self.contents = [content for _, content in ordered]

    def find(self, offset: int, size: int) -> memoryview | None:
        """Returns bytes that one of the parts contains, as a view; None otherwise."""
        at = bisect_right(self.starts, offset) - 1
        if at < 0 or offset + size > self.starts[at] + len(self.contents[at]):
            return None
        first = offset - self.starts[at]
        return memoryview(self.contents[at])[first : first + size]


class SparseMedia:
    """A media file of which an index and some ranges are in memory.

    It is picklable if `fetch` is; the ranges travel out of band.

    Args:
        index: Where the packets of the file are.
        ranges: (offset, content) of what was read, in any order, without overlaps.
        fetch: Returns the content of byte ranges of the file, read together; None if nothing else can be read.
        count: Called with the bytes that are fetched on demand; None counts nothing.
    """

    def __init__(
        self,
        index: MediaIndex,
        ranges: Iterable[tuple[int, bytes | memoryview]] = (),
        fetch: Callable[[Sequence[ByteRange]], Sequence[bytes | memoryview]] | None = None,
        count: Callable[[int], None] | None = None,
    ) -> None:
        self.index = index
        self._given = _Ranges(ranges)
        self._loaded = _Ranges(())
        self._fetch = fetch
        self._count = count
        self._loading = threading.Lock()
        """Held from loading a packet until it was found: several threads may decode the file."""
        self.fetched_on_demand = 0
        """Bytes that were not among the ranges and had to be fetched."""

    def __len__(self) -> int:
        """Returns the bytes in memory."""
        return sum(map(len, (*self._given.contents, *self._loaded.contents)))

    def find(self, offset: int, size: int) -> memoryview | None:
        """Returns a part of the file that is in memory as a whole, as a view; None otherwise."""
        found = self._given.find(offset, size)
        return self._loaded.find(offset, size) if found is None else found

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Returns a part of the file; shorter at its end. What is not in memory is fetched, and not kept.

        Raises:
            DecodeError: It is not in memory, and cannot be fetched.
            StorageError: Fetching it failed.
        """
        size = max(0, min(size, self.index.size_bytes - offset))
        found = self.find(offset, size)
        return self._fetch_ranges([(offset, size)])[0] if found is None else found

    def payload(self, stream: StreamIndex, number: int, stop: int) -> bytes | memoryview:
        """Returns the content of a packet, after comparing it with its checksum.

        Args:
            stream: Of the packet.
            number: The packet.
            stop: Missing packets from `number` up to this one, exclusive, are loaded together.

        Raises:
            DecodeError: The file differs from its index, or the packet is not in memory and cannot be fetched.
            StorageError: Fetching it failed.
        """
        offset, size = int(stream.payload_offsets[number]), int(stream.sizes[number])
        payload: bytes | memoryview | None = self.find(offset, size)
        if payload is None:
            with self._loading:
                self._load_packets(stream, number, stop)
                payload = self.find(offset, size)
        if payload is None or not stream.matches(number, payload):
            raise DecodeError(
                f"Packet {number} of its {stream.facts.kind} is not what was indexed: the file changed or is damaged "
                f"at byte {offset}. Run `energon-dali prepare-media` on its dataset",
                stream.facts.codec,
                "pyav",
            )
        return payload

    def _load_packets(self, stream: StreamIndex, number: int, stop: int) -> None:
        missing: list[ByteRange] = []
        total = 0
        for packet in range(number, max(number + 1, min(stop, len(stream)))):
            offset, size = int(stream.payload_offsets[packet]), int(stream.sizes[packet])
            if self._given.find(offset, size) is None:
                missing.append((offset, size))
                total += size
                if total >= FETCHED_TOGETHER_BYTES:
                    break
        self.load(missing)

    def load(self, ranges: Sequence[ByteRange]) -> None:
        """Fetches ranges together, in place of those that were loaded before.

        Raises:
            DecodeError: Nothing can be fetched, or a range is outside the file.
            StorageError: Fetching failed.
        """
        self._loaded = _Ranges(())  # first, so that both are never in memory
        contents = self._fetch_ranges(ranges)
        self._loaded = _Ranges((start, content) for (start, _), content in zip(ranges, contents, strict=True))

    def _fetch_ranges(self, ranges: Sequence[ByteRange]) -> Sequence[bytes | memoryview]:
        for offset, size in ranges:
            if offset < 0 or size < 0 or offset + size > self.index.size_bytes:
                raise DecodeError(
                    f"The index refers to bytes {offset} to {offset + size} of {self.index.size_bytes}, the size when "
                    "it was indexed. Run `energon-dali prepare-media` on its dataset",
                    self.index.format,
                    "pyav",
                )
        if self._fetch is None:
            raise DecodeError(
                "Parts of the file that were not read are needed, and cannot be", self.index.format, "pyav"
            )
        size = sum(size for _, size in ranges)
        self.fetched_on_demand += size
        if self._count is not None:
            self._count(size)
        contents = self._fetch(ranges)
        for (offset, wanted), content in zip(ranges, contents, strict=True):
            if len(content) != wanted:
                raise DecodeError(
                    f"The file ends before byte {offset + wanted}: it was shortened since it was indexed",
                    self.index.format,
                    "pyav",
                )
        return contents

    def open(self) -> SparseReader:
        """Returns a seekable reader of the whole file at its start, which fetches what is not in memory."""
        return SparseReader(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        contents = [pickle.PickleBuffer(one) if int(protocol) >= 5 else bytes(one) for one in self._given.contents]
        return _restore, (self.index, self._given.starts, contents, self._fetch)

    def __repr__(self) -> str:
        return f"SparseMedia({len(self)} of {self.index.size_bytes} bytes, {self.index.format})"


def _restore(index: MediaIndex, starts: list[int], contents: list[Any], fetch: Any) -> SparseMedia:
    views = [memoryview(content) for content in contents]
    return SparseMedia(index, zip(starts, views, strict=True), fetch)


class SparseReader(io.RawIOBase):
    """Reads a sparse file as if it were whole, for demuxers and for users who want its bytes.

    Args:
        media: The file.
    """

    def __init__(self, media: SparseMedia) -> None:
        self._media = media
        self._position = 0
        self._window: tuple[int, bytes | memoryview] = (0, b"")

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Returns up to `size` bytes from the position on, or all remaining bytes if `size` is negative."""
        left = max(0, self._media.index.size_bytes - self._position)
        wanted = left if size < 0 else min(size, left)
        found = self._media.find(self._position, wanted)
        if found is None:
            start, window = self._window
            if not start <= self._position <= self._position + wanted <= start + len(window):
                start, window = self._position, self._media.read(self._position, max(wanted, DEMUXER_BYTES))
                self._window = start, window
            found = memoryview(window)[self._position - start : self._position - start + wanted]
        self._position += wanted
        return bytes(found)

    def readinto(self, buffer: Any, /) -> int:
        """Fills a buffer from the position on, and returns the number of bytes."""
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position and returns it; it is never before the start."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._media.index.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Returns the position in bytes."""
        return self._position
