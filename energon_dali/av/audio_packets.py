"""Reads the packets of an audio stream, and decodes those of a range of samples.

Near the start it decodes from the start, elsewhere after a seek if the result is provably the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from energon_dali.av.audio_index import AudioIndex
from energon_dali.av.container import ROUTE, MediaFile, demux_stream
from energon_dali.av.frame_index import NO_TIME
from energon_dali.av.packet_decoder import Mark, read_mark
from energon_dali.av.packet_source import StoredPackets
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.av.video_scan import Damaged
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.packet import Packet

_COPIED = ("aac", "mp3", "opus", "vorbis", "flac")
"""Codecs whose decoder can be recreated from the codec's header alone."""
MOST_PLANES = 7
"""Most planes of a planar frame: with eight, PyAV 18.1 reads past the end for further ones (SIGSEGV)."""
HEAD = "audio_head"
"""Key in `MediaFile.cache` of the first packets: (pts, size, side data on samples to skip)."""
CUT: Literal["skip_samples"] = "skip_samples"
Samples = npt.NDArray[Any]

_STATELESS = ("pcm_", "flac", "alac")
"""Codecs whose packets do not depend on earlier packets."""
_STATEFUL = ("pcm_dvd",)
"""Exceptions to these: blocks of samples span packets."""
_HELD_PACKETS = 1
"""Packets after that of the last sample that a decoder may need to return it."""
_WARM_UP_SECONDS = 1.0
"""How long before a range decoding starts. To be bit-exact, MP3 needs 0.15 s and Opus 0.7 s."""


def demux(file: MediaFile, position: int, *, tolerant: bool = False) -> Iterator[Packet[Any]]:
    """Yields the packets of a stream from the container's position on, within the limits of the file.

    Raises:
        DecodeError: It takes too long, or there are too many packets.
    """
    check_time, most = file.deadline(), file.limits.max_packets
    stream = file.container.streams[position]
    for number, packet in enumerate(demux_stream(file.container, stream, tolerant=tolerant)):
        if not number & 15:
            check_time()
        if number >= most:
            raise DecodeError(f"The audio has more packets than AVLimits(max_packets={most}) allows", "", ROUTE)
        if packet.size:
            yield packet


def decode_frames(context: Any, packet: Packet[Any] | None, *, tolerant: bool = False) -> list[AudioFrame]:
    """Returns the frames of a packet; None flushes the decoder."""
    from av.error import FFmpegError

    try:
        frames: list[AudioFrame] = context.decode(packet)
    except (FFmpegError, EOFError):
        if not tolerant:
            raise
        return []
    return frames


def decode_numbered(
    context: Any, packets: Iterable[tuple[int, Packet[Any]]], *, tolerant: bool = False
) -> Iterator[AudioFrame]:
    """Yields the frames of numbered packets, of which `packet_of` returns the number, to the decoder's last."""
    for number, packet in packets:
        packet.opaque = Mark(number)
        yield from decode_frames(context, packet, tolerant=tolerant)
    yield from decode_frames(context, None, tolerant=tolerant)


def packet_of(frame: AudioFrame) -> int:
    """Returns the number of the packet that a frame came from.

    Raises:
        DecodeError: FFmpeg does not say.
    """
    number = read_mark(frame)
    if number < 0:
        raise DecodeError("FFmpeg does not say which packet of the audio a frame came from", "", ROUTE)
    return number


def read_channels(frame: AudioFrame) -> npt.NDArray[Any]:
    """Returns the samples of a frame, [channels, samples], possibly a view.

    Raises:
        DecodeError: PyAV cannot convert their type to numpy (64-bit integers).
    """
    samples: npt.NDArray[Any]
    try:
        if frame.format.is_planar and frame.layout.nb_channels > MOST_PLANES:
            from av.audio.resampler import AudioResampler

            (frame,) = AudioResampler(format=frame.format.packed.name).resample(frame)
        samples = frame.to_ndarray()
    except ValueError as error:
        raise DecodeError(f"PyAV cannot return its samples: {error}", "", ROUTE) from error
    return samples if frame.format.is_planar else samples.reshape(frame.samples, -1).T


def start_over(file: MediaFile, facts: StreamFacts, *, tolerant: bool = False) -> tuple[Any, Iterator[Packet[Any]]]:
    """Returns (codec context, packets) of a stream: a new decoder, and all packets from the first on.

    If the start was read before, this seeks there, which is cheaper than reopening the file. Some containers (Matroska,
    Ogg) then lose how many samples to skip at the start: this is restored.
    """
    from av.error import FFmpegError

    head: list[tuple[int | None, int, Any]] = file.cache.get(HEAD, [])
    if head and head[0][0] is not None and facts.codec in _COPIED:
        select(file, file.container, facts.position)
        try:
            file.container.seek(head[0][0], stream=file.container.streams[facts.position])
            packets = demux(file, facts.position, tolerant=tolerant)
            first = list(islice(packets, len(head)))
        except (FFmpegError, EOFError):
            first = []
        if [(packet.pts, packet.size) for packet in first] == [(pts, size) for pts, size, _ in head]:
            for packet, (_, _, cut) in zip(first, head, strict=True):
                if cut is not None and not packet.has_sidedata(CUT):
                    packet.set_sidedata(cut)
            return _copy_context(file.container.streams[facts.position].codec_context), chain(first, packets)
    return select(file, file.rewind(), facts.position), demux(file, facts.position, tolerant=tolerant)


