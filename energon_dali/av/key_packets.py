"""Facts from the first bytes of a packet: whether decoding may start there, whether its frame is shown, its encoder.

Containers mark key frames, but some also mark frames from which decoding is not exact.
Sources: ITU-T H.264 7.3 and D.1.8, ITU-T H.265 7.3.1.2, ISO/IEC 14496-2 6.2.5 (MPEG-4), RFC 6386 9.1 (VP8), VP9
bitstream specification 6.2 and annex B.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_H264_IDR, _H264_SEI = 5, 6
_SEI_RECOVERY_POINT = 6
_MPEG4_PICTURE = b"\0\0\1\xb6"
_MPEG4_USER_DATA = b"\0\0\1\xb2"
_MPEG4_GROUP_OR_PICTURE = re.compile(rb"\x00\x00\x01[\xb3\xb6]")
_X264_BUILD = re.compile(rb"x264 - core (\d+)")
_LAST_SPECIAL_X264_BUILD = 150
"""FFmpeg decodes CABAC 4:4:4 streams of x264 up to this build differently (h264_mvpred.h)."""
EMPTY_PICTURE_BYTES = 20
"""MPEG-4 packets up to this size may be frames that were not coded: the decoder returns no frame for them, or they are
placeholders for a B-frame packed after another (XviD and DivX in AVI, which may even mark them as key frames)."""
_HEVC_IRAP = range(16, 24)


def find_units(data: memoryview, length_size: int) -> Iterator[tuple[int, int]]:
    """Yields (start, stop) of the NAL units of a packet, up to the first malformed one.

    Args:
        data: The packet.
        length_size: Bytes of the length before each unit; 0 if start codes (00 00 01) separate them.
    """
    if length_size:
        at = 0
        while at + length_size < len(data):
            size = int.from_bytes(data[at : at + length_size], "big")
            at += length_size
            if size <= 0 or at + size > len(data):
                return
            yield at, at + size
            at += size
        return
    content = bytes(data)
    at = content.find(b"\0\0\1")
    while at >= 0:
        after = content.find(b"\0\0\1", at + 3)
        start, stop = at + 3, len(content) if after < 0 else after
        if start < stop:
            yield start, stop
        at = after


def find_length_size(codec: str, extradata: bytes | None) -> int:
    """Returns the size of the length field of NAL units, from the decoder configuration; 0 for start codes."""
    if not extradata or extradata[0] != 1:
        return 0
    if codec == "h264" and len(extradata) > 4:
        return (extradata[4] & 3) + 1
    return (extradata[21] & 3) + 1 if codec == "hevc" and len(extradata) > 21 else 0


def is_clean_start(codec: str, data: memoryview, length_size: int) -> bool:
    """Returns whether decoding from a packet on is exact for all frames shown from there on.

    Args:
        codec: FFmpeg's name of the codec.
        data: A packet that the container marks as a key frame.
        length_size: From `find_length_size`.
    """
    if codec == "hevc":
        return any(data[start] >> 1 & 63 in _HEVC_IRAP for start, _ in find_units(data, length_size))
    if codec == "mpeg4":
        content = bytes(data)
        at = content.find(_MPEG4_PICTURE) + len(_MPEG4_PICTURE)
        is_intra = content[at : at + 1] < b"\x40"  # two bits: 0 for an intra frame
        return at >= len(_MPEG4_PICTURE) and is_intra and len(content) > EMPTY_PICTURE_BYTES
    if codec != "h264":
        return True
    for start, stop in find_units(data, length_size):
        kind = data[start] & 31
        if kind == _H264_IDR or (kind == _H264_SEI and _recovers_at_once(bytes(data[start + 1 : stop]))):
            return True
        if kind == 1:
            return False
    return False


def find_encoder_note(codec: str, data: memoryview, length_size: int, extradata: bytes | None) -> bytes:
    """Returns the encoder's note in the first packet if a decoder that starts later needs it; else b"".

    FFmpeg works around the bugs of old x264, XviD, DivX and its own encoders, which it recognises by this note. The
    note may be only in the first packet.

    Args:
        codec: FFmpeg's name of the codec.
        data: The first packet of the stream.
        length_size: From `find_length_size`.
        extradata: The decoder configuration of the stream.

    Returns:
        Bytes to prepend to a key packet.
    """
    if codec == "h264":
        for start, stop in find_units(data, length_size):
            unit = bytes(data[start:stop])
            build = _X264_BUILD.search(unit) if unit[0] & 31 == _H264_SEI else None
            if build is not None and int(build[1]) <= _LAST_SPECIAL_X264_BUILD:
                return (len(unit).to_bytes(length_size, "big") if length_size else b"\0\0\1") + unit
    if codec == "mpeg4":
        content = bytes(data)
        end = _MPEG4_GROUP_OR_PICTURE.search(content)
        header = content[: end.start()] if end is not None else b""
        if _MPEG4_USER_DATA in header and header[header.find(_MPEG4_USER_DATA) :] not in (extradata or b""):
            return header
    return b""


def is_hidden(codec: str, data: memoryview) -> bool:
    """Returns whether a packet of VP8 or VP9 contains a frame that is only a reference and never shown."""
    if not len(data):
        return True
    if codec == "vp8":
        return not data[0] & 0x10
    if codec == "vp9":
        if data[-1] & 0xE0 == 0xC0:
            return False  # a superframe, which ends with the shown frame
        header = int.from_bytes(bytes(data[:2]).ljust(2, b"\0"), "big")
        return _hides_vp9(header)
    return False


def _hides_vp9(header: int) -> bool:
    """Returns whether a VP9 frame is not shown, from its first 16 bits."""
    profile = header >> 13 & 1 | (header >> 12 & 1) << 1
    at = 11 - (profile == 3)
    return not header >> at & 1 and not header >> (at - 2) & 1


def _recovers_at_once(payload: bytes) -> bool:
    """Returns whether an SEI unit of H.264 has a recovery point with exact frames from the first on."""
    at = 0
    while at + 2 < len(payload):
        kind = size = 0
        while at < len(payload) and payload[at] == 255:
            kind, at = kind + 255, at + 1
        if at >= len(payload):
            return False
        kind, at = kind + payload[at], at + 1
        while at < len(payload) and payload[at] == 255:
            size, at = size + 255, at + 1
        if at >= len(payload):
            return False
        size, at = size + payload[at], at + 1
        if kind == _SEI_RECOVERY_POINT:
            # recovery_frame_cnt is an Exp-Golomb number: a first bit of one is 0.
            return at < len(payload) and bool(payload[at] & 0x80)
        at += size
    return False
