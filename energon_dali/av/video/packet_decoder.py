"""Feeds the decoder: from a key packet to the last wanted frame, then on to the next run, seeking in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.av.container import MediaFile, demux_stream
from energon_dali.av.frame_index import NO_TIME, FrameIndex, Int64s
from energon_dali.av.stream_facts import StreamFacts

if TYPE_CHECKING:
    from av.frame import Frame
    from av.packet import Packet
    from av.video.frame import VideoFrame

RESTAMPED = frozenset(("vp9", "av1"))
"""Codecs that show an earlier picture again: the frame bears the time of the packet that says so, and the mark of the
packet that brought it. Their frames are known by their time, those of others by the mark."""
_SKIPS_NONREF = frozenset(("h264", "mpeg4", "mpeg2video", "mpeg1video"))
"""Codecs where FFmpeg's skip_frame=NONREF leaves out pictures that nothing refers to, and changes no other."""
_FORWARD_PACKETS = 64
"""A target this close is reached by reading on: a seek costs about as much as reading so many packets."""
_SEEK_ATTEMPTS = 4
_SEEKABLE = ("mov", "matroska", "avi", "flv")
"""Containers where a seek ends at a whole packet that can be recognised. Elsewhere (MPEG streams) reading begins at the
start: packets that are not decoded cost little."""


@dataclass(slots=True, eq=False)
class Mark:
    """The number of a packet, as its `opaque`.

    PyAV 18.1 keeps opaque objects under their `id` and forgets one as soon as any packet that bore it is freed: one
    object on two packets is lost. So every packet has a mark of its own, where an int would be shared.
    """

    number: int
    """Place of the packet in the order of decoding."""


def read_mark(frame: Frame) -> int:
    """Returns the number of the packet that a frame came from; -1 if the frame has no mark."""
    mark = frame.opaque
    return mark.number if isinstance(mark, Mark) else -1


