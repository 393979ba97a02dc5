"""Refuses MP4 headers that claim more samples than the file has bytes, before FFmpeg allocates memory for each of them.

A sample table with a common sample size, or a fragment without per-sample fields, takes twenty bytes to state a count
of 32 bits, and FFmpeg creates an index entry of 24 bytes for each sample. Box layouts: ISO/IEC 14496-12.
"""

from __future__ import annotations

import struct

from energon_dali.errors import DecodeError

_CONTAINERS = frozenset((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"))
_MAX_BOXES = 100_000
"""Most boxes to examine; a file with more is left to FFmpeg's own limits."""


def screen_mp4(data: memoryview) -> None:
    """Checks the sample counts of an MP4; accepts every file of another format.

    Args:
        data: The whole file, one-dimensional bytes.

    Raises:
        DecodeError: A sample table claims more samples than the file has bytes.
    """
    if bytes(data[4:8]) not in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"styp", b"moof"):
        return
    spans = [(0, len(data))]
    for _ in range(_MAX_BOXES):
        if not spans:
            return
        start, end = spans.pop()
        if end - start < 8:
            continue
        size, kind = struct.unpack_from(">I4s", data, start)
        header = 8
        if size == 1 and end - start >= 16:
            size, header = struct.unpack_from(">Q", data, start + 8)[0], 16
        stop = end if size == 0 else min(start + size, end)
        if stop < start + header:
            continue
        spans.append((stop, end))
        if kind in _CONTAINERS:
            spans.append((start + header, stop))
        elif kind == b"stsz" and stop - start >= header + 12:
            sample_size, count = struct.unpack_from(">II", data, start + header + 4)
            _check(count * max(1, sample_size), count, len(data))
        elif kind == b"trun" and stop - start >= header + 8:
            count = struct.unpack_from(">I", data, start + header + 4)[0]
            _check(count, count, len(data))


def _check(least_bytes: int, count: int, size: int) -> None:
    if least_bytes > size:
        raise DecodeError(
            f"Its header claims {count:,} samples of at least {least_bytes:,} bytes, and the file has {size:,}. "
            "It is damaged",
            "mp4",
            "screen",
        )
