"""Where the packets of a stream come from: a demuxer that reads the file, or an index that says where each one is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from energon_dali.av.container import MediaFile, demux_stream
from energon_dali.av.frame_index import NO_TIME, FrameIndex, PacketTable
from energon_dali.av.sparse_media import SparseMedia
from energon_dali.av.stream_facts import StreamFacts

if TYPE_CHECKING:
    from av.packet import Packet

    from energon_dali.av.media_index import StreamIndex

_FORWARD_PACKETS = 64
"""A target this close is reached by reading on, because a seek costs about as much as reading this many packets."""
_SEEK_ATTEMPTS = 4
_SEEKABLE = ("mov", "matroska", "avi", "flv")
"""Containers in which a seek ends at a whole, identifiable packet. In others (MPEG streams) reading starts at the
beginning: packets that are not decoded cost little."""
_SKIP_SAMPLES = 11
"""AV_PKT_DATA_SKIP_SAMPLES."""


class PacketSource(Protocol):
    """The packets of one stream, in file order."""

    @property
    def context(self) -> Any:
        """The codec context that decodes them; the same one until `move_to`."""

    def move_to(self, number: int, stop: int) -> None:
        """Makes packet `number` the next one; those before `stop` will be taken after it."""

    def take(self) -> Packet[Any] | None:
        """Returns the next packet; None at the end, or where the file is not as its table says."""


class DemuxedPackets:
    """Packets that FFmpeg's demuxer reads from the file, inside `MediaFile.opened`.

    Args:
        file: The file.
        facts: The stream.
        table: Its packets.
        tolerant: Whether unreadable data counts as the end of the file instead of raising.
    """

    def __init__(self, file: MediaFile, facts: StreamFacts, table: PacketTable, *, tolerant: bool) -> None:
        self._file = file
        self._facts = facts
        self._table = table
        self._tolerant = tolerant
        self._next = -1
        """Index of the next packet; -1 if unknown."""
        self._packets: Iterator[Packet[Any]] = iter(())
        self._held: Packet[Any] | None = None
        self._stream: Any = None

    @property
    def context(self) -> Any:
        """The codec context of the open container's stream."""
        return self._stream.codec_context

    def take(self) -> Packet[Any] | None:
        """Returns the next packet, None at the end."""
        packet, self._held = self._held, None
        while packet is None:
            packet = next(self._packets, None)
            if packet is None:
                self._next = -1
                return None
            if not packet.size:
                packet = None
        offsets = self._table.offsets
        if self._next < len(offsets) and packet.pos is not None and packet.pos != offsets[self._next]:
            self._next = -1  # not the packet in the index: the caller starts again to get its frame
            return None
        self._next += 1
        return packet

    def move_to(self, number: int, stop: int) -> None:
        """Makes packet `number` the next one: reads on if it is near, otherwise seeks.

        Args:
            number: The packet.
            stop: Has no effect: a demuxer reads on by itself.
        """
        if not 0 <= self._next <= number or number - self._next > _FORWARD_PACKETS:
            self._seek(number)
        while self._next < number:
            if self.take() is None:
                return

    def _seek(self, number: int) -> None:
        """Moves to a packet at or before `number`, as near as the container's index allows, or to the start."""
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
        """Yields times to seek to, in units of the stream, best first: containers search by pts or by dts."""
        table = self._table
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
        """Returns the index of a packet in the table, -1 if it is missing or not unique.

        Its byte offset identifies it, and its times if an edit list shows a packet twice. Times alone are not enough:
        after a seek FFmpeg may guess other ones.
        """
        table = self._table
        found = np.flatnonzero(table.offsets == (-1 if packet.pos is None else packet.pos))
        for given, column in ((packet.pts, table.pts), (packet.dts, table.dts)):
            if len(found) > 1 and given is not None:
                found = found[column[found] == given]
        return int(found[0]) if len(found) == 1 else -1


