"""The index of a media file: what decodes chosen packets of it without reading the rest, or its header."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_dali.av.audio_index import AudioIndex
from energon_dali.av.colour import ColourFacts
from energon_dali.av.frame_index import FrameIndex, Int64s, PacketTable
from energon_dali.av.stream_facts import StreamFacts

VIDEO_CHECK_STEP = 1
"""Every packet of a video has a checksum: any frame may be the only one that is wanted."""
AUDIO_CHECK_STEP = 8
"""Every eighth packet of an audio stream has one: packets are short, and read by the dozen."""


@dataclass(frozen=True, slots=True)
class DecoderSetup:
    """What a decoder of a stream receives from the container, apart from the facts about the stream."""

    extradata: bytes = b""
    """Configuration of the decoder (parameter sets, headers), as FFmpeg takes it from the container."""
    decoder: str = ""
    """FFmpeg's name of the decoder that it chooses for the stream, which may not be that of the codec ("libdav1d")."""
    codec_tag: bytes = bytes(4)
    """The container's code of the codec, from which some decoders see which encoder's faults to work around."""
    level: int = -99
    """Level of the codec; -99 if unknown."""
    bit_rate: int = 0
    """Bits per second according to the header; 0 if unknown."""
    bits_per_coded_sample: int = 0
    """Bits per sample of a video as the container states them; 0 if unknown."""
    reorder_depth: int = 0
    """Frames that the decoder of a video holds back to reorder them, as FFmpeg found when it opened the file."""
    field_order: int = 0
    """AVFieldOrder of a video."""
    colours: tuple[int, int, int, int] = (2, 0, 2, 2)
    """AVColorSpace, AVColorRange, AVColorPrimaries and AVColorTransferCharacteristic of a video."""
    is_intra_only: bool = False
    """Whether every packet of the codec can be decoded alone."""
    frame_size: int = 0
    """Samples per channel of every packet of audio; 0 if they vary or are unknown."""


@dataclass(frozen=True, slots=True)
class FirstFrame:
    """Facts that only decoding the first frame of a video finds out."""

    width: int
    """Width in pixels, as stored."""
    height: int
    """Height in pixels, as stored."""
    rotation: int
    """Degrees by which frames are rotated counter-clockwise to be upright: 0, 90, 180 or 270."""
    colours: ColourFacts
    """The colours as the decoder reports them."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamIndex:
    """The packets of one stream: where each is in the file, and what it contains."""

    facts: StreamFacts
    """What is known about the stream."""
    setup: DecoderSetup
    """What its decoder receives."""
    packets: PacketTable
    """All packets with content, in file order, as a demuxer returns them. `offsets` are the demuxer's positions."""
    payload_offsets: Int64s
    """Where the content of each packet is in the file: int64 [packets]."""
    sizes: Int64s
    """Bytes of each packet, int64 [packets]."""
    checks: npt.NDArray[np.uint16]
    """Low half of the CRC-32 of every `check_step`-th packet, from the first on: uint16."""
    check_step: int
    """A packet has a checksum if its number is a multiple of this."""
    skips: dict[int, bytes]
    """FFmpeg's side data "skip_samples" of those packets of audio that have it, by number."""
    frames: FrameIndex | None = None
    """The frames of a video, as `scan_frames` returns them."""
    first_frame: FirstFrame | None = None
    """Facts about the first frame of a video."""
    audio: AudioIndex | None = None
    """The samples of an audio stream, as `scan_audio` returns them."""

    def __len__(self) -> int:
        return len(self.sizes)

    def places(self, runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns (offset, size) of the packets of runs, each once, in the order of the packets.

        Args:
            runs: (first, last) packet of each.
        """
        numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b + 1) for a, b in runs)]))
        return list(zip(self.payload_offsets[numbers].tolist(), self.sizes[numbers].tolist(), strict=True))

    def matches(self, number: int, payload: bytes | memoryview) -> bool:
        """Returns whether a packet has the content that was indexed; True for a packet without a checksum.

        A changed packet is taken for the indexed one once in 65,536 times, and if it has no checksum.

        Args:
            number: The packet, counted from 0.
            payload: What the file has at its place.
        """
        if len(payload) != self.sizes[number]:
            return False
        if number % self.check_step:
            return True
        return check_of(payload) == int(self.checks[number // self.check_step])


@dataclass(frozen=True, slots=True, eq=False)
class MediaIndex:
    """The index of one media file. It describes the streams that `AVDecoder` decodes: the first of video and of audio.

    It is built from the whole file (`media_indexing.index_media`), which checks that every packet is where it says.
    """

    format: str
    """FFmpeg's name of the container's format."""
    size_bytes: int
    """Size of the file."""
    streams: tuple[StreamFacts, ...]
    """Facts about every stream of the file, in its order."""
    video: StreamIndex | None
    """The first video stream that is not a cover image; None if there is none."""
    audio: StreamIndex | None
    """The first audio stream; None if there is none."""

    @property
    def num_packets(self) -> int:
        """Packets of both streams."""
        return sum(len(one) for one in (self.video, self.audio) if one)

    def stream(self, position: int) -> StreamIndex | None:
        """Returns the index of the stream at a position in the file; None if it is not indexed."""
        return next((one for one in (self.video, self.audio) if one and one.facts.position == position), None)


def check_of(payload: bytes | memoryview) -> int:
    """Returns the checksum of the content of a packet: the low half of its CRC-32."""
    return zlib.crc32(payload) & 0xFFFF
