"""The files of cached blocks: how one is written and checked, and which there are.

The file of a block has a header that says what it is, checksums of its chunks, and its bytes:

- "<8s16s8sIII": magic, key of the shard, version of the object, number of the block, bytes, bytes of a chunk
- "<I" for each chunk: its CRC-32
- "<I": CRC-32 of all of the above
- the bytes of the block
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from typing import TypeVar
from zlib import crc32

import numpy as np

from energon_dali.cache.shard_cache.private_folder import PrivateFolder
from energon_dali.plan.rng import Int64Array

CHUNK_BYTES = 16 << 10
"""What is read and checked at least: 4 us of CRC-32."""
PAGE_BYTES = 4096

BLOCKS = "blocks"
CLAIMS = "claims"
OBJECTS = "objects"
JOBS = "jobs"

_MAGIC = b"EDSHBLK1"
_HEAD = struct.Struct("<8s16s8sIII")
_CRC = struct.Struct("<I")


Size = TypeVar("Size", int, Int64Array)


class DamagedBlockError(Exception):
    """The file is not what was written."""


@dataclass(frozen=True, slots=True)
class BlockFolder:
    """The folder of the blocks of a version of a shard."""

    shard: bytes
    """16 bytes: key of the shard's URL."""
    version: bytes
    """8 bytes: of the object."""

    @property
    def dataset(self) -> bytes:
        """8 bytes: key of the dataset."""
        return self.shard[:8]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return f"{self.shard.hex()}-{self.version.hex()}"

    @property
    def path(self) -> str:
        """Path in the folder of the cache."""
        return f"{BLOCKS}/{self.name}"


@dataclass(frozen=True, slots=True)
class Block:
    """Which block it is."""

    folder: BlockFolder
    number: int
    """0 is the first block of the shard."""
    size: int
    """In bytes."""

    @property
    def path(self) -> str:
        """Path in the folder of the cache."""
        return f"{self.folder.path}/{self.number}-{self.size}"

    @property
    def claim(self) -> str:
        """Path of the file that the process which fetches the block holds."""
        return f"{CLAIMS}/{self.folder.name}-{self.number}"

    def head(self) -> tuple[bytes, bytes, bytes, int, int, int]:
        """Returns the values at the beginning of its file."""
        return _MAGIC, self.folder.shard, self.folder.version, self.number, self.size, CHUNK_BYTES


def file_bytes(size: Size) -> Size:
    """Returns what the file of a block takes on disk, in bytes, for one size or an array of them."""
    return pages(header_bytes(size) + size)


def pages(size: Size) -> Size:
    """Returns a size in bytes, or an array of them, rounded up to whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def header_bytes(size: Size) -> Size:
    """Returns the size of the header of a block, for one size or an array of them."""
    return _HEAD.size + _CRC.size * (-(-size // CHUNK_BYTES) + 1)


def write_block(descriptor: int, block: Block, content: bytes | memoryview) -> None:
    """Writes the file of a block.

    Raises:
        OSError: It cannot be written.
    """
    view = memoryview(content)
    head = _HEAD.pack(*block.head())
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


def read_block(descriptor: int, block: Block, start: int, stop: int) -> bytes:
    """Returns the bytes start ... stop - 1 of a block, after checking the chunks that hold them.

    Args:
        descriptor: Of the file.
        block: Which block it has to be.
        start: First byte.
        stop: Byte after the last one.

    Raises:
        DamagedBlockError: The file is not what was written.
        OSError: It cannot be read.
    """
    length = header_bytes(block.size)
    first, end = start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)
    low, high = first * CHUNK_BYTES, min(block.size, end * CHUNK_BYTES)
    head = os.pread(descriptor, length, 0)
    if len(head) != length or crc32(head[: -_CRC.size]) != _CRC.unpack_from(head, length - _CRC.size)[0]:
        raise DamagedBlockError
    if _HEAD.unpack_from(head) != block.head():
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


@dataclass(slots=True, eq=False)
class BlockListing:
    """The blocks on disk."""

    folders: list[BlockFolder]
    """The folders in `blocks/`."""
    folder: Int64Array
    """int64[n]: index of the folder of each block."""
    number: Int64Array
    """int64[n]: number of the block in its shard."""
    size: Int64Array
    """int64[n]: bytes of the block."""
    total_bytes: int
    """Of everything in the cache's folder."""

    def path(self, row: int) -> str:
        """Returns the path of a block in the folder of the cache."""
        return Block(self.folders[int(self.folder[row])], int(self.number[row]), int(self.size[row])).path


def list_blocks(cache: PrivateFolder) -> BlockListing:
    """Returns the blocks on disk. What does not belong here is not counted and not touched.

    Args:
        cache: The folder of the cache.
    """
    folders = list_folders(cache)
    rows: list[tuple[int, int, int]] = []
    total = PAGE_BYTES * len(folders)
    for index, folder in enumerate(folders):
        names = cache.list(folder.path)
        for name in names:
            number, _, size = name.partition("-")
            if number.isdecimal() and size.isdecimal():
                rows.append((index, int(number), int(size)))
        if not names:
            cache.remove_folder(folder.path)
    table = np.array(rows, np.int64).reshape(-1, 3)
    total += int(file_bytes(table[:, 2]).sum())
    for place in (CLAIMS, OBJECTS, JOBS):
        total += sum(_bytes_on_disk(cache, f"{place}/{name}") for name in cache.list(place))
    # The folder itself, and what is always in it: folders and small files, each of a page or more.
    total += PAGE_BYTES + sum(max(PAGE_BYTES, _bytes_on_disk(cache, name)) for name in cache.list())
    return BlockListing(folders, table[:, 0], table[:, 1], table[:, 2], total)


def list_folders(cache: PrivateFolder) -> list[BlockFolder]:
    """Returns the folders of blocks."""
    folders = []
    for name in sorted(cache.list(BLOCKS)):
        with contextlib.suppress(ValueError):
            shard, version = map(bytes.fromhex, name.split("-"))
            if (len(shard), len(version)) == (16, 8):
                folders.append(BlockFolder(shard, version))
    return folders


def _bytes_on_disk(cache: PrivateFolder, name: str) -> int:
    status = cache.stat(name)
    return 0 if status is None else pages(status.st_size)
