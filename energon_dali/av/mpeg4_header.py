"""Reads from the header of an MPEG-4 video (part 2) whether its pictures may be interlaced.

FFmpeg keeps the distance between fields from the first B-picture that it meets. So interlaced B-pictures are right only
in one thread and from the start of the stream on; elsewhere they look different, or do not come at all.
Source: ISO/IEC 14496-2 6.2.3, VideoObjectLayer.
"""

from __future__ import annotations

import re

_LAYER = re.compile(rb"\x00\x00\x01[\x20-\x2f]")
_EXTENDED_RATIO = 15
_RECTANGULAR = 0


def is_interlaced_mpeg4(extradata: bytes | None) -> bool:
    """Returns whether pictures may be interlaced; False where the header does not say.

    Args:
        extradata: The decoder configuration of the stream.
    """
    layer = _LAYER.search(extradata or b"")
    if layer is None:
        return False
    bits = _bits((extradata or b"")[layer.end() :])
    at = 1 + 8  # random access, type
    at += 8 if bits[at : at + 1] == "1" else 1  # identifier
    at += 20 if _number(bits, at, 4) == _EXTENDED_RATIO else 4
    if bits[at : at + 1] == "1":  # control parameters: chroma format, low delay
        at += 4
        at += 80 if bits[at : at + 1] == "1" else 1
    else:
        at += 1
    if _number(bits, at, 2) != _RECTANGULAR:
        return False
    resolution = _number(bits, at + 3, 16)
    at += 20
    at += 1 + max(1, (resolution - 1).bit_length()) if bits[at : at + 1] == "1" else 1  # fixed rate
    return bits[at + 29 : at + 30] == "1"  # behind width, height and three markers


def _bits(data: bytes) -> str:
    return "".join(f"{byte:08b}" for byte in data[:64])


def _number(bits: str, at: int, count: int) -> int:
    return int(bits[at : at + count] or "0", 2)
