"""Rewrites the boxes of small mp4 files: edit lists, rotation matrices and false sizes that no encoder writes.

The boxes are those of ISO/IEC 14496-12. Files are expected as FFmpeg writes them: media data first, `moov` at the end,
so that a `moov` of another size moves no sample.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts")
MATRICES = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
"""The upper left of the track's matrix (a, b, c, d) that rotates frames clockwise by an angle."""


def rewrite(data: bytes, changes: dict[bytes, Callable[[bytes], bytes]]) -> bytes:
    """Returns the file with the contents of some boxes changed, and the sizes of the boxes around them.

    Args:
        data: The file.
        changes: What makes the new content of a box from the old one, by the box's type.
    """
    result, position = bytearray(), 0
    while position + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        size = size or len(data) - position
        header = 16 if size == 1 else 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, position + 8)
        content = data[position + header : position + size]
        if kind in PARENTS:
            content = rewrite(content, changes)
        if kind in changes:
            content = changes[kind](content)
        result += (
            struct.pack(">I4sQ", 1, kind, len(content) + 16)
            if header == 16
            else struct.pack(">I4s", len(content) + 8, kind)
        )
        result += content
        position += size
    return bytes(result)


def with_edits(data: bytes, edits: list[tuple[int, int]]) -> bytes:
    """Returns an mp4 file with another edit list in every track.

    Args:
        data: The file, whose tracks have an edit list already.
        edits: (duration in the movie's units, 1/1000 s; first media time in the track's units or -1 for nothing).
    """
    body = b"".join(struct.pack(">IihH", duration, start, 1, 0) for duration, start in edits)
    return rewrite(data, {b"elst": lambda _: struct.pack(">II", 0, len(edits)) + body})


def with_rotation(data: bytes, degrees: int) -> bytes:
    """Returns an mp4 file whose tracks players should rotate clockwise by a multiple of 90 degrees."""

    def turned(content: bytes) -> bytes:
        start = 52 if content[0] else 40
        a, b, c, d = (value * 65536 for value in MATRICES[degrees])
        matrix = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
        return content[:start] + matrix + content[start + 36 :]

    return rewrite(data, {b"tkhd": turned})


def with_claimed_frames(data: bytes, count: int) -> bytes:
    """Returns an mp4 file whose header claims many frames of one byte each, without growing."""
    return rewrite(
        data,
        {
            b"stsz": lambda _: struct.pack(">III", 0, 1, count),
            b"stts": lambda _: struct.pack(">IIII", 0, 1, count, 512),
        },
    )
