"""Builds the index of a media file from the whole file, and checks every packet of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.av.audio_index import AudioIndex
from energon_dali.av.audio_packets import CUT, demux
from energon_dali.av.audio_scan import go_to_start, scan_audio
from energon_dali.av.colour import colours_of_frame
from energon_dali.av.container import ROUTE, MediaFile
from energon_dali.av.frame_index import NO_TIME, FrameIndex, PacketTable
from energon_dali.av.media_index import (
    AUDIO_CHECK_STEP,
    VIDEO_CHECK_STEP,
    DecoderSetup,
    FirstFrame,
    MediaIndex,
    StreamIndex,
    check_of,
)
from energon_dali.av.media_source import view_bytes
from energon_dali.av.packet_decoder import PacketDecoder
from energon_dali.av.stored_index import VERSION, pack_media_index
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.av.video_scan import scan_frames
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.shards.index.media_index_file import entry_without_index

if TYPE_CHECKING:
    from av.packet import Packet

_WINDOW_BYTES = 1 << 17
"""How far after the position that the demuxer reports a packet is looked for: an Ogg page has 64 KiB."""
_DECODER_SIDE_DATA = frozenset(("palette", "new_extradata", "param_change", "h263_mb_info", "jp_dual_mono"))
"""Side data of packets that change what a decoder does, and that an index does not have."""
_SELF_SUFFICIENT = frozenset(
    (
        *(
            "h264",
            "hevc",
            "vp8",
            "vp9",
            "av1",
            "mpeg4",
            "mpeg1video",
            "mpeg2video",
            "mjpeg",
            "theora",
            "prores",
            "ffv1",
        ),
        *("dnxhd", "h263", "flv1", "msmpeg4v3", "aac", "mp3", "mp2", "opus", "vorbis", "flac", "alac", "ac3", "eac3"),
    )
)
"""Codecs whose decoders need nothing from the container but what a `DecoderSetup` has. So does PCM, except `pcm_dvd`,
`pcm_bluray` and the like, whose packets have headers."""
_SCATTERED = "Its packets are not stored in one piece, or not as decoders receive them (as in MPEG-TS)"
_PCM = ("pcm_s", "pcm_u", "pcm_f", "pcm_alaw", "pcm_mulaw")


@dataclass(frozen=True, slots=True)
class MediaIndexer:
    """Makes the entries of `.nv-meta/media_index.bin` (`shards.index.media_index_file`); picklable."""

    @property
    def version(self) -> str:
        """Version of the entries."""
        return str(VERSION)

    def __call__(self, content: bytes) -> bytes:
        """Returns the index of a media file as bytes, or the reason why it has to be read whole.

        Args:
            content: The file.
        """
        try:
            with MediaFile(content, threads=1) as file:
                return pack_media_index(index_media(file))
        except DecodeError as error:
            return entry_without_index(error.reason)
        except Exception as error:  # one odd file among millions must not end the preparation
            return entry_without_index(f"It cannot be indexed: {type(error).__name__}: {error}")


def index_media(file: MediaFile) -> MediaIndex:
    """Returns the index of a media file. Reads all of it, and decodes as much as listing its frames takes.

    Args:
        file: The file: bytes in memory, or a path.

    Raises:
        ConfigError: The source of the file is a stream.
        DecodeError: The file is damaged, or has to be read whole: packets that are not stored in one piece (MPEG-TS,
            large packets in Ogg), packets that the demuxer changes, encryption, a codec that needs more from the
            container.
    """
    with view_bytes(file.source) as data:
        if data is None:
            raise ConfigError("The index of a media file was asked for, and the file is a stream. Give its bytes.")
        with file.opened():
            chosen = [facts for kind in ("video", "audio") if (facts := file.find_stream(kind)) is not None]
            # Before anything is decoded, which changes what a context says.
            setups = [_setup_of(file.container.streams[facts.position], facts) for facts in chosen]
            tables = [_index_stream(file, facts, setup, data) for facts, setup in zip(chosen, setups, strict=True)]
            if not tables:
                raise DecodeError("It has neither video nor audio", file.format, ROUTE)
            by_kind = {table.facts.kind: table for table in tables}
            return MediaIndex(file.format, len(data), file.streams, by_kind.get("video"), by_kind.get("audio"))


@dataclass(slots=True)
class _Packets:
    """What a demuxer returns, packet by packet."""

    data: memoryview
    """The file."""
    check_step: int
    rows: list[list[int]] = field(default_factory=list)
    """Pts, dts, offset, size, offset of the content, whether it is a key packet, whether it is discarded."""
    durations: list[int] = field(default_factory=list)
    checks: list[int] = field(default_factory=list)
    skips: dict[int, bytes] = field(default_factory=dict)
    header_bytes: int = 0
    """Bytes between the position that the demuxer reports for a packet and its content, for the last packet."""
    end: int = 0
    """Where the last packet ends."""

    def add(self, packet: Packet[Any]) -> None:
        """Takes the next packet.

        Raises:
            DecodeError: Its content is not in the file as it is, or it has side data that an index does not have.
        """
        number = len(self.rows)
        content = bytes(packet)
        position = -1 if packet.pos is None else packet.pos
        place = self._find(content, position)
        if place < 0:
            raise DecodeError(_SCATTERED, "", ROUTE)
        for piece in packet.iter_sidedata():
            if piece.data_type == CUT:
                self.skips[number] = bytes(piece)
            elif piece.data_type in _DECODER_SIDE_DATA:
                raise DecodeError(f"Packets change their decoder ({piece.data_type})", "", ROUTE)
        if number % self.check_step == 0:
            self.checks.append(check_of(content))
        self.end = place + len(content)
        if position >= 0:
            self.header_bytes = place - position
        times = [NO_TIME if time is None else time for time in (packet.pts, packet.dts)]
        self.rows.append([*times, position, len(content), place, packet.is_keyframe, packet.is_discard])
        self.durations.append(packet.duration or 0)

    def _find(self, content: bytes, position: int) -> int:
        """Returns where the content of a packet is in the file; -1 if it is not found near its position."""
        likely = (self.end,) if position < 0 else (position + self.header_bytes, self.end)
        for place in likely:
            if position <= place and self.data[place : place + len(content)] == content:
                return place
        start = max(position, 0) if position >= 0 else self.end
        found = bytes(self.data[start : start + _WINDOW_BYTES + len(content)]).find(content)
        return start + found if found >= 0 else -1


def _index_stream(file: MediaFile, facts: StreamFacts, setup: DecoderSetup, data: memoryview) -> StreamIndex:
    """Returns the index of a stream; its frames or samples are those that a scan of the whole file finds.

    Args:
        file: The file, inside `opened`.
        facts: The stream.
        setup: What its decoder receives.
        data: The content of the file.

    Raises:
        DecodeError: See `index_media`.
    """
    if facts.is_encrypted:
        raise DecodeError(f"Its {facts.kind} stream is encrypted", facts.codec, ROUTE)
    is_plain = facts.codec.startswith(_PCM)
    if facts.codec not in _SELF_SUFFICIENT and not is_plain:
        raise DecodeError(
            f"The codec of its {facts.kind} stream, {facts.codec or 'unknown'}, needs its container", facts.codec, ROUTE
        )
    is_video = facts.kind == "video"
    if is_video and not (facts.width and facts.height):
        raise DecodeError("Its video stream has no size", facts.codec, ROUTE)
    found = _Packets(data, VIDEO_CHECK_STEP if is_video else AUDIO_CHECK_STEP)
    # An MP4 lists its packets, so that a scan does not read them. Another file is best read once.
    is_listed = file.format.startswith("mov")
    if is_listed:
        _read_packets(file, facts, found)
    frames: FrameIndex | None = None
    audio: AudioIndex | None = None
    if is_video:
        frames = scan_frames(file, facts, visit=None if is_listed else lambda _, packet: found.add(packet))
    else:
        audio = scan_audio(file, facts, visit=None if is_listed else found.add)
    if not found.rows:
        raise DecodeError(f"Its {facts.kind} stream is empty", facts.codec, ROUTE)
    pts, dts, offsets, sizes, places, is_key, is_discarded = np.ascontiguousarray(np.array(found.rows, np.int64).T)
    durations = np.array(found.durations, np.int64)
    packets = PacketTable(pts, dts, durations, offsets, is_key.astype(bool), is_discarded.astype(bool))
    first_frame: FirstFrame | None = None
    if frames is not None:
        packets = _same_packets(frames.packets, packets)
        first_frame = _read_first_frame(file, facts, frames)
    if audio is not None and not (np.array_equal(audio.pts, pts) and np.array_equal(audio.sizes, sizes)):
        raise DecodeError("The packets of its audio differ from what its header says", facts.codec, ROUTE)
    checks = np.array(found.checks, np.uint16)
    return StreamIndex(
        facts, setup, packets, places, sizes, checks, found.check_step, found.skips, frames, first_frame, audio
    )


def _read_packets(file: MediaFile, facts: StreamFacts, found: _Packets) -> None:
    """Reads the packets of a stream of an MP4.

    Raises:
        DecodeError: A packet cannot be indexed, or there are too many, or it takes too long.
    """
    go_to_start(file, facts)
    for packet in demux(file, facts.position):
        found.add(packet)


def _setup_of(stream: Any, facts: StreamFacts) -> DecoderSetup:
    context = stream.codec_context
    given: dict[str, Any] = {}
    if facts.kind == "video":
        colours = context.colorspace, context.color_range, context.color_primaries, context.color_trc
        given = {
            "bits_per_coded_sample": context.bits_per_coded_sample,
            # PyAV 17 says only whether frames are reordered.
            "reorder_depth": int(getattr(context, "reorder_depth", context.has_b_frames)),
            "field_order": int(getattr(context, "field_order", 0)),
            "colours": tuple(map(int, colours)),
            "is_intra_only": bool(context.codec.intra_only),
        }
    else:
        given = {"frame_size": int(context.frame_size or 0)}
    return DecoderSetup(
        extradata=bytes(context.extradata or b""),
        decoder=str(context.codec.name),
        codec_tag=context.codec_tag.encode("latin-1"),
        level=int(context.level),
        bit_rate=int(context.bit_rate or 0),
        **given,
    )


def _same_packets(scanned: PacketTable, packets: PacketTable) -> PacketTable:
    """Returns the packets as the scan of the frames found them, after comparing them with those of the demuxer.

    Raises:
        DecodeError: They differ.
    """
    names = ("pts", "dts", "offsets")
    if not all(np.array_equal(getattr(scanned, name), getattr(packets, name)) for name in names):
        raise DecodeError("The packets of its video differ from what its header says", "", ROUTE)
    return scanned


def _read_first_frame(file: MediaFile, facts: StreamFacts, frames: FrameIndex) -> FirstFrame:
    """Decodes the first frame, as `VideoReader` does.

    Raises:
        DecodeError: It cannot be decoded.
    """
    decoder = PacketDecoder(file, facts, frames, tolerant=False)
    for _, frame in decoder.decode(np.zeros(1, np.int64), frames.starts[:1]):
        rotation = round(frame.rotation / 90) % 4 * 90
        return FirstFrame(frame.width, frame.height, rotation, colours_of_frame(frame))
    raise DecodeError("Its first frame cannot be decoded", facts.codec, ROUTE)
