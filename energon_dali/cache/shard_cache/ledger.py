"""How many bytes a cache has on disk, and that it lately had nothing to evict, shared by all processes of the node."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from zlib import crc32

ANY_JOB = b"\0" * 8

_ROW = struct.Struct("<8sqd8s")
_CRC = struct.Struct("<I")
_MAGIC = b"EDSHLDG2"


@dataclass(slots=True)
class Ledger:
    """What the processes of a node know together."""

    total_bytes: int
    """On disk, with what is being fetched."""
    refused_until: float = 0.0
    """Until when nobody looks for blocks to evict, in seconds since 1970: there were none."""
    refused_job: bytes = ANY_JOB
    """8 bytes: the job for which there were none, or ANY_JOB."""


def read_ledger(descriptor: int) -> Ledger | None:
    """Returns the ledger, None if there is none yet or it is damaged.

    Raises:
        OSError: It cannot be read.
    """
    data = os.pread(descriptor, _ROW.size + _CRC.size, 0)
    if len(data) != _ROW.size + _CRC.size or crc32(data[: _ROW.size]) != _CRC.unpack_from(data, _ROW.size)[0]:
        return None
    magic, total, until, job = _ROW.unpack_from(data)
    return Ledger(total, until, job) if magic == _MAGIC and total >= 0 else None


def write_ledger(descriptor: int, ledger: Ledger) -> None:
    """Writes the ledger. Call it with the lock held.

    Raises:
        OSError: It cannot be written.
    """
    row = _ROW.pack(_MAGIC, ledger.total_bytes, ledger.refused_until, ledger.refused_job)
    os.pwrite(descriptor, row + _CRC.pack(crc32(row)), 0)
