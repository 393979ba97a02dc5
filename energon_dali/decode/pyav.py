"""Decodes video and audio with PyAV on the CPU. This is the reference for every other backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.av import AudioReader, AVLimits, AVWebdatasetDecoder, FrameIndex, MediaFile, VideoReader
from energon_dali.av.media_index import MediaIndex
from energon_dali.av.sparse_media import SparseMedia
from energon_dali.decode.clips import ClipAudio, ClipsHandle, VideoClips, choose_frames, choose_starts
from energon_dali.decode.front_ends import VideoFrontEnd, VideoInput
from energon_dali.decode.interface import Decoded, DecodeFailure, Outcome, Route
from energon_dali.decode.spec import AVDecode, DecodeScale
from energon_dali.errors import DecodeError
from energon_dali.plan.rng import Int64Array
from energon_dali.samples.base import SourceInfo
from energon_dali.samples.kinds import Clips

if TYPE_CHECKING:
    import torch

ROUTE: Route = "pyav"
_BYTES_PER_VALUE = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}


def import_pyav() -> None:
    """Imports PyAV, which takes 0.1 s, and what it and numpy import when they first open a file or take a median."""
    for module in ("av", "av.subtitles.stream", "numpy.ma"):
        import_module(module)


def open_part(
    raw: bytes | memoryview, av_decode: AVDecode, video_decode_audio: bool, options: Mapping[str, Any]
) -> Any:
    """Returns what a video or audio part becomes for one of the three names of `av_decode`.

    Args:
        raw: The file; the result may keep a view of it.
        av_decode: "AVDecoder" opens nothing yet, "torch" decodes the whole file, "pyav" opens PyAV's container.
        video_decode_audio: With "torch", whether the audio of a video is decoded too.
        options: Other options of AVDecoder.

    Returns:
        An AVDecoder; AVData, or the bytes if there is nothing to decode; or an av.container.InputContainer.

    Raises:
        DecodeError: The file cannot be opened, or decoded.
    """
    # The part is known to be video or audio by its name or content, so any of their suffixes will do.
    value = AVWebdatasetDecoder(video_decode_audio, av_decode, **options)("mp4", raw)
    return bytes(raw) if value is None else value


def stage_clips(
    name: str,
    raw: bytes | memoryview | SparseMedia,
    spec: VideoClips,
    *,
    seed: int = 0,
    source: SourceInfo | None = None,
    limits: AVLimits | None = None,
    decode_scale: DecodeScale = "exact",
) -> tuple[ClipsHandle, MediaFile]:
    """Chooses the clips of a file by demuxing it, without decoding; returns its handle, and the same file, open.

    Args:
        name: Part name.
        raw: The file, or its index with some of its bytes; the handle keeps a view of it.
        spec: The clips to choose.
        seed: Determines random clips.
        source: Where it came from, for messages.
        limits: Limits for decoding; None for the defaults.
        decode_scale: How far PyAV's frames that become smaller may differ from an exact conversion.

    Raises:
        DecodeError: The file cannot be opened, lacks a stream that is asked for, or is too short for the clips.
    """
    file = MediaFile(raw, limits=limits)
    try:
        handle = ClipsHandle(
            name, raw, "", 0, 0, spec, seed=seed, source=source, limits=limits, decode_scale=decode_scale
        )
        _choose(handle, file)
    except DecodeError as error:
        file.close()
        raise DecodeError(error.reason, error.format or file.format, error.route or ROUTE) from error
    except BaseException:
        file.close()
        raise
    return handle, file


def find_packets(
    name: str, index: MediaIndex, spec: VideoClips, *, seed: int, limits: AVLimits | None
) -> list[tuple[int, int]]:
    """Returns (offset, size) of the packets that clips need, chosen from the index alone; none if they will fail.

    Args:
        name: Part name.
        index: The stored index of the file.
        spec: The clips.
        seed: Determines random clips; that of `stage_clips`.
        limits: Limits for decoding; None for the defaults.
    """
    places: list[tuple[int, int]] = []
    try:
        handle, file = stage_clips(name, SparseMedia(index), spec, seed=seed, limits=limits)
        if index.video is not None and handle.frame_indices.size:
            places += index.video.places(VideoReader(file).packets_of(handle.frame_indices))
        wanted = spec.clip_audio
        if wanted is not None and index.audio is not None and handle.audio_codec:
            reader = _audio_reader(handle, file, wanted)
            places += index.audio.places(reader.packets_of([piece for _, piece in _audio_pieces(handle, reader)]))
    except DecodeError:
        return []  # for the same reason when it is decoded
    return places


def _audio_reader(handle: ClipsHandle, file: MediaFile, wanted: ClipAudio) -> AudioReader:
    return AudioReader(
        file,
        sample_rate=wanted.sample_rate,
        channels=wanted.channels,
        damaged=handle.spec.damaged,
        exact=wanted.exact,
    )


def _audio_pieces(handle: ClipsHandle, reader: AudioReader) -> list[tuple[int, tuple[float, float]]]:
    """Returns (clip, (start, end) in seconds) of the audio to read: a clip is divided where a gap in the audio ends."""
    resumed = reader.index.span_seconds[1:]
    pieces: list[tuple[int, tuple[float, float]]] = []
    for row, start in enumerate(handle.starts.tolist()):
        end = start + handle.spec.audio_seconds
        edges = [start, *resumed[(resumed > start) & (resumed < end)].tolist(), end]
        pieces += [(row, piece) for piece in pairwise(edges)]
    return pieces


def decode_and_render(handle: ClipsHandle, file: MediaFile | None = None) -> Clips | VideoInput:
    """Returns the clips of a file, or what their front end makes of them, decoded in the calling thread.

    Args:
        handle: The file, with its frames chosen.
        file: The same file, if it is already open; it is closed.

    Raises:
        DecodeError: The data cannot be decoded, or not within the limits, or the front end refuses it.
    """
    if handle.decoded is not None:
        return handle.decoded
    clips = decode_clips(handle, file)
    return clips if handle.spec.front_end is None else render_video(handle, clips)


def decode_clips(handle: ClipsHandle, file: MediaFile | None = None) -> Clips:
    """Returns the clips of a file, decoded in the calling thread; with a front end they are not rendered.

    Args:
        handle: The file, with its frames chosen.
        file: The same file, if it is already open; it is closed.

    Raises:
        DecodeError: The data cannot be decoded, or not within the limits.
    """
    with file or MediaFile(handle.data, limits=handle.limits) as opened:
        clips = decode_audio_of_clips(handle, opened)
        if handle.frame_indices.size:
            import torch

            clips.frames = finish_frames(torch.from_numpy(_read_frames(handle, opened)), handle)
            clips.timestamps = torch.from_numpy(handle.timestamps)
    return clips


def render_video(handle: ClipsHandle, clips: Clips) -> VideoInput:
    """Returns what a front end makes of the decoded frames of a video.

    Args:
        handle: The video; its spec has a front end.
        clips: Its frames, uint8[1, n, 3, H, W], on any device.
    """
    front_end = handle.spec.front_end
    assert front_end is not None
    assert clips.frames is not None
    return front_end.render_video(clips.frames[0], handle.layout, tuple(handle.timestamps[0].tolist()))


def decode_audio_of_clips(handle: ClipsHandle, file: MediaFile | None = None) -> Clips:
    """Returns clips without frames, with the audio that the handle's spec asks for: none, or that of all clips.

    Args:
        handle: The file, with the starts of its clips.
        file: The same file, if it is already open.

    Raises:
        DecodeError: The audio cannot be decoded.
    """
    if handle.sound is not None:
        return replace(handle.sound)
    wanted = handle.spec.clip_audio
    if wanted is None:
        return Clips(None, None)
    import torch

    seconds = handle.spec.audio_seconds
    if not handle.audio_codec:
        _check_audio(handle, wanted.channels or 0, wanted.sample_rate or 0)
        assert wanted.channels is not None, "silence is refused without channels and a rate"
        assert wanted.sample_rate is not None, "silence is refused without channels and a rate"
        shape = (len(handle.starts), wanted.channels, round(seconds * wanted.sample_rate))
        none = np.stack([handle.starts, handle.starts], 1)
        return _with_audio(torch.zeros(shape), torch.from_numpy(none), wanted.sample_rate, wanted)
    if file is None:
        with MediaFile(handle.data, limits=handle.limits) as opened:
            return decode_audio_of_clips(handle, opened)
    reader = _audio_reader(handle, file, wanted)
    rate = reader.sample_rate
    _check_audio(handle, reader.channels, rate)
    starts = handle.starts.tolist()
    values = np.zeros((len(starts), reader.channels, round(seconds * rate)), np.float32)
    times = np.stack([handle.starts, handle.starts], 1)
    pieces = _audio_pieces(handle, reader)
    found = reader.read_clips([piece for _, piece in pieces])
    for (row, (start, _)), clip in zip(pieces, found, strict=True):
        if clip is None:
            continue  # the stream starts later, or ended before, or has a gap
        # Resampled audio after a gap may claim to start before the gap, because its samples do not meet the gap's end.
        begins = max(clip.start_seconds, start - 0.5 / rate)
        skipped = max(0, round((begins - starts[row]) * rate))
        heard = clip.samples[:, : max(0, values.shape[2] - skipped)]
        values[row, :, skipped : skipped + heard.shape[1]] = as_float(heard)
        if times[row, 0] == times[row, 1]:
            times[row, 0] = begins
        times[row, 1] = begins + heard.shape[1] / rate
    return _with_audio(torch.from_numpy(values), torch.from_numpy(times), rate, wanted)


def _with_audio(audio: torch.Tensor, times: torch.Tensor, rate: int, wanted: ClipAudio) -> Clips:
    """Returns clips of audio float32[clips, channels, samples], or of its features."""
    if wanted.features is None:
        return Clips(None, None, audio, times, rate)
    return Clips(None, None, None, times, rate, wanted.features(audio[:, 0]))


def _check_audio(handle: ClipsHandle, channels: int, rate: int) -> None:
    """Checks the size of the audio of the clips against the limits; a header can claim any rate.

    Raises:
        DecodeError: It is too large.
    """
    limits = handle.limits or AVLimits()
    samples = len(handle.starts) * round(handle.spec.audio_seconds * rate)
    if samples > limits.max_audio_samples or samples * channels * 4 > limits.max_bytes:
        raise DecodeError(
            f"The clips have {samples:,} samples of {channels} channels at {rate:,} Hz, more than "
            f"AVLimits(max_audio_samples={limits.max_audio_samples:,}, max_bytes={limits.max_bytes:,}) allows. Ask for "
            "shorter clips or a lower rate, or raise the limit",
            handle.format,
            "pyav",
        )


def as_float(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns audio samples of any type as float32 in [-1, 1]: integers are divided by the magnitude of their range."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32, copy=False)
    half = float(1 << (8 * samples.dtype.itemsize - 1))
    if samples.dtype.kind == "i" and samples.dtype.itemsize <= 4:  # rounded once, as by way of float64
        scaled: np.ndarray[Any, np.dtype[np.float32]] = np.multiply(samples, np.float32(1 / half), dtype=np.float32)
        return scaled
    if samples.dtype.kind == "u":
        return ((samples.astype(np.float64) - half) / half).astype(np.float32)
    return (samples.astype(np.float64) / half).astype(np.float32)


def decode_by_pyav(handle: ClipsHandle, bring: Callable[[Any], Any] | None = None) -> Outcome:
    """Returns the outcome of decoding clips with PyAV in the calling thread.

    Args:
        handle: The file, with its frames chosen.
        bring: Moves the frames to their device; None leaves them on the CPU.
    """
    try:
        value = decode_and_render(handle)
    except DecodeError as error:
        return DecodeFailure(error.reason, error.format or handle.format, error.route or ROUTE, handle.source)
    if bring is not None and isinstance(value, VideoInput):
        value = bring(value)
    elif bring is not None and isinstance(value, Clips) and value.frames is not None:
        value.frames = bring(value.frames)
    return Decoded(value, ROUTE if handle.decoded is None else handle.decoded_by)


def finish_frames(frames: torch.Tensor, handle: ClipsHandle) -> torch.Tensor:
    """Returns decoded frames in the layout and dtype of the handle's spec.

    Args:
        frames: uint8[clips * frames, H, W, 3], with any strides.
        handle: Provides the spec and the shape of the clips.

    Returns:
        Tensor [clips, frames, 3, H, W], or with the channels last.
    """
    import torch

    spec = handle.spec
    if spec.front_end is not None:  # it takes any memory order, so nothing is copied
        return frames.permute(0, 3, 1, 2)[None]
    if spec.layout == "FCHW":
        frames = frames.permute(0, 3, 1, 2)
    if spec.dtype == "uint8":
        frames = frames.contiguous()
    else:
        frames = frames.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        frames = frames.to(getattr(torch, spec.dtype))
    return frames.view(*handle.frame_indices.shape, *frames.shape[1:])


def count_frames_to_decode(frames: Int64Array, index: FrameIndex) -> int:
    """Returns the number of frames to decode for the wanted ones: each of them, and all since the keyframe before it.

    Args:
        frames: int64[...], frame numbers.
        index: Of the same video.
    """
    wanted = np.unique(frames)
    starts, positions = index.starts[wanted], index.positions[wanted]
    order = np.argsort(starts, kind="stable")
    groups, first = np.unique(starts[order], return_index=True)
    furthest = np.maximum.reduceat(positions[order], first)
    return int((furthest - groups + 1).sum())


def has_plain_packets(index: FrameIndex) -> bool:
    """Returns whether counting packets counts the frames of a video, as DALI assumes.

    That is so if each packet is one shown frame with its own non-negative time stamp, and no frame is shown before the
    keyframe that precedes it in the file (a decoder that starts there cannot decode it).
    """
    packets = index.packets
    if not len(packets) or len(packets) != len(index) or packets.is_hidden.any() or int(packets.pts.min()) < 0:
        return False
    if not np.array_equal(index.positions, np.argsort(packets.pts, kind="stable")):
        return False  # frames are packed after others in one packet, or the file's times contradict the decoder's order
    earliest_after = np.minimum.accumulate(packets.pts[::-1])[::-1]  # int64[packets], the packet itself included
    return bool((earliest_after >= packets.pts)[packets.is_key].all())


def _choose(handle: ClipsHandle, file: MediaFile) -> None:
    spec = handle.spec
    video, audio = file.find_stream("video"), file.find_stream("audio")
    handle.format = file.format
    if spec.front_end is None:
        _check_frames(spec.num_clips * spec.frames_per_clip, file)
    wanted = spec.clip_audio
    if wanted is not None:
        if audio is None and wanted.missing == "error":
            raise DecodeError(
                "The file has no audio stream, and clips with audio are wanted. Leave audio out, or give "
                'ClipAudio(missing="silence")'
            )
        handle.audio_codec = "" if audio is None else audio.codec
    if video is None:
        if not handle.audio_codec or spec.front_end is not None:
            raise DecodeError("The file has no video stream, and clips of its frames are wanted")
        _choose_audio(handle, file)
        return
    reader = VideoReader(file, damaged=spec.damaged)
    index = reader.index
    times = index.times
    handle.width, handle.height = video.width, video.height
    handle.rotation = reader.rotation if spec.apply_rotation else 0
    if spec.front_end is None:
        handle.frame_indices, handle.starts = choose_frames(spec, times, index.end_seconds, handle.seed)
    else:
        _choose_by_front_end(handle, spec.front_end, index, video.average_rate)
        _check_frames(handle.frame_indices.size, file)
    handle.timestamps = times[handle.frame_indices]
    handle.codec, handle.profile, handle.pixel_format = video.codec, video.profile, video.pixel_format
    handle.bit_depth = video.bit_depth
    handle.frame_count = len(index)
    handle.frames_to_decode = count_frames_to_decode(handle.frame_indices, index)
    alone = sum(stream.kind == "video" for stream in file.streams) == 1
    is_whole = not isinstance(handle.data, SparseMedia)  # DALI takes files
    handle.packets_are_frames = is_whole and alone and not video.is_interlaced_mpeg4 and has_plain_packets(index)


def _check_frames(frames: int, file: MediaFile) -> None:
    if frames > file.limits.max_frames:
        raise DecodeError(
            f"The clips have {frames:,} frames, more than AVLimits(max_frames={file.limits.max_frames:,}) allows"
        )


def _choose_by_front_end(
    handle: ClipsHandle, front_end: VideoFrontEnd, index: FrameIndex, average_rate: Fraction | None
) -> None:
    """Sets layout and frames of a handle whose size and rotation are known."""
    if not len(index):
        raise DecodeError("The video has no frames")
    seconds = index.end_seconds - index.start_seconds
    fps = float(average_rate) if average_rate else len(index) / seconds if seconds > 0 else 1.0
    turned = handle.rotation in (90, 270)
    width, height = (handle.height, handle.width) if turned else (handle.width, handle.height)
    layout = front_end.layout(width, height, len(index), fps)
    handle.video_layout = layout
    handle.frame_indices = np.array([layout.frames], np.int64)
    handle.starts = index.times[handle.frame_indices[:, 0]]


def _choose_audio(handle: ClipsHandle, file: MediaFile) -> None:
    index = AudioReader(file, damaged=handle.spec.damaged).index
    handle.starts = choose_starts(handle.spec, index.start_seconds, index.end_seconds, handle.seed)


def _read_frames(handle: ClipsHandle, file: MediaFile) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the wanted frames, uint8[clips * frames, H, W, 3], in the memory order of the handle's layout."""
    spec = handle.spec

    def fit(width: int, height: int) -> tuple[int, int]:
        sides = spec.output_size(width, height)
        size = handle.frame_indices.size * sides[0] * sides[1] * 3 * _BYTES_PER_VALUE[spec.dtype]
        if size > file.limits.max_bytes:
            raise DecodeError(
                f"The clips take {size:,} bytes, more than AVLimits(max_bytes={file.limits.max_bytes:,}). Ask for "
                "fewer or smaller frames, or raise the limit",
                handle.format,
                ROUTE,
            )
        return sides

    reader = VideoReader(file, damaged=spec.damaged, decode_scale=handle.decode_scale)
    # Front ends take any memory order, and packed pixels are written fastest.
    planar = spec.layout == "FCHW" and spec.front_end is None and not handle.rotation
    frames = reader.read(handle.frame_indices.ravel(), fit, upright=handle.rotation != 0, planar=planar)
    return frames if planar else np.ascontiguousarray(frames)