class PacketDecoder:
    """Decodes runs of packets of one stream; lives during one call, inside `MediaFile.opened`.

    Args:
        file: The file.
        facts: Its video stream.
        index: The frames and packets of the stream.
        tolerant: Whether a packet that cannot be decoded is passed over; else its error comes out.
    """

    def __init__(self, file: MediaFile, facts: StreamFacts, index: FrameIndex, *, tolerant: bool) -> None:
        self._file = file
        self._facts = facts
        self._index = index
        self._tolerant = tolerant
        self._next = -1
        """Number of the packet that comes next; -1 where that is unknown."""
        self._packets: Iterator[Packet[Any]] = iter(())
        self._held: Packet[Any] | None = None
        self._offsets = index.packets.offsets
        self._deadline = file.deadline()
        self._stream: Any = None
        self._packet_at: dict[Any, int] | None = None
        if facts.codec in RESTAMPED:
            times = index.packets.pts[index.positions]
            self._packet_at = dict(zip(times.tolist(), index.positions.tolist(), strict=True))
        # Where B-pictures come packed behind others (MPEG-4 in AVI), the decoder would throw away the wrong ones.
        packed = facts.codec == "mpeg4" and index.proven
        self._skips = facts.codec in _SKIPS_NONREF and not packed and not facts.is_interlaced_mpeg4

    def decode(self, wanted: Int64s, starts: Int64s, *, to_end: bool = False) -> Iterator[tuple[int, VideoFrame]]:
        """Yields (number, frame) of the wanted frames that come, each once.

        Args:
            wanted: Numbers of frames, without repetition; int64 [n].
            starts: Packet where decoding begins, for each; int64 [n].
            to_end: Goes on behind the packets of a frame until it comes, as a decode of the whole does.

        Raises:
            DecodeError: It takes too long, or the file changed.
        """
        positions = self._index.positions[wanted]
        numbers = dict(zip(positions.tolist(), wanted.tolist(), strict=True))
        ends = np.full(len(positions), len(self._index.packets) - 1) if to_end else self._ends(positions)
        for start, last in find_runs(starts, ends):
            self._move_to(start)
            yield from self._run(start, last, numbers, to_end=to_end)

    def _ends(self, positions: Int64s) -> Int64s:
        """Returns the last packet that each frame is made of: a second field, or more, may follow the first packet."""
        if not self._index.proven:
            return positions
        every = np.sort(self._index.positions)
        after = np.searchsorted(every, positions, side="right")
        return np.append(every, len(self._index.packets))[after] - 1

    def _run(self, start: int, last: int, numbers: dict[int, int], *, to_end: bool) -> Iterator[tuple[int, VideoFrame]]:
        """Decodes packets `start` through `last`, takes out what the decoder still holds, and yields wanted frames."""
        from av.error import FFmpegError

        context = self._stream.codec_context
        intra = context.codec.intra_only
        wanted = set(numbers)
        for number in range(start, last + 1):
            packet = self._take()
            if packet is None:
                break
            is_wanted = number in wanted
            if intra and not is_wanted and not self._index.proven:
                continue
            if self._skips:
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
                self._deadline.check()
        try:
            frames = context.decode(None)
        except FFmpegError:
            if not self._tolerant:
                raise
            frames = []
        finally:
            context.flush_buffers()
        yield from self._pick(frames, numbers)

    def _pick(self, frames: Sequence[VideoFrame], numbers: dict[int, int]) -> Iterator[tuple[int, VideoFrame]]:
        """Yields those of a few decoded frames that are wanted.

        Args:
            frames: As they came from the decoder.
            numbers: Packet to number of frame, for wanted frames; what is yielded leaves it.
        """
        for frame in frames:
            packet = read_mark(frame) if self._packet_at is None else self._packet_at.get(frame.pts, -1)
            found = numbers.pop(packet, None)
            if found is not None:
                yield found, frame

    def _take(self) -> Packet[Any] | None:
        """Returns the next packet, None at the end."""
        packet, self._held = self._held, None
        while packet is None:
            packet = next(self._packets, None)
            if packet is None:
                self._next = -1
                return None
            if not packet.size:
                packet = None
        if self._next < len(self._offsets) and packet.pos is not None and packet.pos != self._offsets[self._next]:
            self._next = -1  # Not the packet that the index knows: whoever waits for its frame begins anew.
            return None
        self._next += 1
        return packet

    def _move_to(self, number: int) -> None:
        """Makes packet `number` the next one: reads on where it is near, seeks where it is far."""
        if not 0 <= self._next <= number or number - self._next > _FORWARD_PACKETS:
            self._seek(number)
        while self._next < number:
            if self._take() is None:
                return

    def _seek(self, number: int) -> None:
        """Goes to a packet at or before `number`, as near as the container's index allows; to the start at worst."""
        from av.error import FFmpegError

        container = self._file.container
        for target in self._targets(number) if self._file.format.startswith(_SEEKABLE) else ():
            try:
                self._begin(container)
                container.seek(int(target), stream=self._stream, backward=True)
                packet = next((packet for packet in self._packets if packet.size), None)
            except (FFmpegError, EOFError):
                continue
            landed = -1 if packet is None else self._number_of(packet)
            if 0 <= landed <= number:
                self._held, self._next = packet, landed
                return
        self._begin(self._file.reopen())
        self._next = 0

    def _targets(self, number: int) -> Iterator[int]:
        """Yields times to seek to, in units of the stream, from the best on: containers search by pts or by dts."""
        table = self._index.packets
        keys = np.flatnonzero(table.is_key[: number + 1])[: -_SEEK_ATTEMPTS - 1 : -1]
        for time in (table.pts[number], *table.dts[keys].tolist()):
            if time != NO_TIME:
                yield int(time)

    def _begin(self, container: Any) -> None:
        self._stream = container.streams[self._facts.position]
        self._file.select(self._stream)
        self._packets = demux_stream(container, self._stream, tolerant=self._tolerant)
        self._held = None
        self._next = -1

    def _number_of(self, packet: Packet[Any]) -> int:
        """Returns the number of a packet in the table, -1 if it is not there or not the only one like it.

        Its place in the file says which it is; its times do where an edit list shows a packet twice. They alone would
        not do: after a seek FFmpeg may guess others.
        """
        table = self._index.packets
        found = np.flatnonzero(table.offsets == (-1 if packet.pos is None else packet.pos))
        for given, column in ((packet.pts, table.pts), (packet.dts, table.dts)):
            if len(found) > 1 and given is not None:
                found = found[column[found] == given]
        return int(found[0]) if len(found) == 1 else -1


def _with_note(packet: Packet[Any], note: bytes) -> Packet[Any]:
    """Returns a packet with the note about its encoder in front."""
    import av

    told = av.Packet(note + bytes(packet))
    told.pts, told.dts, told.duration, told.time_base = packet.pts, packet.dts, packet.duration, packet.time_base
    told.is_keyframe = packet.is_keyframe
    return told


def find_runs(starts: Int64s, ends: Int64s) -> list[tuple[int, int]]:
    """Returns the runs of packets, (first, last) in rising order, that cover [start, end] of every frame.

    Args:
        starts: Where decoding begins for each frame, int64 [n].
        ends: Its last packet, int64 [n].
    """
    runs: list[tuple[int, int]] = []
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if runs and start <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(runs[-1][1], end))
        else:
            runs.append((start, end))
    return runs
