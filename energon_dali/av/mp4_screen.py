"""Reads the boxes of an MP4 file before FFmpeg does: refuses false sample counts, and finds encrypted tracks.

A sample table with a common sample size, or a fragment without per-sample fields, takes twenty bytes to state a count
of 32 bits, and FFmpeg creates an index entry of 24 bytes for each sample. FFmpeg hands encrypted samples to the decoder
as they are, and what it makes of them may be noise. Box layouts: ISO/IEC 14496-12; encryption: ISO/IEC 23001-7.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice

from energon_dali.errors import DecodeError

_CONTAINERS = frozenset((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"))
_ENCRYPTED = frozenset((b"encv", b"enca", b"drmi", b"drms"))
"""Sample entries of encrypted video and audio: by Common Encryption, and as iTunes sold them."""
_MAX_ENTRIES = 1000
"""Most entries of a sample description to examine; a track has one, seldom a few."""
_MAX_BOXES = 100_000
"""Most boxes to examine; a file with more is left to FFmpeg's own limits."""


def screen_mp4(data: memoryview) -> frozenset[int]:
    """Checks the sample counts of an MP4, and returns the numbers of its encrypted tracks.

    Args:
        data: The whole file, one-dimensional bytes. A file of another format has no encrypted tracks.

    Raises:
        DecodeError: The sample tables claim more samples than the file has bytes.
    """
    if bytes(data[4:8]) not in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"styp", b"moof"):
        return frozenset()
    open_boxes = [find_boxes(data, 0, len(data), cut=True)]
    tracks: list[tuple[int, bool]] = [(0, False)]  # (number, whether it is encrypted) of each track so far
    claimed = 0
    for _ in range(_MAX_BOXES):
        if not open_boxes:
            break
        kind, start, stop = next(open_boxes[-1], (b"", 0, 0))
        if not kind:
            open_boxes.pop()
        elif kind in _CONTAINERS:
            open_boxes.append(find_boxes(data, start, stop, cut=True))
            if kind == b"trak":
                tracks.append((0, False))
        elif kind == b"tkhd" and stop - start >= 24:
            tracks[-1] = (track_number(data[start:stop]), tracks[-1][1])
        elif kind == b"stsd":
            entries = islice(_sample_entries(data, start + 8, stop), _MAX_ENTRIES)
            tracks[-1] = (tracks[-1][0], not _ENCRYPTED.isdisjoint(entries))
        elif kind == b"stsz" and stop - start >= 12:
            sample_size, count = struct.unpack_from(">II", data, start + 4)
            claimed += count
            _check(max(claimed, count * sample_size), claimed, len(data))
        elif kind == b"trun" and stop - start >= 8:
            count = struct.unpack_from(">I", data, start + 4)[0]
            claimed += count
            _check(claimed, claimed, len(data))
    return frozenset(number for number, encrypted in tracks if encrypted)


def find_boxes(data: memoryview, start: int, end: int, *, cut: bool = False) -> Iterator[tuple[bytes, int, int]]:
    """Yields (type, start of the content, its end) of consecutive boxes; stops at a malformed one.

    Args:
        data: Where they are.
        start: Position of the first one.
        end: Where they end.
        cut: Whether the last one may be longer than what is there.
    """
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        header = 8
        if size == 1 and start + 16 <= end:
            size, header = struct.unpack_from(">Q", data, start + 8)[0], 16
        stop = start + size if size else end
        if stop < start + header or (stop > end and not cut):
            return
        yield kind, start + header, min(stop, end)
        start = stop


def track_number(header: memoryview | bytes) -> int:
    """Returns the track number in the content of a `tkhd` box, -1 if it is truncated."""
    at = 20 if header[:1] == b"\1" else 12  # version 1 has times of 64 bits
    return int.from_bytes(header[at : at + 4], "big") if len(header) >= at + 4 else -1


def _sample_entries(data: memoryview, position: int, end: int) -> Iterator[bytes]:
    """Yields the types of the entries of a sample description."""
    while position + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, position)
        yield kind
        if size < 8:
            return
        position += size


def _check(least_bytes: int, count: int, size: int) -> None:
    if least_bytes > size:
        raise DecodeError(
            f"Its header claims {count:,} samples of at least {least_bytes:,} bytes, and the file has {size:,}. "
            "It is damaged",
            "mp4",
            "screen",
        )
