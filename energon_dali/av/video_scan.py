"""Finds out which frames a video shows: from its packets if they are reliable, else by decoding all of it once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from energon_dali.av.container import ROUTE, MediaFile, demux_stream
from energon_dali.av.frame_index import NO_TIME, FrameIndex, Int64s, PacketTable, list_frames, order_by_time
from energon_dali.av.key_packets import (
    EMPTY_PICTURE_BYTES,
    find_encoder_note,
    find_length_size,
    is_clean_start,
    is_hidden,
)
from energon_dali.av.mp4_table import read_sample_tables
from energon_dali.av.packet_decoder import RESTAMPED, Mark, read_mark
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.errors import DecodeError

Damaged = Literal["error", "partial"]

_TIMED_CONTAINERS = ("mov", "matroska", "flv")
"""Containers whose packets have presentation times. AVI has none: FFmpeg guesses them."""
_TOLD_BY_PACKETS = frozenset(("h264", "hevc", "vp8", "vp9", "av1", "mpeg4"))
"""Codecs with one shown frame per packet, except for what `key_packets.is_hidden` and the rules below find."""
_FIELD_PACKETS = frozenset(("mpeg1video", "mpeg2video"))
"""Codecs whose key frames may be attributed to their second field. For other codecs a key frame counts if container and
decoder agree, because AVI marks every frame of H.261."""
_UNORDERED = frozenset(("vp8", "vp9", "av1"))
"""Codecs that show packets in file order, so that no container can mix up their times."""
_MOST_HELD_FRAMES = 16
"""Most frames that a decoder of any codec holds back for reordering."""
_PROGRESSIVE = (0, 1)
"""AVFieldOrder of streams without fields (a field could be a packet)."""
_MPEG4_B_PICTURE = re.compile(rb"\x00\x00\x01\xb6[\x80-\xbf]")
"""ISO/IEC 14496-2 6.2.5: the two bits after the start code are 2 if a frame refers forward."""


def scan_frames(
    file: MediaFile, facts: StreamFacts, *, damaged: Damaged = "error", visit: Callable[[int, Any], None] | None = None
) -> FrameIndex:
    """Returns the index of a video stream, from one pass over its packets, or over its frames if necessary.

    Args:
        file: The file.
        facts: Its video stream.
        damaged: "partial" decodes everything and lists only the frames that can be decoded.
        visit: Called with (index, packet) for each packet, if they are read: not where an MP4 lists them.

    Raises:
        DecodeError: The file cannot be read, or shows no frame.
    """
    with file.opened():
        index = None
        if damaged == "error":
            table = read_sample_tables(file, facts)
            if table is None:
                table = read_packets(file, facts, visit)
            index = index_of_packets(table, facts, file.format, file.container.streams[facts.position])
            if index is not None and _hides_order(file, facts, index):
                index = None
        if index is None:
            index = index_by_decoding(file, facts, damaged)
    if not len(index):
        raise DecodeError("No frame of the video can be decoded", facts.codec, ROUTE)
    return index


def read_packets(file: MediaFile, facts: StreamFacts, decode: Any = None, *, tolerant: bool = False) -> PacketTable:
    """Returns the packets of a stream, read one by one.

    Args:
        file: The file, inside `opened`.
        facts: The stream.
        decode: Called with (index, packet) for each packet.
        tolerant: Whether unreadable data counts as the end of the file.

    Raises:
        DecodeError: There are too many packets, or it takes too long.
    """
    container = file.rewind()
    stream: Any = container.streams[facts.position]
    file.select(stream)
    check_time = file.deadline()
    extradata = stream.codec_context.extradata
    length_size = find_length_size(facts.codec, extradata)
    note = b""
    looks_hidden = facts.codec in ("vp8", "vp9")
    looks_clean = facts.codec in ("h264", "hevc", "mpeg4")
    rows: list[list[int]] = []
    for count, packet in enumerate(demux_stream(container, stream, tolerant=tolerant)):
        if not count & 63:
            check_time()
        if count > file.limits.max_packets:
            raise DecodeError(
                f"The video has more packets than AVLimits(max_packets={file.limits.max_packets}) allows",
                facts.codec,
                ROUTE,
            )
        if not packet.size:
            if rows and packet.pts == rows[-1][0] + rows[-1][2]:
                rows[-1][2] += packet.duration or 0  # Theora's marker for showing the frame again
            continue
        if decode is not None:
            decode(len(rows), packet)
        if not rows:
            note = find_encoder_note(facts.codec, memoryview(packet), length_size, extradata)
        is_key, hidden = packet.is_keyframe, packet.is_discard
        if is_key and looks_clean:
            is_key = is_clean_start(facts.codec, memoryview(packet), length_size)
        if looks_hidden and not hidden:
            hidden = is_hidden(facts.codec, memoryview(packet))
        pts, dts, offset = packet.pts, packet.dts, packet.pos
        times = [NO_TIME if time is None else time for time in (pts, dts)]
        rows.append([*times, packet.duration or 0, -1 if offset is None else offset, is_key, hidden])
    columns = np.ascontiguousarray(np.array(rows, dtype=np.int64).reshape(len(rows), 6).T)
    return PacketTable(columns[0], columns[1], columns[2], columns[3], columns[4] != 0, columns[5] != 0, note)


def index_of_packets(table: PacketTable, facts: StreamFacts, format: str, stream: Any) -> FrameIndex | None:
    """Returns the index according to the packets; None if they may be misleading.

    Args:
        table: All packets of the stream.
        facts: The stream.
        format: FFmpeg's name of the container.
        stream: The open stream.
    """
    codec = stream.codec_context.codec
    timed = format.startswith(_TIMED_CONTAINERS)
    trusted = codec.intra_only or (facts.codec in _TOLD_BY_PACKETS if timed else facts.codec in _UNORDERED)
    if facts.is_interlaced_mpeg4:
        table.is_key[1:] = False
    positions = order_by_time(table)
    ordered = table.pts[positions]
    if (
        not trusted
        or not len(positions)
        or ordered[0] == NO_TIME
        or (np.diff(ordered) <= 0).any()
        or not (table.is_key[0] or codec.intra_only)
        # Frames before the first key frame lack their references and are not shown.
        or ordered[0] < table.pts[0] <= ordered[-1]
        or getattr(stream.codec_context, "field_order", 0) not in _PROGRESSIVE
        or (not timed and (np.diff(table.pts[~table.is_hidden]) <= 0).any())
    ):
        return None
    if facts.codec == "mpeg4" and _smallest_packet(table) <= EMPTY_PICTURE_BYTES:
        return None
    return list_frames(table, positions, ordered, facts.time_base, is_intra_only=codec.intra_only, proven=False)


def _hides_order(file: MediaFile, facts: StreamFacts, index: FrameIndex) -> bool:
    """Returns whether times that increase in file order contradict the order in which frames are shown.

    This happens if a raw stream or an AVI was remuxed without times. A file whose encoder could reorder frames and did
    not looks the same, so the frames themselves must be examined.
    """
    context: Any = file.container.streams[facts.position].codec_context
    is_certain = facts.codec in _UNORDERED or context.codec.intra_only or not context.has_b_frames
    return not is_certain and bool((np.diff(index.positions) > 0).all()) and not is_in_file_order(file, facts)


def index_by_decoding(file: MediaFile, facts: StreamFacts, damaged: Damaged) -> FrameIndex:
    """Returns the index of the frames of a full decode, in the order in which the decoder returns them.

    Args:
        file: The file, inside `opened`.
        facts: Its video stream.
        damaged: "error" raises at the first packet that cannot be decoded; "partial" continues with the next.

    Raises:
        DecodeError: The stream cannot be decoded.
    """
    from av.error import FFmpegError

    context: Any = file.rewind().streams[facts.position].codec_context
    shown: list[tuple[int, int | None]] = []
    keys: set[int] = set()

    def decode(number: int, packet: Any) -> None:
        if packet is not None:
            packet.opaque = Mark(number)
        try:
            for frame in context.decode(packet):
                shown.append((read_mark(frame), frame.pts))
                if frame.key_frame:
                    keys.add(shown[-1][0])
        except (FFmpegError, EOFError):
            if damaged == "error":
                raise

    table = read_packets(file, facts, decode, tolerant=damaged == "partial")
    decode(len(table), None)
    if facts.codec in RESTAMPED:
        packet_at = dict(zip(table.pts.tolist(), range(len(table)), strict=True))
        shown = [(packet_at.get(NO_TIME if pts is None else pts, -1), pts) for _, pts in shown]
    known = [(number, pts) for number, pts in shown if 0 <= number < len(table)]
    positions = np.array([number for number, _ in known], np.int64)
    pts = _times_of(positions, [pts for _, pts in known], table)
    if facts.is_interlaced_mpeg4:
        table.is_key[1:] = False
    if facts.codec not in _TOLD_BY_PACKETS | _FIELD_PACKETS:
        table.is_key[[number not in keys for number in range(len(table))]] = False
    return list_frames(table, positions, pts, facts.time_base, is_intra_only=context.codec.intra_only, proven=True)


def _times_of(positions: Int64s, given: list[int | None], table: PacketTable) -> Int64s:
    """Returns presentation times that never decrease, for frames in the order in which they are shown.

    The decoder's order is right. Times that contradict it come from containers without presentation times (B-frames in
    AVI), for which FFmpeg guesses them: the right times are the same ones in increasing order. Times that jump back
    further start over, as in concatenated MPEG-TS files: they continue from the last time.
    """
    if not given:
        return np.zeros(0, np.int64)
    if any(pts is None for pts in given):
        dts = table.dts[positions]
        step = max(1, int(np.median(table.durations[positions])))
        first = int(dts.min()) if (dts != NO_TIME).all() else 0
        return first + step * np.arange(len(given), dtype=np.int64)
    times = np.array(given, np.int64)
    step = max(1, int(np.median(np.abs(np.diff(times))))) if len(times) > 1 else 1
    parts = np.split(times, np.flatnonzero(np.diff(times) < -_MOST_HELD_FRAMES * step) + 1)
    for before, part in zip([None, *parts], parts, strict=False):
        part.sort()
        if before is not None:
            part += before[-1] + step - part[0]
    return np.concatenate(parts)


def _smallest_packet(table: PacketTable) -> int:
    """Returns a lower bound for the size of the smallest packet in bytes, 0 if unknown."""
    offsets = np.sort(table.offsets)
    return int(np.diff(offsets).min()) if len(offsets) > 1 and offsets[0] >= 0 else 0


def is_in_file_order(file: MediaFile, facts: StreamFacts) -> bool:
    """Returns whether all frames are shown in the order in which they are stored; False if the file does not say.

    Reads all packets and decodes none.

    Args:
        file: The file, inside `opened`.
        facts: Its video stream.

    Raises:
        DecodeError: It takes too long.
    """
    from av.bitstream import BitStreamFilterContext
    from av.error import FFmpegError

    container = file.rewind()
    stream: Any = container.streams[facts.position]
    file.select(stream)
    check_time = file.deadline()
    count, seen, last = 0, 0, -1
    try:
        # FFmpeg's filter reorders the numbers by the picture order counts of H.264 and HEVC.
        ordered = None if facts.codec == "mpeg4" else BitStreamFilterContext("dts2pts", stream)
        for packet in demux_stream(container, stream):
            if not count & 63:
                check_time()
            if packet.size:
                packet.dts, packet.pts, packet.duration = count, None, 1
                count += 1
            if ordered is None:
                if _MPEG4_B_PICTURE.search(bytes(packet)):
                    return False
                continue
            for filtered in ordered.filter(packet if packet.size else None):
                if filtered.pts is None or filtered.pts <= last:
                    return False
                seen, last = seen + 1, filtered.pts
    except (FFmpegError, ValueError):  # unknown codec or filter, or damaged packets
        return False
    return ordered is None or seen == count
