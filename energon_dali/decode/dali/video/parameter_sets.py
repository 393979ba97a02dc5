"""Finds out whether a video keeps the size and format that its header declares, for codecs with parameter sets.

H.264, HEVC, MPEG-4 and AV1 store the size of frames in units that may be repeated, and changed, anywhere in the media
stream. DALI takes the size from the container once and uses it for all frames, so it must not get a file that changes
its size.

Sources: ITU-T H.264 7.4.1, ITU-T H.265 7.4.2.2, ISO/IEC 14496-2 6.3.2, AV1 bitstream specification 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from energon_dali.av.video.key_packets import find_length_size, find_units

CODECS_WITH_PARAMETERS = frozenset({"h264", "hevc", "mpeg4", "av1"})
"""FFmpeg's names of the codecs that `keeps_parameters` can check."""

_H264_SPS = 7
_HEVC_SPS = 33
_MPEG4_LAYERS = range(0x20, 0x30)
_AV1_SEQUENCE_HEADER = 1


def keeps_parameters(codec: str, extradata: bytes | None, packets: Iterable[memoryview]) -> bool:
    """Returns whether every unit that sets the size of frames is also in the header of the media stream.

    Args:
        codec: One of CODECS_WITH_PARAMETERS.
        extradata: The decoder configuration of the container; without it the answer is no.
        packets: All packets of the media stream, in any order.
    """
    if not extradata:
        return False
    length_size = find_length_size(codec, extradata)
    find = {"mpeg4": _find_mpeg4_layers, "av1": _find_av1_headers}.get(codec)
    count = 0
    for packet in packets:
        count += 1
        units = find(packet) if find is not None else _find_sets(codec, packet, length_size)
        if any(unit not in extradata for unit in units):
            return False
    return count > 0


def _find_sets(codec: str, packet: memoryview, length_size: int) -> Iterator[bytes]:
    for start, stop in find_units(packet, length_size):
        first = packet[start]
        kind = first & 31 if codec == "h264" else first >> 1 & 63
        if kind == (_H264_SPS if codec == "h264" else _HEVC_SPS):
            yield bytes(packet[start:stop]).rstrip(b"\0")


def _find_mpeg4_layers(packet: memoryview) -> Iterator[bytes]:
    content = bytes(packet)
    at = content.find(b"\0\0\1")
    while at >= 0 and at + 3 < len(content):
        after = content.find(b"\0\0\1", at + 3)
        if content[at + 3] in _MPEG4_LAYERS:
            yield content[at : after if after >= 0 else len(content)]
        at = after


def _find_av1_headers(packet: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(packet):
        header = packet[at]
        at += 2 if header & 4 else 1
        size = len(packet) - at
        if header & 2:
            size, shift = 0, 0
            while True:
                byte = packet[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if not byte & 0x80:
                    break
                if shift > 28:
                    return
        if header >> 3 & 15 == _AV1_SEQUENCE_HEADER:
            yield bytes(packet[at : at + size])
        at += size