class StoredPackets:
    """Packets made of the bytes of a file by its index: no demuxer and no header is needed.

    Args:
        file: The file, whose source is `media`; its limits and threads are those of the decoder.
        media: The bytes.
        stream: The index of the stream.
        context: Decodes the packets, without the frames that it still holds; None makes a new one.
        threads: Threads of a new decoder; None for all that the file may have.
    """

    def __init__(
        self,
        file: MediaFile,
        media: SparseMedia,
        stream: StreamIndex,
        context: Any = None,
        *,
        threads: int | None = None,
    ) -> None:
        self._media = media
        self._stream = stream
        self._next = 0
        self._stop = 0
        if context is not None and context.is_open:
            context.flush_buffers()
        self.context = context or make_context(stream, file, threads)

    def move_to(self, number: int, stop: int) -> None:
        """Makes packet `number` the next one.

        Args:
            number: The packet.
            stop: Packets before this one are fetched together, where they are not in memory.
        """
        self._next, self._stop = number, stop

    def take(self) -> Packet[Any] | None:
        """Returns the next packet, None at the end.

        Raises:
            DecodeError: It is not the packet that was indexed.
        """
        number = self._next
        if number >= len(self._stream):
            return None
        self._next = number + 1
        payload = self._media.payload(self._stream, number, self._stop)
        return make_packet(self._stream, number, payload)


def open_packets(
    file: MediaFile, facts: StreamFacts, index: FrameIndex, *, tolerant: bool, threads: int | None = None
) -> PacketSource:
    """Returns the packets of a video: by the stored index of the file if it has one, else from its demuxer.

    Args:
        file: The file.
        facts: The stream.
        index: Its frames and packets.
        tolerant: Whether unreadable data counts as the end of the file instead of raising.
        threads: Threads of the decoder; None for all that the file may have. Without a stored index it is all of them.
    """
    indexed = file.indexed(facts, index)
    if indexed is not None:
        return StoredPackets(file, *indexed, threads=threads)
    return DemuxedPackets(file, facts, index.packets, tolerant=tolerant)


def copy_to_packet(content: bytes | memoryview) -> Packet[Any]:
    """Returns a packet with a copy of the content.

    `av.Packet(content)` makes no copy, so that decoders read whatever follows the content in memory: they rely on 64
    bytes of zeros there.
    """
    import av

    packet: Packet[Any] = av.Packet(len(content))
    packet.update(content)  # type: ignore[arg-type]
    return packet


def make_packet(stream: StreamIndex, number: int, payload: bytes | memoryview) -> Packet[Any]:
    """Returns a packet as the demuxer returns it, as far as decoders are concerned.

    Args:
        stream: Its stream.
        number: The packet.
        payload: Its content, which is copied.
    """
    import av

    table = stream.packets
    packet = copy_to_packet(payload)
    packet.time_base = stream.facts.time_base
    pts, dts = int(table.pts[number]), int(table.dts[number])
    packet.pts, packet.dts = None if pts == NO_TIME else pts, None if dts == NO_TIME else dts
    packet.duration = int(table.durations[number])
    packet.is_keyframe = bool(table.is_key[number])
    skip = stream.skips.get(number)
    if skip:
        data = av.packet.PacketSideData(_SKIP_SAMPLES, len(skip))  # type: ignore[call-arg]
        data.update(skip)
        packet.set_sidedata(data)
    return packet


def make_context(stream: StreamIndex, file: MediaFile, threads: int | None = None) -> Any:
    """Returns a new codec context for a stream, with what its container would give it.

    Args:
        stream: The index of the stream.
        file: Its limits and threads are used.
        threads: Threads of the decoder instead of those of the file.
    """
    import av

    facts, setup = stream.facts, stream.setup
    # Another machine may lack the decoder: the codec's name then stands for another one.
    name = setup.decoder if setup.decoder in av.codecs_available else facts.codec
    context: Any = av.CodecContext.create(name, "r")
    if setup.extradata:
        context.extradata = setup.extradata
    # Options, because PyAV has no attributes for some of them.
    options = {"pkt_timebase": f"{facts.time_base.numerator}/{facts.time_base.denominator}"}
    if facts.kind == "video":
        context.width, context.height = facts.width, facts.height
        if facts.pixel_format:
            context.pix_fmt = facts.pixel_format
        context.colorspace, context.color_range, context.color_primaries, context.color_trc = setup.colours
        context.bits_per_coded_sample = setup.bits_per_coded_sample
        options["has_b_frames"] = str(setup.reorder_depth)
    else:
        context.sample_rate = facts.sample_rate
        if facts.layout:
            context.layout = facts.layout
        if facts.sample_format:
            context.format = facts.sample_format
        context.bit_rate = setup.bit_rate
    if any(setup.codec_tag):
        context.codec_tag = setup.codec_tag.decode("latin-1")
    file.prepare_decoder(context, facts, threads)
    if facts.kind == "audio":
        context.thread_count = 1  # packets are short, and decoding ends in the middle (`PacketDecoder.decode` says why)
    context.options = {**context.options, **options}
    return context