def _copy_context(context: Any) -> Any:
    """Returns a new decoder for the same stream, because a flush does not reset noise generators."""
    import av

    fresh = av.CodecContext.create(context.codec, "r")
    if context.extradata:
        fresh.extradata = context.extradata
    fresh.thread_count = 1
    fresh.copy_opaque = True
    return fresh


def select(file: MediaFile, container: Any, position: int) -> Any:
    """Selects a stream, so that only its packets are read from now on, and returns its codec context."""
    stream = container.streams[position]
    file.select(stream)
    return stream.codec_context


class IndexWrongError(Exception):
    """A packet contained another number of samples than the index says."""


@dataclass(slots=True, eq=False)
class AudioRange:
    """A range of samples to decode."""

    start: int
    """First sample."""
    stop: int
    """Last sample, exclusive."""
    samples: Samples
    """[channels, stop - start]; filled by `RangeDecoder`."""
    filled: int = 0
    """Number of samples filled."""


class RangeDecoder:
    """Fills ranges of samples from one stream, during one call, inside `MediaFile.used`.

    Args:
        file: The file.
        facts: Its audio stream.
        index: The samples of the stream.
        damaged: "partial" skips packets that cannot be decoded.
        exact: See `AudioReader`.
    """

    def __init__(
        self, file: MediaFile, facts: StreamFacts, index: AudioIndex, *, damaged: Damaged, exact: bool
    ) -> None:
        self.file = file
        self.facts = facts
        self.index = index
        self._tolerant = damaged == "partial"
        self._exact = exact
        self._indexed = file.indexed(facts, index)
        self._context: Any = None
        """Decodes packets that are read by their index, after seeks; `_decode_from` makes it."""
        self._starts: list[int] = index.starts.tolist()
        self._number = -1
        """The packet of the current frames."""
        self._next = 0
        """The first sample of the next frame."""

    def fill(self, spans: list[AudioRange]) -> None:
        """Decodes the samples of all ranges: near the start from the start, elsewhere with a warm-up."""
        waiting = [span for span in spans if span.stop > span.start]
        if not waiting:
            return
        far, warm_up, twice = self._find_far(waiting)
        for span in far:
            if not self._fill_far(span, warm_up, twice=twice):
                break  # what this range needs from before, the others need as well
            waiting.remove(span)
        if waiting:
            self._decode_from_start(waiting)

    def packets_of(self, spans: list[AudioRange]) -> list[tuple[int, int]]:
        """Returns the packets that `fill` reads, as runs (first, last), if decoding after a seek proves to be right."""
        waiting = [span for span in spans if span.stop > span.start]
        if not waiting:
            return []
        far, warm_up, twice = self._find_far(waiting)
        most = len(self.index.pts) - 1
        runs = []
        for span in waiting:
            first = self._packet_of(span.start - (2 * warm_up if twice else warm_up)) if span in far else 0
            runs.append((first, min(self._packet_of(span.stop - 1) + _HELD_PACKETS, most)))
        return runs

    def _find_far(self, waiting: list[AudioRange]) -> tuple[list[AudioRange], int, bool]:
        """Returns which ranges are decoded after a seek, how many samples earlier, and whether twice.

        Args:
            waiting: All ranges, none of them empty.
        """
        stateless = self.facts.codec.startswith(_STATELESS) and self.facts.codec not in _STATEFUL
        warm_up = 0 if stateless else int(_WARM_UP_SECONDS * self.index.rate)
        twice = not stateless and self._exact

        def effort(span: AudioRange) -> int:
            # Twice the warm-up and twice the range, because two decodes must agree.
            return (1 if stateless else 2) * (span.stop - span.start) + 3 * warm_up

        far = [] if self._tolerant else [span for span in waiting if effort(span) < span.stop]
        if not far or sum(map(effort, far)) >= max(span.stop for span in far):
            far = []
        return far, warm_up, twice

    def _packet_of(self, sample: int) -> int:
        """Returns the packet that contains a sample; the first one for a sample before the start."""
        return max(0, int(np.searchsorted(self.index.starts, sample, side="right")) - 1)

    def _fill_far(self, span: AudioRange, warm_up: int, *, twice: bool) -> bool:
        """Decodes a range after a seek; returns whether the result provably equals a decode from the start.

        Two decodes that start at different packets agree on a range only if nothing before it matters any longer. State
        that a flush does not reset (the noise generator of AAC) has advanced between them if the range uses it.
        """
        if not self._decode_from(span.start - 2 * warm_up if twice else span.start - warm_up, span):
            return False
        if twice:
            second = AudioRange(span.start, span.stop, np.empty_like(span.samples))
            if not self._decode_from(span.start - warm_up, second):
                return False
            return span.samples.tobytes() == second.samples.tobytes()
        return True

    def _decode_from(self, sample: int, span: AudioRange) -> bool:
        """Decodes a range from the packet that contains `sample`; returns whether everything matched the index."""
        from av.error import FFmpegError

        first = self._packet_of(sample)
        if self.index.pts[first] == NO_TIME:
            return False
        span.filled, self._number = 0, -1
        with suppress(FFmpegError, IndexWrongError, EOFError):
            for frame in decode_numbered(*self._seek(first, span.stop)):
                self._copy(frame, [span])
                if span.filled == span.stop - span.start:
                    return True
        return False

    def _seek(self, first: int, stop: int) -> tuple[Any, Iterator[tuple[int, Packet[Any]]]]:
        """Returns (codec context, numbered packets from one on): the same context for each call, without its frames.

        Args:
            first: The first packet; it has a time stamp.
            stop: The sample, exclusive, up to which packets will be decoded.
        """
        if self._indexed is not None:
            context, packets = self._stored_packets(first, stop, self._context)
            self._context = context
            return context, packets
        container = self.file.container
        stream = container.streams[self.facts.position]
        self.file.select(stream)
        container.seek(int(self.index.pts[first]), stream=stream)
        return stream.codec_context, self._demuxed_packets(first)

    def _demuxed_packets(self, first: int) -> Iterator[tuple[int, Packet[Any]]]:
        index, number = self.index, -1
        for packet in demux(self.file, self.facts.position):
            number = number + 1 if number >= 0 else _number_of(packet, index, first)
            if number < 0 or (number > first and index.pts[number] != packet.pts):
                raise IndexWrongError
            if number >= first:
                yield number, packet
            else:
                number = -1

    def _stored_packets(
        self, first: int, stop: int, context: Any = None
    ) -> tuple[Any, Iterator[tuple[int, Packet[Any]]]]:
        """Returns (codec context, numbered packets) that are read by their index.

        Args:
            first: The first packet.
            stop: The sample, exclusive, up to which packets will be decoded.
            context: Decodes them, without its frames; None makes a new one.
        """
        assert self._indexed is not None
        packets = StoredPackets(self.file, *self._indexed, context)
        packets.move_to(first, self._packet_of(stop - 1) + 1 + _HELD_PACKETS)
        check_time = self.file.deadline()

        def numbered() -> Iterator[tuple[int, Packet[Any]]]:
            number = first
            while (packet := packets.take()) is not None:
                if not number & 15:
                    check_time()
                yield number, packet
                number += 1

        return packets.context, numbered()

    def _decode_from_start(self, spans: list[AudioRange]) -> None:
        """Decodes from the first packet to the last that a range needs, with a new decoder.

        Raises:
            DecodeError: A packet cannot be decoded.
        """
        tolerant = self._tolerant
        last = max(span.stop for span in spans)
        numbered: Iterator[tuple[int, Packet[Any]]]
        if self._indexed is not None:
            context, numbered = self._stored_packets(0, last)
        else:
            context, packets = start_over(self.file, self.facts, tolerant=tolerant)
            numbered = enumerate(packets)
        self._number, self._next = -1, 0
        for span in spans:
            span.filled = 0
        for frame in decode_numbered(context, numbered, tolerant=tolerant):
            self._copy(frame, spans)
            if self._next >= last and all(span.filled == span.stop - span.start for span in spans):
                return
        if any(span.filled != span.stop - span.start for span in spans):
            raise IndexWrongError

    def _copy(self, frame: AudioFrame, spans: list[AudioRange]) -> None:
        """Copies the samples of a decoded frame into the ranges.

        Raises:
            IndexWrongError: A needed packet contained other samples than the index says.
        """
        index, number = self.index, packet_of(frame)
        if number != self._number:
            self._number, self._next = number, self._starts[number]
        start, self._next = self._next, self._next + frame.samples
        samples: Samples | None = None
        for span in spans:
            low, high = max(start, span.start), min(self._next, span.stop)
            if low >= high:
                continue
            if samples is None:
                samples = self._view(frame) if index.channels == 1 else read_channels(frame)
                fits = samples.shape[0] == index.channels and samples.dtype == index.dtype
                if not fits or self._next > self._starts[number + 1] or frame.sample_rate != index.rate:
                    raise IndexWrongError
            span.samples[:, low - span.start : high - span.start] = samples[:, low - start : high - start]
            span.filled += high - low

    def _view(self, frame: AudioFrame) -> Samples:
        """Returns the samples of a frame of one channel, [1, samples]: a view, for which PyAV would make two copies.

        Raises:
            IndexWrongError: It has another type of samples, or more channels.
        """
        if frame.format.name != self.index.sample_format or frame.layout.nb_channels != 1:
            raise IndexWrongError
        plane: Any = frame.planes[0]
        return np.frombuffer(plane, self.index.dtype, frame.samples)[None]


def _number_of(packet: Any, index: AudioIndex, near: int) -> int:
    """Returns the index of the packet that a seek led to, -1 if it is ambiguous."""
    found = np.flatnonzero(
        (index.pts == (NO_TIME if packet.pts is None else packet.pts)) & (index.sizes == packet.size)
    )
    return int(found[0]) if len(found) == 1 and found[0] <= near else -1
