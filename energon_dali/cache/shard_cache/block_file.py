"""The file of one cached block: a header that says what it is, checksums of its chunks, and its bytes.

- "<8s16s8sIII": magic, key of the shard, version of the object, number of the block, bytes, bytes of a chunk
- "<I" for each chunk: its CRC-32
- "<I": CRC-32 of all of the above
- the bytes of the block
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TypeVar
from zlib import crc32

from energon_dali.plan.rng import Int64Array

CHUNK_BYTES = 16 << 10
"""What is read and checked at least: 4 us of CRC-32."""
PAGE_BYTES = 4096

_MAGIC = b"EDSHBLK1"
_HEAD = struct.Struct("<8s16s8sIII")
_CRC = struct.Struct("<I")


Size = TypeVar("Size", int, Int64Array)


class DamagedBlockError(Exception):
    """The file is not what was written."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """Which block it is."""

    shard: bytes
    """16 bytes: key of the shard's URL."""
    version: bytes
    """8 bytes: of the object."""
    number: int
    """0 is the first block of the shard."""

    @property
    def folder(self) -> str:
        """Folder of the blocks of this shard and version."""
        return f"blocks/{self.shard.hex()}-{self.version.hex()}"

    @property
    def claim(self) -> str:
        """Path of the file that the process which fetches the block holds."""
        return f"claims/{self.shard.hex()}-{self.version.hex()}-{self.number}"


def file_bytes(size: Size) -> Size:
    """Returns what the file of a block takes on disk, in bytes, for one size or an array of them."""
    return pages(header_bytes(size) + size)


def pages(size: Size) -> Size:
    """Returns a size in bytes, or an array of them, rounded up to whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def header_bytes(size: Size) -> Size:
    """Returns the size of the header of a block, for one size or an array of them."""
    return _HEAD.size + _CRC.size * (-(-size // CHUNK_BYTES) + 1)


def write_block(descriptor: int, name: BlockName, content: bytes | memoryview) -> None:
    """Writes the file of a block.

    Raises:
        OSError: It cannot be written.
    """
    view = memoryview(content)
    head = _HEAD.pack(_MAGIC, name.shard, name.version, name.number, len(view), CHUNK_BYTES)
    head += b"".join(_CRC.pack(crc32(view[at : at + CHUNK_BYTES])) for at in range(0, len(view), CHUNK_BYTES))
    head += _CRC.pack(crc32(head))
    pieces = [memoryview(head), view]
    offset = 0
    while pieces:
        written = os.pwritev(descriptor, pieces, offset)
        offset += written
        while pieces and written >= len(pieces[0]):
            written -= len(pieces.pop(0))
        if pieces:
            pieces[0] = pieces[0][written:]


def read_block(descriptor: int, name: BlockName, size: int, start: int, stop: int) -> bytes:
    """Returns the bytes start ... stop - 1 of a block, after checking the chunks that hold them.

    Args:
        descriptor: Of the file.
        name: Which block it has to be.
        size: Its size in bytes.
        start: First byte.
        stop: Byte after the last one.

    Raises:
        DamagedBlockError: The file is not what was written.
        OSError: It cannot be read.
    """
    length = header_bytes(size)
    first, end = start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)
    low, high = first * CHUNK_BYTES, min(size, end * CHUNK_BYTES)
    head = os.pread(descriptor, length, 0)
    if len(head) != length or crc32(head[: -_CRC.size]) != _CRC.unpack_from(head, length - _CRC.size)[0]:
        raise DamagedBlockError
    if _HEAD.unpack_from(head) != (_MAGIC, name.shard, name.version, name.number, size, CHUNK_BYTES):
        raise DamagedBlockError
    data = os.pread(descriptor, high - low, length + low)
    if len(data) != high - low:
        raise DamagedBlockError
    view = memoryview(data)
    checksums = struct.unpack_from(f"<{end - first}I", head, _HEAD.size + _CRC.size * first)
    for number, expected in enumerate(checksums):
        if crc32(view[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]) != expected:
            raise DamagedBlockError
    return data if (low, high) == (start, stop) else data[start - low : stop - low]
