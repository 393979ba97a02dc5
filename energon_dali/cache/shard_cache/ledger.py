"""How many bytes a cache has on disk, and what it last refused to keep, shared by all processes of the node."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from zlib import crc32

_ROW = struct.Struct("<8sqdd")
_CRC = struct.Struct("<I")
_MAGIC = b"EDSHLDG1"


@dataclass(slots=True)
class Ledger:
    """What the processes of a node know together."""

    total_bytes: int
    """On disk, with what is being fetched."""
    refused_after: float = 0.0
    """When the cache was last full of blocks that are needed soon: the time at which the last of them is needed, in
    seconds since 1970."""
    refused_until: float = 0.0
    """Until when `refused_after` holds, in seconds since 1970."""


def read_ledger(descriptor: int) -> Ledger | None:
    """Returns the ledger, None if there is none yet or it is damaged.

    Raises:
        OSError: It cannot be read.
    """
    data = os.pread(descriptor, _ROW.size + _CRC.size, 0)
    if len(data) != _ROW.size + _CRC.size or crc32(data[: _ROW.size]) != _CRC.unpack_from(data, _ROW.size)[0]:
        return None
    magic, total, after, until = _ROW.unpack_from(data)
    return Ledger(total, after, until) if magic == _MAGIC and total >= 0 else None


def write_ledger(descriptor: int, ledger: Ledger) -> None:
    """Writes the ledger. Call it with the lock held.

    Raises:
        OSError: It cannot be written.
    """
    row = _ROW.pack(_MAGIC, ledger.total_bytes, ledger.refused_after, ledger.refused_until)
    os.pwrite(descriptor, row + _CRC.pack(crc32(row)), 0)
