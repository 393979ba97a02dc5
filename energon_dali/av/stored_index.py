"""A media index as bytes: about five per frame of a video, read with numpy alone, and checked in every respect.

Layout, little-endian:

    version     u8
    CRC-32      u32, of everything after it
    size        u32, of the packed part before it was compressed
    bytes       u32, of the packed part as stored
    packed      compressed by zlib with the dictionary below: a text in JSON with the facts, then the columns
    checks      the checksums of the packets, u16 each, which no compression makes smaller: video, then audio

The places of packets follow from their sizes: packets of both streams are listed in the order of the file, and only the
bytes between one and the next are stored. The frames of a video follow from its packets, as in `video_scan`, unless the
decoder had to list them.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields
from fractions import Fraction
from typing import Any, get_args

import numpy as np

from energon_dali.av.audio_index import AudioIndex
from energon_dali.av.colour import ColourFacts, Matrix
from energon_dali.av.frame_index import NO_TIME, FrameIndex, Int64s, PacketTable, list_frames, order_by_time
from energon_dali.av.index_dictionary import DICTIONARY
from energon_dali.av.media_index import (
    AUDIO_CHECK_STEP,
    VIDEO_CHECK_STEP,
    DecoderSetup,
    FirstFrame,
    MediaIndex,
    StreamIndex,
)
from energon_dali.av.packed_column import ColumnReader, ColumnWriter
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.errors import DatasetFormatError

VERSION = 1
_HEADER = struct.Struct("<BIII")
_MOST_TEXT_BYTES = 1 << 20
_MOST_STREAMS = 1000
_MOST_BLOB_BYTES = 16 << 20
"""Of an extradata, or of the note of an encoder."""
_MOST_INFLATION = 1032
"""zlib makes nothing larger than this."""
_SIDE_DATA_BYTES = 10
"""Of FFmpeg's "skip_samples"."""
_AUDIO_TYPES = frozenset(("|u1", "<i2", "<i4", "<f4", "<f8"))


def pack_media_index(index: MediaIndex) -> bytes:
    """Returns an index as bytes, the same for equal indices."""
    tables = _tables(index)
    facts = {
        "file": [index.format, index.size_bytes],
        "streams": [_plain(astuple(stream)) for stream in index.streams],
        "tables": [_table_facts(table) for table in (index.video, index.audio)],
    }
    writer = ColumnWriter()
    writer.blob(json.dumps(list(facts.values()), separators=(",", ":")).encode())
    for table in tables:
        writer.blob(table.setup.extradata)
        writer.blob(table.packets.encoder_note)
        writer.number(len(table))
    _write_places(writer, tables)
    for table in tables:
        _write_table(writer, table)
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=DICTIONARY)
    packed = compressor.compress(bytes(writer.buffer)) + compressor.flush()
    checks = b"".join(table.checks.astype("<u2").tobytes() for table in tables)
    sizes = struct.pack("<II", len(writer.buffer), len(packed))
    return struct.pack("<BI", VERSION, zlib.crc32(sizes + packed + checks)) + sizes + packed + checks


def read_media_index(buffer: bytes | memoryview) -> MediaIndex:
    """Returns the index that `pack_media_index` made bytes of.

    Memory for at most a few hundred times the bytes given is allocated, whatever they say.

    Raises:
        DatasetFormatError: They are damaged, of another version, or contradict themselves.
    """
    try:
        return _read(memoryview(buffer).cast("B"))
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        OverflowError,
        ZeroDivisionError,
        RecursionError,
        zlib.error,
        struct.error,
    ) as error:
        raise DatasetFormatError(
            f"The index of a media file is damaged ({str(error)[:200]}). Run `energon-dali prepare-media` on the "
            "dataset again."
        ) from error


