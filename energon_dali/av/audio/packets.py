"""Reads the packets of an audio stream, and resets its decoder to the start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.av.container import ROUTE, MediaFile, demux_stream
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import numpy.typing as npt
    from av.audio.frame import AudioFrame
    from av.packet import Packet


_COPIED = ("aac", "mp3", "opus", "vorbis", "flac")
"""Codecs whose decoder can be recreated from the codec's header alone."""
MOST_PLANES = 7
"""Most planes of a planar frame: with eight, PyAV 18.1 reads past the end for further ones (SIGSEGV)."""
HEAD = "audio_head"
"""Key in `MediaFile.cache` of the first packets: (pts, size, side data on samples to skip)."""
CUT: Literal["skip_samples"] = "skip_samples"


def demux(file: MediaFile, position: int, *, tolerant: bool = False) -> Iterator[Packet[Any]]:
    """Yields the packets of a stream from the container's position on, within the limits of the file.

    Raises:
        DecodeError: It takes too long, or there are too many packets.
    """
    deadline, most = file.deadline(), file.limits.max_packets
    stream = file.container.streams[position]
    for number, packet in enumerate(demux_stream(file.container, stream, tolerant=tolerant)):
        if not number & 15:
            deadline.check()
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
    return select(file, file.reopen(), facts.position), demux(file, facts.position, tolerant=tolerant)


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
