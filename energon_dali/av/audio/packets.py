"""Takes the packets of a sound stream out of its container, and puts a decoder back to the start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.av.container import ROUTE, MediaFile, demux_stream
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import numpy.typing as npt
    from av.audio.frame import AudioFrame
    from av.packet import Packet

    from energon_dali.av.stream_facts import StreamFacts

_COPIED = ("aac", "mp3", "opus", "vorbis", "flac")
"""Codecs whose decoder needs nothing but the codec's own header to be made anew."""
MOST_PLANES = 7
"""Channels that frames may have one by one: with eight PyAV 18.1 takes what lies behind for further ones (SIGSEGV)."""
HEAD = "audio_head"
"""Key of (pts, size, what to cut away) of the first packets in `MediaFile.cache`."""
CUT: Literal["skip_samples"] = "skip_samples"


def demux(file: MediaFile, position: int, *, tolerant: bool = False) -> Iterator[Packet[Any]]:
    """Yields the packets of a stream from where the container stands, within the limits of the file.

    Raises:
        DecodeError: It takes too long, or there are too many packets.
    """
    deadline, most = file.deadline(), file.limits.max_packets
    stream = file.container.streams[position]
    for number, packet in enumerate(demux_stream(file.container, stream, tolerant=tolerant)):
        if not number & 15:
            deadline.check()
        if number >= most:
            raise DecodeError(f"The sound has more packets than AVLimits(max_packets={most}) allows", "", ROUTE)
        if packet.size:
            yield packet


def decode_frames(context: Any, packet: Packet[Any] | None, *, tolerant: bool = False) -> list[AudioFrame]:
    """Returns the frames that a packet gives; None takes out what the decoder still holds."""
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
        DecodeError: They are of a type that numpy does not get from PyAV (64-bit integers).
    """
    samples: npt.NDArray[Any]
    try:
        if frame.format.is_planar and frame.layout.nb_channels > MOST_PLANES:
            from av.audio.resampler import AudioResampler

            (frame,) = AudioResampler(format=frame.format.packed.name).resample(frame)
        samples = frame.to_ndarray()
    except ValueError as error:
        raise DecodeError(f"PyAV cannot give its samples: {error}", "", ROUTE) from error
    return samples if frame.format.is_planar else samples.reshape(frame.samples, -1).T


def start_over(file: MediaFile, facts: StreamFacts, *, tolerant: bool = False) -> tuple[Any, Iterator[Packet[Any]]]:
    """Returns (codec context, packets) of a stream: a decoder that has seen nothing, and all packets from the first on.

    Where the start was seen before, the container goes back there, which is cheaper than to open it anew. Some
    containers then forget what to cut away in front (Matroska, Ogg): that is put back.
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
    """Returns a decoder for the same stream that has seen nothing: noise generators survive a flush."""
    import av

    fresh = av.CodecContext.create(context.codec, "r")
    if context.extradata:
        fresh.extradata = context.extradata
    fresh.thread_count = 1
    fresh.copy_opaque = True
    return fresh


def select(file: MediaFile, container: Any, position: int) -> Any:
    """Returns the codec context of a stream, the only one whose packets come from now on."""
    stream = container.streams[position]
    file.select(stream)
    return stream.codec_context
