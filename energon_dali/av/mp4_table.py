"""Lists the packets of an MP4 video from its sample tables, without reading the media: seconds saved on long files.

FFmpeg's index has decoding times, byte offsets and key flags. Composition offsets and durations are in the boxes `ctts`
and `stts` (ISO/IEC 14496-12, 8.6). The tables are verified: packets are read at the start, in the middle and at the
end. If one differs from the tables, or the file is unusual (fragments, edits that cut or repeat), all packets are read
instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.av.frame_index import NO_TIME, Int64s, PacketTable
from energon_dali.av.key_packets import find_encoder_note, find_length_size, is_clean_start, is_hidden
from energon_dali.av.media_source import view_bytes
from energon_dali.av.mp4_screen import find_boxes, track_number

if TYPE_CHECKING:
    from energon_dali.av.container import MediaFile
    from energon_dali.av.stream_facts import StreamFacts

DISCARDED = 2
"""AVINDEX_DISCARD_FRAME: an edit list leaves the packet out."""
_PROBES = 6
"""Packets to read at each of three positions."""
_NESTED = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts")


def read_sample_tables(file: MediaFile, facts: StreamFacts) -> PacketTable | None:
    """Returns the packets of a video stream from its sample tables; None if these are incomplete or wrong.

    Args:
        file: The file, inside `opened`; its position changes.
        facts: Its video stream.
    """
    container = file.container
    stream: Any = container.streams[facts.position]
    if not file.format.startswith("mov") or stream.frames < 1 or len(stream.index_entries) != stream.frames:
        return None
    rows = [(entry.timestamp, entry.pos, entry.size, entry.flags) for entry in stream.index_entries]
    dts, offsets, sizes, flags = np.ascontiguousarray(np.array(rows, np.int64).T)
    file.select(stream)
    with view_bytes(file.source) as data:
        boxes = None if data is None else _track_boxes(data, stream.id)
        if data is None or boxes is None or (flags & DISCARDED).any() or (offsets + sizes > len(data)).any():
            return None
        shifts = _expand(boxes.get(b"ctts", b""), len(dts), ">i4") if b"ctts" in boxes else np.zeros_like(dts)
        durations = _expand(boxes.get(b"stts", b""), len(dts), ">u4")
        if shifts is None or durations is None or not _is_plain_edit(boxes.get(b"elst", b"")):
            return None
        table = PacketTable(dts + shifts, dts, durations, offsets, (flags & 1).astype(bool), np.zeros(len(dts), bool))
        origin = _probe(file, stream, table, sizes)
        if origin is None:
            return None
        extradata = stream.codec_context.extradata
        is_key, hidden = _read_packet_headers(data, table, sizes, facts.codec, extradata)
        first = bytes(data[offsets[0] : offsets[0] + sizes[0]])  # a view would keep a mapped file open
        note = find_encoder_note(facts.codec, memoryview(first), find_length_size(facts.codec, extradata), extradata)
        return PacketTable(table.pts + origin, dts, durations, offsets, is_key, hidden, note)


def _track_boxes(data: memoryview, track: int) -> dict[bytes, bytes] | None:
    """Returns the contents of the boxes of a track by type; None if it is missing, or the file has fragments."""
    for kind, start, stop in find_boxes(data, 0, len(data)):
        if kind == b"moov":
            inside = list(find_boxes(data, start, stop))
            if any(name == b"mvex" for name, _, _ in inside):
                return None
            tracks = [dict(_inner_boxes(data, first, last)) for name, first, last in inside if name == b"trak"]
            return next((boxes for boxes in tracks if track_number(boxes.get(b"tkhd", b"")) == track), None)
    return None


def _inner_boxes(data: memoryview, start: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields (type, content) of the needed boxes inside a track, at any depth."""
    for kind, first, last in find_boxes(data, start, end):
        if kind in _NESTED:
            yield from _inner_boxes(data, first, last)
        elif kind in (b"tkhd", b"stts", b"ctts", b"elst"):
            yield kind, bytes(data[first:last])


def _expand(content: bytes, count: int, dtype: str) -> Int64s | None:
    """Returns the values of a run-length table, one per sample, int64 [count]; None if it does not have `count`
    samples.

    Args:
        content: Version and flags, number of runs, then (samples, value) of each, 32 bits each.
        count: Number of samples.
        dtype: Type of the values, ">u4" or ">i4".
    """
    runs = (len(content) - 8) // 8
    if runs < 1 or int.from_bytes(content[4:8], "big") != runs:
        return None
    pairs = np.frombuffer(content, ">u4", 2 * runs, 8).reshape(runs, 2)
    lengths = pairs[:, 0].astype(np.int64)
    if lengths.sum() != count:
        return None
    values = np.ascontiguousarray(pairs[:, 1]).view(dtype).astype(np.int64)
    return np.repeat(values, lengths)


def _is_plain_edit(content: bytes) -> bool:
    """Returns whether an edit list shows one piece of the media, at its own speed, or there is none."""
    if not content:
        return True
    wide = content[:1] == b"\1"
    size, start = (20, 8) if wide else (12, 4)
    entries = [content[at : at + size] for at in range(8, len(content) - size + 1, size)]
    times = [int.from_bytes(entry[start : start * 2], "big", signed=True) for entry in entries]
    speeds = {entry[start * 2 :] for entry in entries}
    return sum(time != -1 for time in times) <= 1 and speeds <= {b"\0\1\0\0"}


def _probe(file: MediaFile, stream: Any, table: PacketTable, sizes: Int64s) -> int | None:
    """Returns the offset to add to pts, from packets at three positions; None if they contradict the table."""
    container = file.container
    found: set[int] = set()
    for time in (table.dts[0], table.dts[len(table) // 2], table.dts[-1]):
        container.seek(int(time), stream=stream, backward=True)
        packets = container.demux(stream)
        for packet in (packet for packet, _ in zip(packets, range(_PROBES), strict=False) if packet.size):
            at = int(np.searchsorted(table.dts, NO_TIME if packet.dts is None else packet.dts))
            if (
                at == len(table)
                or packet.pts is None
                or (packet.dts, packet.pos, packet.size, packet.duration)
                != (table.dts[at], table.offsets[at], sizes[at], table.durations[at])
            ):
                return None
            found.add(packet.pts - int(table.pts[at]))
    return found.pop() if len(found) == 1 else None


def _read_packet_headers(
    data: memoryview, table: PacketTable, sizes: Int64s, codec: str, extradata: Any
) -> tuple[Any, Any]:
    """Returns (is_key, is_hidden) by the packets' headers: of key packets only, or of each packet for VP8 and VP9."""
    is_key, hidden = table.is_key.copy(), table.is_hidden.copy()
    length_size = find_length_size(codec, extradata)
    key_packets = np.flatnonzero(is_key) if codec in ("h264", "hevc") else ()
    for at in key_packets:
        packet = data[table.offsets[at] : table.offsets[at] + sizes[at]]
        is_key[at] = is_clean_start(codec, packet, length_size)
    if codec in ("vp8", "vp9"):
        spans = zip(table.offsets.tolist(), sizes.tolist(), strict=True)
        hidden = np.array([is_hidden(codec, data[offset : offset + size]) for offset, size in spans], bool)
    return is_key, hidden