def _read(buffer: memoryview) -> MediaIndex:
    version, crc, size, stored = _HEADER.unpack_from(buffer)
    if version != VERSION:
        raise ValueError(f"version {version}; this program reads version {VERSION}")
    if zlib.crc32(buffer[5:]) != crc:
        raise ValueError("its checksum is wrong")
    packed, checks = buffer[_HEADER.size : _HEADER.size + stored], buffer[_HEADER.size + stored :]
    if size > len(packed) * _MOST_INFLATION + 64:
        raise ValueError(f"{len(packed)} bytes cannot hold {size}")
    inflater = zlib.decompressobj(-15, zdict=DICTIONARY)
    content = inflater.decompress(packed, size + 1)
    if len(content) != size or not inflater.eof or inflater.unused_data:
        raise ValueError("its size is wrong")
    reader = ColumnReader(content)
    (format, size_bytes), streams, table_facts = json.loads(reader.blob(_MOST_TEXT_BYTES))
    _check(isinstance(format, str) and _is_count(size_bytes) and len(streams) <= _MOST_STREAMS, "its facts")
    all_facts = tuple(_read_facts(row, position) for position, row in enumerate(streams))
    builders = [
        _TableReader(facts, all_facts, is_video)
        for facts, is_video in zip(table_facts, (True, False), strict=True)
        if facts
    ]
    at = 0
    for builder in builders:
        builder.extradata, builder.note = reader.blob(_MOST_BLOB_BYTES), reader.blob(_MOST_BLOB_BYTES)
        builder.count = reader.number()
        step = VIDEO_CHECK_STEP if builder.is_video else AUDIO_CHECK_STEP
        # This bounds what the columns below may claim: each few packets have a checksum that is there.
        _check(builder.count > 0 and at + 2 * -(-builder.count // step) <= len(checks), "the number of its packets")
        stop = at + 2 * -(-builder.count // step)
        builder.checks, at = np.frombuffer(checks[at:stop], "<u2").astype(np.uint16), stop
    _check(at == len(checks), "the number of its checksums")
    _read_places(reader, builders, size_bytes)
    tables = {builder.is_video: builder.read(reader) for builder in builders}
    reader.finish()
    return MediaIndex(format, size_bytes, all_facts, tables.get(True), tables.get(False))


def _tables(index: MediaIndex) -> list[StreamIndex]:
    return [table for table in (index.video, index.audio) if table is not None]


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(f"{what} cannot be right")


def _is_count(value: Any, most: int = 1 << 62) -> bool:
    return type(value) is int and 0 <= value < most


def _plain(values: Sequence[Any]) -> list[Any]:
    """Returns values for JSON: fractions as [numerator, denominator], bytes as text."""
    return [
        [value.numerator, value.denominator]
        if isinstance(value, Fraction)
        else value.decode("latin-1")
        if isinstance(value, bytes)
        else value
        for value in values
    ]


def _read_facts(row: Any, position: int) -> StreamFacts:
    """Returns the facts about a stream; each has the type that the class states."""
    named = dict(zip((field.name for field in fields(StreamFacts)), row, strict=True))
    for field in fields(StreamFacts):
        value, kind = named[field.name], str(field.type)
        if kind.startswith("Fraction") and value is not None:
            numerator, denominator = value
            _check(type(numerator) is int and _is_count(denominator) and denominator > 0, field.name)
            named[field.name] = Fraction(numerator, denominator)
        elif kind == "str":
            _check(isinstance(value, str), field.name)
        elif kind == "bool":
            _check(isinstance(value, bool), field.name)
        else:
            _check((value is None and "None" in kind) or (type(value) is int and abs(value) < 1 << 63), field.name)
    facts = StreamFacts(**named)
    _check(facts.position == position and facts.time_base > 0, "the facts about a stream")
    _check(min(facts.width, facts.height, facts.sample_rate, facts.channels, facts.frames) >= 0, "a size of a stream")
    return facts


def _table_facts(table: StreamIndex | None) -> list[Any]:
    """Returns what the text says about a stream that is indexed; nothing for one that is not."""
    if table is None:
        return []
    setup = _plain(astuple(table.setup)[1:])
    if table.frames is not None and table.first_frame is not None:
        first = table.first_frame
        shown = [len(table.frames) if table.frames.proven else 0, first.width, first.height, first.rotation]
        return [table.facts.position, setup, [*shown, first.colours.matrix, first.colours.full_range]]
    audio = table.audio
    assert audio is not None, "a stream is a video or audio"
    skips = [[number, content.hex()] for number, content in sorted(table.skips.items())]
    heard = [audio.rate, audio.channels, audio.layout, audio.sample_format, audio.dtype.str, audio.proven]
    return [table.facts.position, setup, [*heard, len(audio.span_starts), skips]]


def _write_places(writer: ColumnWriter, tables: Sequence[StreamIndex]) -> None:
    order, is_second = _file_order([table.payload_offsets for table in tables])
    if len(tables) > 1:
        writer.bits(is_second)
    offsets = np.concatenate([table.payload_offsets for table in tables])[order] if tables else np.zeros(0, np.int64)
    sizes = np.concatenate([table.sizes for table in tables])[order] if tables else np.zeros(0, np.int64)
    for table in tables:
        writer.column(table.sizes)
    writer.column(offsets - np.concatenate(([0], (offsets + sizes)[:-1])))


def _file_order(places: list[Int64s]) -> tuple[Int64s, Any]:
    """Returns (packets of all streams in the order of the file, which of them are of the second stream).

    The packets of a stream keep their order, even if they are not stored in it.
    """
    if not places:
        return np.zeros(0, np.int64), np.zeros(0, bool)
    reached = np.concatenate([np.maximum.accumulate(place) for place in places])
    order = np.argsort(reached, kind="stable")
    return order, order >= len(places[0])


def _read_places(reader: ColumnReader, builders: Sequence[_TableReader], size_bytes: int) -> None:
    """Reads the sizes and places of the packets of all streams."""
    count = sum(builder.count for builder in builders)
    is_second = reader.bits(count) if len(builders) > 1 else np.zeros(count, bool)
    _check(count == 0 or int((~is_second).sum()) == builders[0].count, "the order of its packets")
    for builder in builders:
        builder.sizes = reader.column(builder.count)
        _check(bool(((builder.sizes > 0) & (builder.sizes <= size_bytes)).all()), "the size of a packet")
    sizes = np.empty(count, np.int64)
    for builder, which in zip(builders, (~is_second, is_second), strict=False):
        sizes[which] = builder.sizes
    ends = np.cumsum(reader.column(count) + sizes)
    offsets = ends - sizes
    _check(bool(((offsets >= 0) & (offsets <= size_bytes - sizes)).all()), "the place of a packet")
    for builder, which in zip(builders, (~is_second, is_second), strict=False):
        builder.payload_offsets = offsets[which]


def _write_table(writer: ColumnWriter, table: StreamIndex) -> None:
    packets = table.packets
    positions = np.where(packets.offsets < 0, NO_TIME, table.payload_offsets - packets.offsets)
    is_timed = not ((packets.pts == NO_TIME) | (packets.dts == NO_TIME)).any()
    writer.number(int(is_timed))
    writer.column(packets.dts)
    writer.column(packets.pts - packets.dts if is_timed else packets.pts)
    writer.column(packets.durations)
    writer.column(positions)
    writer.bits(packets.is_key)
    writer.bits(packets.is_hidden)
    if table.frames is not None and table.frames.proven:
        writer.column(table.frames.positions)
        writer.column(table.frames.pts)
    if table.audio is not None:
        writer.column(np.diff(table.audio.starts))
        writer.column(table.audio.span_starts)
        writer.buffer += table.audio.span_seconds.astype("<f8").tobytes()


class _TableReader:
    """Reads one stream.

    Args:
        facts: What `_table_facts` returned.
        streams: Facts about all streams of the file.
        is_video: Whether it is a video.
    """

    def __init__(self, facts: Any, streams: Sequence[StreamFacts], is_video: bool) -> None:
        position, setup, self._shown = facts
        _check(_is_count(position, len(streams)), "the position of a stream")
        self._stream = streams[position]
        _check(self._stream.kind == ("video" if is_video else "audio"), "the kind of a stream")
        self.is_video = is_video
        self._setup = setup
        self.extradata = self.note = b""
        self.count = 0
        self.checks = np.zeros(0, np.uint16)
        self.sizes = self.payload_offsets = np.zeros(0, np.int64)

    def read(self, reader: ColumnReader) -> StreamIndex:
        """Returns the stream."""
        packets = self._read_packets(reader)
        setup = self._read_setup()
        skips: dict[int, bytes] = {}
        frames = first = audio = None
        if self.is_video:
            frames = self._read_frames(reader, packets, setup)
            first = self._read_first_frame()
        else:
            audio, skips = self._read_audio(reader, packets)
        step = VIDEO_CHECK_STEP if self.is_video else AUDIO_CHECK_STEP
        return StreamIndex(
            self._stream,
            setup,
            packets,
            self.payload_offsets,
            self.sizes,
            self.checks,
            step,
            skips,
            frames,
            first,
            audio,
        )

    def _read_packets(self, reader: ColumnReader) -> PacketTable:
        is_timed = reader.number()
        dts, pts = reader.column(self.count), reader.column(self.count)
        durations, shifts = reader.column(self.count), reader.column(self.count)
        is_key, is_hidden = reader.bits(self.count), reader.bits(self.count)
        if is_timed:
            _check(not (dts == NO_TIME).any(), "a time")
            pts = pts + dts
        offsets = np.where(shifts == NO_TIME, -1, self.payload_offsets - shifts)
        return PacketTable(pts, dts, durations, offsets, is_key, is_hidden, self.note)

    def _read_setup(self) -> DecoderSetup:
        decoder, tag, level, bit_rate, bits, depth, order, colours, is_intra_only, frame_size = self._setup
        numbers = (level, bit_rate, bits, depth, order, frame_size, *colours)
        _check(isinstance(decoder, str) and 0 < len(decoder) < 100, "a decoder")
        _check(isinstance(tag, str) and all(type(one) is int and abs(one) < 1 << 63 for one in numbers), "a setup")
        _check(isinstance(is_intra_only, bool) and len(colours) == 4 and len(tag) == 4, "a setup")
        colours = (colours[0], colours[1], colours[2], colours[3])
        return DecoderSetup(
            self.extradata,
            decoder,
            tag.encode("latin-1"),
            level,
            bit_rate,
            bits,
            depth,
            order,
            colours,
            is_intra_only,
            frame_size,
        )

    def _read_frames(self, reader: ColumnReader, packets: PacketTable, setup: DecoderSetup) -> FrameIndex:
        count = self._shown[0]
        _check(_is_count(count), "the number of its frames")
        if count:
            # A packet contains one frame, or two if it has both fields, or shows an earlier one again.
            _check(count <= 2 * self.count, "the number of its frames")
            positions, pts = reader.column(count), reader.column(count)
            _check(bool(((positions >= 0) & (positions < self.count)).all()), "the packet of a frame")
        else:
            positions = order_by_time(packets)
            pts = packets.pts[positions]
        _check(len(pts) > 0 and pts[0] != NO_TIME and bool((pts[1:] >= pts[:-1]).all()), "the times of its frames")
        return list_frames(
            packets,
            positions,
            pts,
            self._stream.time_base,
            is_intra_only=setup.is_intra_only,
            proven=bool(count),
        )

    def _read_first_frame(self) -> FirstFrame:
        _, width, height, rotation, matrix, full_range = self._shown
        _check(all(_is_count(side, 1 << 31) and side for side in (width, height)), "the size of a frame")
        _check(rotation in (0, 90, 180, 270) and matrix in get_args(Matrix), "a fact about the frames")
        _check(isinstance(full_range, bool), "the range of its colours")
        return FirstFrame(width, height, rotation, ColourFacts(matrix, full_range))

    def _read_audio(self, reader: ColumnReader, packets: PacketTable) -> tuple[AudioIndex, dict[int, bytes]]:
        rate, channels, layout, sample_format, dtype, proven, spans, rows = self._shown
        _check(_is_count(rate, 1 << 31) and rate > 0 and _is_count(channels, 1 << 16) and channels > 0, "its rate")
        _check(isinstance(layout, str) and isinstance(sample_format, str) and isinstance(proven, bool), "its layout")
        _check(dtype in _AUDIO_TYPES and _is_count(spans, self.count + 1) and spans > 0, "the type of its samples")
        given = reader.column(self.count)
        _check(bool(((given >= 0) & (given < 1 << 31)).all()), "the samples of a packet")
        span_starts = reader.column(spans)
        span_seconds = np.frombuffer(reader.take(8 * spans), "<f8").astype(np.float64)
        _check(bool(np.isfinite(span_seconds).all() and (np.diff(span_starts) >= 0).all()), "a gap")
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(given)))
        _check(bool((span_starts >= 0).all() and (span_starts <= starts[-1]).all()), "a gap")
        audio = AudioIndex(
            starts,
            packets.pts,
            self.sizes,
            rate,
            channels,
            layout,
            sample_format,
            np.dtype(dtype),
            span_starts,
            span_seconds,
            proven,
        )
        return audio, dict(self._skips(rows))

    def _skips(self, rows: Any) -> Iterator[tuple[int, bytes]]:
        for number, content in rows:
            _check(_is_count(number, self.count), "a packet with side data")
            data = bytes.fromhex(content)
            _check(len(data) == _SIDE_DATA_BYTES, "the side data of a packet")
            yield number, data
