"""Writes the packets that chosen frames need into a small file of their own, for decoders that take files.

Of a long video with a media index only some packets are read. PyAV decodes these by the index; decoders of GPUs take
files. So the packets are put into a Matroska file: its headers say what the container of the video said.

Source: RFC 9559 (Matroska) and RFC 8794 (EBML).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from energon_dali.av.frame_index import Int64s
from energon_dali.av.media_index import StreamIndex
from energon_dali.av.sparse_media import SparseMedia

CODEC_IDS = {
    "h264": "V_MPEG4/ISO/AVC",
    "hevc": "V_MPEGH/ISO/HEVC",
    "vp8": "V_VP8",
    "vp9": "V_VP9",
    "av1": "V_AV1",
    "mpeg4": "V_MPEG4/ISO/ASP",
}
"""Matroska's name of each codec that an excerpt can hold, by FFmpeg's name. The decoder configuration of MP4 and
Matroska files is the same for all of them."""
CONTAINERS = frozenset({"matroska", "webm", "mov", "mp4"})

_FRAME_MS = 10
"""Time from one frame of an excerpt to the next: their times are not those of the video, only their order is."""
_MOST_MS = 30_000
"""Length of a cluster; times in it have 16 bits."""


def excerpt_frames(stream: StreamIndex, runs: list[tuple[int, int]]) -> Int64s:
    """Returns the numbers of the frames that packets contain, ascending: int64[n].

    Args:
        stream: The index of a video of which every packet is one frame.
        runs: (first, last) packet of each run, in increasing order.
    """
    assert stream.frames is not None, "videos have frames"
    held = np.zeros(len(stream), bool)
    for first, last in runs:
        held[first : last + 1] = True
    return np.flatnonzero(held[stream.frames.positions])


def write_excerpt(media: SparseMedia, stream: StreamIndex, runs: list[tuple[int, int]]) -> bytes:
    """Returns a Matroska file of some packets of a video.

    Args:
        media: The bytes of the packets.
        stream: The index of the video; every packet is one frame, of one of `CODEC_IDS`, from one of `CONTAINERS`.
        runs: (first, last) packet of each run, in increasing order; each starts with a key packet.

    Raises:
        DecodeError: A packet is not the one that was indexed, or cannot be fetched.
    """
    assert stream.frames is not None, "videos have frames"
    frames = excerpt_frames(stream, runs)
    times = np.full(len(stream), -1, np.int64)
    times[stream.frames.positions[frames]] = _FRAME_MS * np.arange(len(frames))
    clusters = list(_clusters(media, stream, runs, times))
    info = _element(
        0x1549A966, _number(0x2AD7B1, 1_000_000), _text(0x4D80, "energon_dali"), _text(0x5741, "energon_dali")
    )
    head = info + _tracks(stream)
    cues = _cues([(time, 0) for time, has_key, _ in clusters if has_key])
    position, found = len(head) + len(cues), []
    for time, has_key, cluster in clusters:
        if has_key:
            found.append((time, position))
        position += len(cluster)
    segment = _element(0x18538067, head, _cues(found), *(cluster for _, _, cluster in clusters))
    return _header() + segment


def _header() -> bytes:
    values = ((0x4286, 1), (0x42F7, 1), (0x42F2, 4), (0x42F3, 8))
    kind = _text(0x4282, "matroska") + _number(0x4287, 4) + _number(0x4285, 2)
    return _element(0x1A45DFA3, *(_number(name, value) for name, value in values), kind)


def _tracks(stream: StreamIndex) -> bytes:
    facts, setup = stream.facts, stream.setup
    matrix, colour_range, primaries, transfer = setup.colours
    colour = _element(
        0x55B0,
        _number(0x55B1, matrix),
        _number(0x55B9, colour_range),
        _number(0x55BA, transfer),
        _number(0x55BB, primaries),
    )
    video = _element(0xE0, _number(0xB0, facts.width), _number(0xBA, facts.height), colour)
    private = _element(0x63A2, setup.extradata) if setup.extradata else b""
    numbers = ((0xD7, 1), (0x73C5, 1), (0x83, 1), (0x9C, 0), (0x23E383, _FRAME_MS * 1_000_000))
    codec = _text(0x86, CODEC_IDS[facts.codec])
    return _element(
        0x1654AE6B, _element(0xAE, *(_number(name, value) for name, value in numbers), codec, private, video)
    )


def _clusters(
    media: SparseMedia, stream: StreamIndex, runs: list[tuple[int, int]], times: Int64s
) -> Iterator[tuple[int, bool, bytes]]:
    """Yields (time, whether it starts with a key packet, bytes) of each cluster."""
    for first, last in runs:
        blocks: list[bytes] = []
        start, has_key = int(times[first]), True
        for number in range(first, last + 1):
            time, is_key = int(times[number]), bool(stream.packets.is_key[number])
            if blocks and (is_key or not -_MOST_MS < time - start < _MOST_MS):
                yield start, has_key, _element(0x1F43B675, _number(0xE7, start), *blocks)
                blocks, start, has_key = [], time, is_key
            payload = media.payload(stream, number, last + 1)
            block = struct.pack(">BhB", 0x81, time - start, 0x80 if is_key else 0)
            blocks.append(_element(0xA3, block, payload))
        yield start, has_key, _element(0x1F43B675, _number(0xE7, start), *blocks)


def _cues(found: list[tuple[int, int]]) -> bytes:
    """Returns where clusters are: (time, position in the segment) of each. Its size depends on their number alone."""
    return _element(
        0x1C53BB6B,
        *(
            _element(0xBB, _number(0xB3, time), _element(0xB7, _number(0xF7, 1), _number(0xF1, position)))
            for time, position in found
        ),
    )


def _element(name: int, *parts: bytes | memoryview) -> bytes:
    """Returns an EBML element: its name, the size of its content in 8 bytes, and the content."""
    size = sum(map(len, parts))
    return b"".join((name.to_bytes(-(-name.bit_length() // 8), "big"), (size | 1 << 56).to_bytes(8, "big"), *parts))


def _number(name: int, value: int) -> bytes:
    return _element(name, value.to_bytes(8, "big"))


def _text(name: int, value: str) -> bytes:
    return _element(name, value.encode())
