"""What is known about a stream of a media file before any of it is decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from av.stream import Stream

_LAYER = re.compile(rb"\x00\x00\x01[\x20-\x2f]")
_EXTENDED_RATIO = 15
_MATROSKA_KEY = "enc_key_id"
_RECTANGULAR = 0


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Facts from the header and the first packets of a stream."""

    kind: str
    """"video", "audio", "subtitle", "data" or "attachment"."""
    position: int
    """Index of the stream in the file."""
    codec: str
    """FFmpeg's name of the codec ("h264", "vp9", "aac", "pcm_s16le"); "" if this FFmpeg cannot decode it."""
    profile: str
    """Profile of the codec ("High 10"); "" if unknown."""
    time_base: Fraction
    """Seconds per unit of time stamps."""
    start: int | None
    """First time stamp in units of `time_base`, according to the header."""
    duration: int | None
    """Duration in units of `time_base`, according to the header."""
    frames: int
    """Number of frames according to the header; 0 if unknown."""
    is_cover: bool = False
    """Whether it is an image attached to the file, not a video."""
    is_encrypted: bool = False
    """Whether the header of an MP4, Matroska or WebM file says that its packets are encrypted."""
    width: int = 0
    """Width in pixels as stored."""
    height: int = 0
    """Height in pixels as stored."""
    pixel_format: str = ""
    """FFmpeg's name, such as "yuv420p10le"."""
    bit_depth: int = 0
    """Bits per component."""
    average_rate: Fraction | None = None
    """Frames per second, on average."""
    is_interlaced_mpeg4: bool = False
    """Whether it is MPEG-4 (part 2) with interlaced frames, some of which refer forward (`is_interlaced_mpeg4`)."""
    sample_rate: int = 0
    """Samples per second."""
    channels: int = 0
    """Number of audio channels."""
    layout: str = ""
    """FFmpeg's name of the channel layout, such as "5.1(side)"."""
    sample_format: str = ""
    """FFmpeg's name, such as "fltp"."""

    @property
    def duration_seconds(self) -> float | None:
        """Duration in seconds according to the header; None if unknown."""
        return None if self.duration is None else float(self.duration * self.time_base)


def find_facts(stream: Stream, *, is_encrypted: bool = False) -> StreamFacts:
    """Returns what is known about a stream of an open container.

    Args:
        stream: The stream.
        is_encrypted: Whether the header of an MP4 says so; of Matroska and WebM, FFmpeg reports the key's name.
    """
    context: Any = stream.codec_context
    facts: dict[str, Any] = {}
    if stream.type == "video" and context is not None:
        pixels = context.format
        facts = {
            "width": context.width,
            "height": context.height,
            "pixel_format": pixels.name if pixels is not None else "",
            "bit_depth": max((part.bits for part in pixels.components), default=0) if pixels is not None else 0,
            "average_rate": stream.average_rate,
            "is_interlaced_mpeg4": _codec_name(context) == "mpeg4"
            and bool(context.has_b_frames)
            and is_interlaced_mpeg4(context.extradata),
        }
    elif stream.type == "audio" and context is not None:
        facts = {
            "sample_rate": context.sample_rate or 0,
            "channels": context.layout.nb_channels,
            "layout": context.layout.name,
            "sample_format": context.format.name if context.format is not None else "",
        }
    return StreamFacts(
        kind=stream.type,
        position=stream.index,
        codec=_codec_name(context),
        profile=(context.profile or "") if context is not None else "",
        time_base=stream.time_base or Fraction(1, 1_000_000),
        start=stream.start_time,
        duration=stream.duration,
        frames=stream.frames,
        is_cover=bool(stream.disposition & 0x400),
        is_encrypted=is_encrypted or _MATROSKA_KEY in stream.metadata,
        **facts,
    )


def _codec_name(context: Any) -> str:
    """Returns the codec's name, even if the decoder has another one ("av1", decoded by "libdav1d")."""
    if context is None:
        return ""
    name = context.codec.canonical_name if hasattr(context.codec, "canonical_name") else context.name
    return str(name)


def is_interlaced_mpeg4(extradata: bytes | None) -> bool:
    """Returns whether frames of an MPEG-4 (part 2) video may be interlaced; False if the header does not say.

    FFmpeg keeps the distance between fields from the first B-frame that it decodes. So interlaced B-frames are right
    only in one thread and when decoding from the start of the stream; elsewhere they differ or are missing.
    Source: ISO/IEC 14496-2 6.2.3, VideoObjectLayer.

    Args:
        extradata: The decoder configuration of the stream.
    """
    layer = _LAYER.search(extradata or b"")
    if layer is None:
        return False
    bits = _bits((extradata or b"")[layer.end() :])
    at = 1 + 8  # random access, type
    at += 8 if bits[at : at + 1] == "1" else 1  # identifier
    at += 20 if _number(bits, at, 4) == _EXTENDED_RATIO else 4
    if bits[at : at + 1] == "1":  # control parameters: chroma format, low delay
        at += 4
        at += 80 if bits[at : at + 1] == "1" else 1
    else:
        at += 1
    if _number(bits, at, 2) != _RECTANGULAR:
        return False
    resolution = _number(bits, at + 3, 16)
    at += 20
    at += 1 + max(1, (resolution - 1).bit_length()) if bits[at : at + 1] == "1" else 1  # fixed rate
    return bits[at + 29 : at + 30] == "1"  # after width, height and three markers


def _bits(data: bytes) -> str:
    return "".join(f"{byte:08b}" for byte in data[:64])


def _number(bits: str, at: int, count: int) -> int:
    return int(bits[at : at + count] or "0", 2)
