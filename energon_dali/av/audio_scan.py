"""Finds out which samples each packet of an audio stream contains: from the packets, or by decoding all of them once.

The number of samples of a packet follows from its codec (PCM: its bytes; Opus: its first byte; AAC, MP3: the codec's
frame) or from its duration. Decoding the first packets verifies this and shows how much is skipped at the start
(encoder delay, edit lists); decoding the last ones shows how much is skipped at the end. If it does not hold, all
packets are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.av.audio_index import AudioIndex, find_spans
from energon_dali.av.audio_packets import (
    CUT,
    HEAD,
    decode_frames,
    decode_numbered,
    demux,
    packet_of,
    read_channels,
    select,
)
from energon_dali.av.container import ROUTE, MediaFile
from energon_dali.av.flac_frames import count_samples
from energon_dali.av.frame_index import NO_TIME, Int64s
from energon_dali.av.media_source import view_bytes
from energon_dali.av.mp4_table import DISCARDED
from energon_dali.av.packet_decoder import Mark
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.av.video_scan import Damaged
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.packet import Packet


_HEAD_PACKETS = 8
"""Packets to decode at the start: encoder delay covers a few, and the following ones must match the prediction."""
_TAIL_PACKETS = 6
"""Packets to decode at the end; the first half only warms up the decoder."""
_FIXED_FRAMES = ("aac", "mp3")
"""Codecs whose packets all contain one frame, of the same number of samples."""
_BEFORE_ALL = -(1 << 40)
"""A time stamp before all packets."""
_UNKNOWN = -1


@dataclass(slots=True)
class _Packets:
    """What is known of the packets so far."""

    pts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    """Samples that each packet should contain, `_UNKNOWN` if the file does not say."""
    given: dict[int, int] = field(default_factory=dict)
    """Samples that decoded packets contained."""
    first_time: Fraction | None = None
    """When the first decoded sample is heard, in seconds."""
    first_number: int = 0
    """The packet that contained it."""
    frame: AudioFrame | None = None
    """The first decoded frame."""

    def note(self, frame: AudioFrame) -> None:
        """Counts the samples of a decoded frame for its packet."""
        number = packet_of(frame)
        if self.frame is None:
            self.frame, self.first_number = frame, number
            if frame.pts is not None and frame.time_base is not None:
                self.first_time = frame.pts * frame.time_base
        self.given[number] = self.given.get(number, 0) + frame.samples


def scan_audio(
    file: MediaFile,
    facts: StreamFacts,
    *,
    damaged: Damaged = "error",
    decode_all: bool = False,
    visit: Callable[[Packet[Any]], None] | None = None,
) -> AudioIndex:
    """Returns the index of an audio stream.

    Args:
        file: The file.
        facts: Its audio stream.
        damaged: "partial" decodes everything, and skips packets that cannot be decoded.
        decode_all: Decodes everything, because the packets are known to be misleading.
        visit: Called with each packet before it is decoded, if they are read: not where an MP4 lists them. Not called
            if everything is decoded.

    Raises:
        DecodeError: The file cannot be read, or contains no sample.
    """
    with file.opened():
        if damaged == "partial" or decode_all:
            return _index_by_decoding(file, facts, tolerant=damaged == "partial")
        return _index_of_packets(file, facts, visit) or _index_by_decoding(file, facts, tolerant=False)


def _index_of_packets(
    file: MediaFile, facts: StreamFacts, visit: Callable[[Packet[Any]], None] | None
) -> AudioIndex | None:
    context = go_to_start(file, facts)
    seen = _Packets()
    head: list[tuple[int | None, int, Any]] = []
    cut: list[int] = []
    for number, packet in enumerate(demux(file, facts.position)):
        if visit is not None:
            visit(packet)
        seen.pts.append(NO_TIME if packet.pts is None else packet.pts)
        seen.sizes.append(packet.size)
        seen.expected.append(_expected_samples(packet, facts, context, seen))
        if number < _HEAD_PACKETS:
            head.append((packet.pts, packet.size, packet.get_sidedata(CUT) if packet.has_sidedata(CUT) else None))
            packet.opaque = Mark(number)
            for frame in decode_frames(context, packet):
                seen.note(frame)
        # Most packets have no side data; asking for it by name would take a tenth of the time of the whole index.
        elif number == _HEAD_PACKETS and _list_by_table(file, facts, context, seen):
            break
        elif packet.is_discard or (next(packet.iter_sidedata(), None) is not None and packet.has_sidedata(CUT)):
            cut.append(number)
    count = len(seen.pts)
    pts = np.array(seen.pts, np.int64)
    if (cut and cut[0] < count - _TAIL_PACKETS // 2) or (np.diff(pts[pts != NO_TIME]) < 0).any():
        return None  # concatenated files: each has its own delay, end, and perhaps decoder header
    if count > _HEAD_PACKETS:  # a packet that is first and last has both ends cut, which a seek partly loses
        file.cache[HEAD] = head
    if count < _HEAD_PACKETS + _TAIL_PACKETS or _UNKNOWN in seen.expected[_HEAD_PACKETS:]:
        return None
    decoded = _HEAD_PACKETS - 1  # the last may still be in the decoder
    if any(seen.given.get(number) != seen.expected[number] for number in range(decoded - 2, decoded)):
        return None
    if _counts_by_duration(facts, context) and not _are_counts(seen, pts, facts, context, decoded):
        return None
    given = np.array(seen.expected, np.int64)
    given[:decoded] = [seen.given.get(number, 0) for number in range(decoded)]
    tail = _decode_tail(file, facts, seen)
    if tail is None:
        return None
    given[-len(tail) :] = tail
    return _build(seen, given, facts, proven=False)


def _are_counts(seen: _Packets, pts: Int64s, facts: StreamFacts, context: Any, decoded: int) -> bool:
    """Returns whether the durations of packets can be trusted as numbers of samples.

    Where packets are missing, MP4 makes the packet before longer, and in Ogg the duration of a Vorbis packet is that
    after the missing one. So each packet has to end where the next one begins, and to have a length that was decoded
    or, for Vorbis, one of the three that its header allows.

    Args:
        seen: All packets.
        pts: Their time stamps, int64 [packets].
        facts: The stream.
        context: Its codec context.
        decoded: Number of packets at the start whose samples were counted.
    """
    expected = np.array(seen.expected[decoded : -_TAIL_PACKETS // 2], np.int64)
    possible = {*seen.given.values(), *(_vorbis_lengths(context.extradata or b"") if facts.codec == "vorbis" else ())}
    if not set(expected.tolist()) <= possible:
        return False
    unit = facts.time_base * facts.sample_rate
    apart = np.diff(pts)[decoded : decoded + len(expected)]
    return bool((apart * unit.numerator == expected * unit.denominator).all())


def _vorbis_lengths(extradata: bytes) -> tuple[int, ...]:
    """Returns how many samples a Vorbis packet can have, by the identification header (Vorbis I, 4.2.2 and 4.3.8)."""
    at = extradata.find(b"\x01vorbis") + 28
    if not 28 <= at < len(extradata):
        return ()
    short, long = 1 << (extradata[at] & 15), 1 << (extradata[at] >> 4)
    return short // 2, (short + long) // 4, long // 2


def _list_by_table(file: MediaFile, facts: StreamFacts, context: Any, seen: _Packets) -> bool:
    """Lists the packets after those already seen from FFmpeg's index of an MP4 file; returns whether it did.

    Reading them one by one takes longer than decoding a clip. The index must agree with the packets seen so far, and
    the last ones are decoded afterwards. Files that are truncated, fragmented or edited inside are read.
    """
    stream: Any = file.container.streams[facts.position]
    if not file.format.startswith("mov") or facts.codec not in _FIXED_FRAMES or not context.frame_size:
        return False
    if not 0 < stream.frames < file.limits.max_packets or len(stream.index_entries) != stream.frames:
        return False
    rows = [(entry.timestamp, entry.size, entry.pos + entry.size, entry.flags) for entry in stream.index_entries]
    pts, sizes, stops, flags = (list(column) for column in zip(*rows, strict=True))
    count = len(seen.pts)
    with view_bytes(file.source) as data:
        if data is None or max(stops) > len(data) or 0 in sizes or any(flag & DISCARDED for flag in flags[count:]):
            return False
    if (pts[:count], sizes[:count]) != (seen.pts, seen.sizes):
        return False
    seen.pts, seen.sizes = pts, sizes
    seen.expected += [int(context.frame_size)] * (len(pts) - count)
    return True


def go_to_start(file: MediaFile, facts: StreamFacts) -> Any:
    """Returns the codec context of the stream, positioned before its first packet.

    Already read MP4 files are sought back to the start. Other formats lose the number of samples to skip on a seek.
    """
    if file.is_at_start or not file.format.startswith("mov"):
        return select(file, file.rewind(), facts.position)
    context = select(file, file.container, facts.position)
    file.container.seek(_BEFORE_ALL, stream=file.container.streams[facts.position])
    return context


def _decode_tail(file: MediaFile, facts: StreamFacts, seen: _Packets) -> list[int] | None:
    """Returns the number of samples of each of the last packets, None if they cannot be reached."""
    from av.error import FFmpegError

    first = len(seen.pts) - _TAIL_PACKETS
    if NO_TIME in seen.pts[first:]:
        return None
    container = file.container
    context = select(file, container, facts.position)
    numbers = {(seen.pts[number], seen.sizes[number]): number for number in range(first, len(seen.pts))}
    tail, reached = _Packets(), []

    def packets() -> Iterator[tuple[int, Packet[Any]]]:
        for packet in demux(file, facts.position):
            number = numbers.get((packet.pts or 0, packet.size))
            if number is not None:
                reached.append(number)
                yield number, packet

    try:
        container.seek(seen.pts[first], stream=container.streams[facts.position])
        for frame in decode_numbered(context, packets()):
            tail.note(frame)
    except (FFmpegError, EOFError):  # not every format can seek, and some need an index, which a file may lack
        return None
    if reached != list(range(first, len(seen.pts))):
        return None
    middle = first + _TAIL_PACKETS // 2
    if tail.given.get(middle) != seen.expected[middle]:
        return None
    return [tail.given.get(number, 0) for number in range(middle, len(seen.pts))]


def _index_by_decoding(file: MediaFile, facts: StreamFacts, *, tolerant: bool) -> AudioIndex:
    # The stream's own decoder: a new one does not have the unit of time stamps, so skipping samples would not move
    # them.
    context = select(file, file.rewind(), facts.position)
    seen = _Packets()

    def packets() -> Iterator[tuple[int, Packet[Any]]]:
        for number, packet in enumerate(demux(file, facts.position, tolerant=tolerant)):
            seen.pts.append(NO_TIME if packet.pts is None else packet.pts)
            seen.sizes.append(packet.size)
            yield number, packet

    for frame in decode_numbered(context, packets(), tolerant=tolerant):
        seen.note(frame)
    given = np.array([seen.given.get(number, 0) for number in range(len(seen.pts))], np.int64)
    return _build(seen, given, facts, proven=True)


def _build(seen: _Packets, given: Int64s, facts: StreamFacts, *, proven: bool) -> AudioIndex:
    frame = seen.frame
    if frame is None:
        raise DecodeError("No sample of the audio can be decoded", facts.codec, ROUTE)
    starts = np.concatenate(([0], np.cumsum(given)))
    pts = np.array(seen.pts, np.int64)
    seconds = np.where(pts == NO_TIME, np.nan, pts * float(facts.time_base))
    if seen.first_time is not None:
        seconds[seen.first_number] = float(seen.first_time)
    heard = np.flatnonzero((given > 0) & (np.arange(len(given)) >= seen.first_number))
    span_starts, span_seconds = find_spans(starts[heard], seconds[heard], frame.sample_rate)
    return AudioIndex(
        starts,
        pts,
        np.array(seen.sizes, np.int64),
        frame.sample_rate,
        frame.layout.nb_channels,
        frame.layout.name,
        frame.format.name,
        read_channels(frame).dtype,
        span_starts,
        span_seconds,
        proven,
    )


def _expected_samples(packet: Packet[Any], facts: StreamFacts, context: Any, seen: _Packets) -> int:
    """Returns the number of samples of a packet before any are skipped, `_UNKNOWN` if the file does not say."""
    if facts.codec.startswith("pcm_"):
        # A damaged first packet contains nothing, and blocks of DVD audio span packets.
        if not seen.given.get(0) or not seen.sizes[0] or facts.codec == "pcm_dvd":
            return _UNKNOWN
        samples, size = seen.given[0], seen.sizes[0]
        return packet.size * samples // size if packet.size * samples % size == 0 else _UNKNOWN
    if facts.codec == "opus":
        return _count_opus(bytes(memoryview(packet)[:2])) * facts.sample_rate // 48000
    if facts.codec in _FIXED_FRAMES and context.frame_size:
        return int(context.frame_size)
    if facts.codec == "flac":
        samples = count_samples(bytes(memoryview(packet)[:13]))
        if samples == _UNKNOWN and context.extradata and context.extradata[:2] == context.extradata[2:4]:
            return int.from_bytes(context.extradata[:2], "big")  # damaged; STREAMINFO: smallest and largest block
        return samples
    duration = (packet.duration or 0) * facts.time_base * facts.sample_rate
    exact = duration > 0 and duration.denominator == 1 and facts.time_base <= Fraction(1, facts.sample_rate or 1)
    return int(duration) if exact else _UNKNOWN


def _counts_by_duration(facts: StreamFacts, context: Any) -> bool:
    """Returns whether nothing but the duration of a packet says how many samples it has."""
    known = facts.codec.startswith("pcm_") or facts.codec in ("opus", "flac")
    return not known and not (facts.codec in _FIXED_FRAMES and context.frame_size)


def _count_opus(start: bytes) -> int:
    """Returns the samples at 48 kHz of an Opus packet (RFC 6716, 3.1 and 3.2), `_UNKNOWN` if it is not one.

    Args:
        start: Its first two bytes, or fewer if it is shorter.
    """
    if not start:
        return _UNKNOWN
    config, code = start[0] >> 3, start[0] & 3
    if config < 12:
        samples = (480, 960, 1920, 2880)[config & 3]
    elif config < 16:
        samples = (480, 960)[config & 1]
    else:
        samples = (120, 240, 480, 960)[config & 3]
    if code < 3:
        return samples * (1, 2, 2)[code]
    return samples * (start[1] & 63) if len(start) > 1 else _UNKNOWN
