"""Decodes runs of packets, each from a key packet to the last wanted frame."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.av.container import MediaFile
from energon_dali.av.frame_index import FrameIndex, Int64s
from energon_dali.av.packet_source import copy_to_packet, open_packets
from energon_dali.av.stream_facts import StreamFacts

if TYPE_CHECKING:
    from av.frame import Frame
    from av.packet import Packet
    from av.video.frame import VideoFrame

RESTAMPED = frozenset(("vp9", "av1"))
"""Codecs that can show an earlier frame again: it then has the time of the packet that says so, and the mark of the
packet that contained it. Their frames are identified by time, those of other codecs by the mark."""
_SKIPS_NONREF = frozenset(("h264", "mpeg4", "mpeg2video", "mpeg1video"))
"""Codecs for which FFmpeg's skip_frame=NONREF skips frames that nothing refers to, and changes no other frame."""


@dataclass(slots=True, eq=False)
class Mark:
    """The index of a packet, attached as its `opaque`; FFmpeg passes it on to the frames of the packet.

    PyAV 18.1 stores opaque objects by their `id` and drops one as soon as any packet that had it is freed, so an object
    on two packets is lost. Therefore every packet has its own mark; an int would be shared.
    """

    number: int
    """Index of the packet in decoding order."""


def read_mark(frame: Frame) -> int:
    """Returns the index of the packet that a frame came from; -1 if the frame has no mark."""
    mark = frame.opaque
    return mark.number if isinstance(mark, Mark) else -1


class PacketDecoder:
    """Decodes runs of packets of one stream, during one call, inside `MediaFile.used`.

    Args:
        file: The file.
        facts: Its video stream.
        index: The frames and packets of the stream.
        tolerant: Whether packets that cannot be decoded are skipped instead of raising.
        threads: Threads of the decoder; None for all that the file may have.
    """

    def __init__(
        self, file: MediaFile, facts: StreamFacts, index: FrameIndex, *, tolerant: bool, threads: int | None = None
    ) -> None:
        self._packets = open_packets(file, facts, index, tolerant=tolerant, threads=threads)
        self._index = index
        self._tolerant = tolerant
        self._check_time = file.deadline()
        self._packet_at: dict[Any, int] | None = None
        if facts.codec in RESTAMPED:
            times = index.packets.pts[index.positions]
            self._packet_at = dict(zip(times.tolist(), index.positions.tolist(), strict=True))
        # If B-frames are packed after others (MPEG-4 in AVI), the decoder would skip the wrong ones.
        packed = facts.codec == "mpeg4" and index.proven
        self._skips = facts.codec in _SKIPS_NONREF and not packed and not facts.is_interlaced_mpeg4
        # The second field of a frame may be a packet of its own, which is skipped or decoded like the first.
        self._firsts: Container[int] = set(index.positions.tolist()) if index.proven else range(len(index.packets))

    def decode(self, wanted: Int64s, starts: Int64s, *, to_end: bool = False) -> Iterator[tuple[int, VideoFrame]]:
        """Yields (number, frame) of the wanted frames that can be decoded, each once.

        Args:
            wanted: Frame numbers, without repetition; int64 [n].
            starts: Packet at which decoding starts, for each; int64 [n].
            to_end: Continues after the packets of a frame until it is returned, as a full decode does.

        Raises:
            DecodeError: It takes too long, or the file changed.
        """
        positions = self._index.positions[wanted]
        numbers = dict(zip(positions.tolist(), wanted.tolist(), strict=True))
        ends = np.full(len(positions), len(self._index.packets) - 1) if to_end else find_ends(positions, self._index)
        for start, last in find_runs(starts, ends):
            self._packets.move_to(start, last + 1)
            try:
                yield from self._run(start, last, numbers, to_end=to_end)
            finally:
                # However it ends: freeing a decoder whose threads still hold packets waits for them with the
                # interpreter lock held, which they need to release the marks of these packets.
                if self._packets.context.is_open:
                    self._packets.context.flush_buffers()

    def _run(self, start: int, last: int, numbers: dict[int, int], *, to_end: bool) -> Iterator[tuple[int, VideoFrame]]:
        """Decodes packets `start` through `last`, drains the decoder, and yields wanted frames."""
        from av.error import FFmpegError

        context = self._packets.context
        intra = context.codec.intra_only
        wanted = set(numbers)
        for number in range(start, last + 1):
            packet = self._packets.take()
            if packet is None:
                break
            is_wanted = number in wanted
            if intra and not is_wanted and not self._index.proven:
                continue
            if self._skips and number in self._firsts:
                context.skip_frame = "DEFAULT" if is_wanted else "NONREF"
            if self._index.packets.encoder_note and not context.is_open:
                packet = _with_note(packet, self._index.packets.encoder_note)
            packet.opaque = Mark(number)
            try:
                frames = context.decode(packet)
            except FFmpegError:
                if not self._tolerant:
                    raise
                continue
            yield from self._pick(frames, numbers)
            if to_end and not numbers:
                break
            if not number & 15:
                self._check_time()
        try:
            frames = context.decode(None)
        except FFmpegError:
            if not self._tolerant:
                raise
            frames = []
        yield from self._pick(frames, numbers)

    def _pick(self, frames: Sequence[VideoFrame], numbers: dict[int, int]) -> Iterator[tuple[int, VideoFrame]]:
        """Yields those of a few decoded frames that are wanted.

        Args:
            frames: Frames from the decoder.
            numbers: Packet to frame number, for wanted frames; yielded frames are removed.
        """
        for frame in frames:
            packet = read_mark(frame) if self._packet_at is None else self._packet_at.get(frame.pts, -1)
            found = numbers.pop(packet, None)
            if found is not None:
                yield found, frame


def _with_note(packet: Packet[Any], note: bytes) -> Packet[Any]:
    """Returns the packet with the encoder's note prepended."""
    result = copy_to_packet(note + bytes(packet))
    result.pts, result.dts = packet.pts, packet.dts
    result.duration, result.time_base = packet.duration, packet.time_base
    result.is_keyframe = packet.is_keyframe
    return result


def find_ends(positions: Int64s, index: FrameIndex) -> Int64s:
    """Returns the last packet of each frame: a second field, or more, may follow the first packet.

    Args:
        positions: The first packet of each, int64 [n].
        index: The frames of the video.
    """
    if not index.proven:
        return positions
    every = np.sort(index.positions)
    after = np.searchsorted(every, positions, side="right")
    return np.append(every, len(index.packets))[after] - 1


def find_runs(starts: Int64s, ends: Int64s) -> list[tuple[int, int]]:
    """Returns the runs of packets, (first, last) in increasing order, that cover [start, end] of every frame.

    Args:
        starts: Packet at which decoding starts for each frame, int64 [n].
        ends: Its last packet, int64 [n].
    """
    runs: list[tuple[int, int]] = []
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if runs and start <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(runs[-1][1], end))
        else:
            runs.append((start, end))
    return runs
