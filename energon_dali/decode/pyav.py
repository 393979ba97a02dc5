"""Decodes video and audio with PyAV on the CPU: the reference of every other backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.decode.clips import ClipsHandle, VideoClips, choose_frames, choose_starts
from energon_dali.decode.interface import Decoded, DecodeFailure, Outcome, Route
from energon_dali.errors import DecodeError
from energon_dali.plan.rng import Int64Array
from energon_dali.samples import Clips

if TYPE_CHECKING:
    import torch

    from energon_dali.av import AVLimits, FrameIndex, MediaFile
    from energon_dali.decode.spec import AVDecode
    from energon_dali.samples import SourceInfo

ROUTE: Route = "pyav"
_BYTES_PER_VALUE = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}


def open_part(
    raw: bytes | memoryview, av_decode: AVDecode, video_decode_audio: bool, options: Mapping[str, Any]
) -> Any:
    """Returns what a video or audio part becomes with one of the three names of `av_decode`.

    Args:
        raw: The file; what is returned may keep a view of it.
        av_decode: "AVDecoder" opens nothing yet, "torch" decodes the whole file, "pyav" opens PyAV's container.
        video_decode_audio: With "torch", whether a video brings its audio.
        options: Other options of AVDecoder.

    Returns:
        An AVDecoder; AVData, or the bytes where there is nothing to decode; or an av.container.InputContainer.

    Raises:
        DecodeError: The file cannot be opened, or decoded.
    """
    from energon_dali.av import AVWebdatasetDecoder

    # The part is known to be video or audio, by its name or by its content; "mp4" stands for all of them.
    value = AVWebdatasetDecoder(video_decode_audio, av_decode, **options)("mp4", raw)
    return bytes(raw) if value is None else value


def stage_clips(
    name: str,
    raw: bytes | memoryview,
    spec: VideoClips,
    *,
    seed: int = 0,
    source: SourceInfo | None = None,
    limits: AVLimits | None = None,
) -> tuple[ClipsHandle, MediaFile]:
    """Returns a file with its clips chosen, which takes a demux and no decoding, and the same file, open.

    Args:
        name: Part name.
        raw: The file; the handle keeps a view of it.
        spec: Which clips.
        seed: Decides random clips.
        source: Where it came from, for messages.
        limits: What decoding may cost; None for the defaults.

    Raises:
        DecodeError: The file cannot be opened, has no stream of what is asked for, or the clips do not fit into it.
    """
    from energon_dali.av import MediaFile

    file = MediaFile(raw, limits=limits)
    try:
        handle = ClipsHandle(name, raw, "", 0, 0, spec, seed=seed, source=source, limits=limits)
        _choose(handle, file)
    except DecodeError as error:
        file.close()
        raise DecodeError(error.reason, error.format or file.format, error.route or ROUTE) from error
    except BaseException:
        file.close()
        raise
    return handle, file


def decode_clips(handle: ClipsHandle, file: MediaFile | None = None) -> Clips:
    """Returns the clips of a file, decoded in the calling thread.

    Args:
        handle: The file, with its frames chosen.
        file: The same file, if it is open already; it is closed.

    Raises:
        DecodeError: The data cannot be decoded, or decoding costs more than the limits allow.
    """
    if handle.decoded is not None:
        return handle.decoded
    from energon_dali.av import MediaFile

    with file or MediaFile(handle.data, limits=handle.limits) as opened:
        clips = decode_audio_of_clips(handle, opened)
        if handle.frame_indices.size:
            import torch

            clips.frames = finish_frames(torch.from_numpy(_read_frames(handle, opened)), handle)
            clips.timestamps = torch.from_numpy(handle.timestamps)
    return clips


def decode_audio_of_clips(handle: ClipsHandle, file: MediaFile | None = None) -> Clips:
    """Returns clips without frames, with the sound that the handle's spec asks for: none, or all of its clips.

    Args:
        handle: The file, with the starts of its clips.
        file: The same file, if it is open already.

    Raises:
        DecodeError: The sound cannot be decoded.
    """
    wanted = handle.spec.clip_audio
    if wanted is None:
        return Clips(None, None)
    import torch

    seconds = handle.spec.audio_seconds
    if not handle.audio_codec:
        _check_sound(handle, wanted.channels or 0, wanted.sample_rate or 0)
        assert wanted.channels is not None, "silence is refused without channels and a rate"
        assert wanted.sample_rate is not None, "silence is refused without channels and a rate"
        shape = (len(handle.starts), wanted.channels, round(seconds * wanted.sample_rate))
        none = np.stack([handle.starts, handle.starts], 1)
        return Clips(None, None, torch.zeros(shape), torch.from_numpy(none), wanted.sample_rate)
    from energon_dali.av import MediaFile
    from energon_dali.av.audio import AudioReader

    if file is None:
        with MediaFile(handle.data, limits=handle.limits) as opened:
            return decode_audio_of_clips(handle, opened)
    reader = AudioReader(file, sample_rate=wanted.sample_rate, channels=wanted.channels, damaged=handle.spec.damaged)
    rate = reader.sample_rate
    _check_sound(handle, reader.channels, rate)
    starts = handle.starts.tolist()
    sound = np.zeros((len(starts), reader.channels, round(seconds * rate)), np.float32)
    times = np.stack([handle.starts, handle.starts], 1)
    for row, clip in enumerate(reader.read_clips([(start, start + seconds) for start in starts])):
        if clip is None:
            continue  # the stream begins later, or ended before
        skipped = max(0, round((clip.start_seconds - starts[row]) * rate))
        heard = clip.samples[:, : max(0, sound.shape[2] - skipped)]
        sound[row, :, skipped : skipped + heard.shape[1]] = as_float(heard)
        times[row] = clip.start_seconds, clip.start_seconds + heard.shape[1] / rate
    return Clips(None, None, torch.from_numpy(sound), torch.from_numpy(times), rate)


def _check_sound(handle: ClipsHandle, channels: int, rate: int) -> None:
    """Does nothing where the sound of the clips is within the limits; a header can claim any rate.

    Raises:
        DecodeError: It is not.
    """
    from energon_dali.av import AVLimits

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
    """Returns sound of any sample type as float32 in [-1, 1]: integers are divided by the magnitude of their range."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32, copy=False)
    half = float(1 << (8 * samples.dtype.itemsize - 1))
    if samples.dtype.kind == "u":
        return ((samples.astype(np.float64) - half) / half).astype(np.float32)
    return (samples.astype(np.float64) / half).astype(np.float32)


def decode_by_pyav(handle: ClipsHandle, bring: Callable[[Any], Any] | None = None) -> Outcome:
    """Returns the outcome of decoding clips with PyAV in the calling thread.

    Args:
        handle: The file, with its frames chosen.
        bring: Moves the frames to where they are wanted; None leaves them on the CPU.
    """
    try:
        clips = decode_clips(handle)
    except DecodeError as error:
        return DecodeFailure(error.reason, error.format or handle.format, error.route or ROUTE, handle.source)
    if bring is not None and clips.frames is not None:
        clips.frames = bring(clips.frames)
    return Decoded(clips, ROUTE)


def finish_frames(frames: torch.Tensor, handle: ClipsHandle) -> torch.Tensor:
    """Returns decoded frames in the layout and dtype of the handle's spec.

    Args:
        frames: uint8[clips * frames, H, W, 3], contiguous.
        handle: Its spec and the shape of its clips are looked at.

    Returns:
        Tensor [clips, frames, 3, H, W], or with the channels last.
    """
    import torch

    spec = handle.spec
    if spec.layout == "FCHW":
        frames = frames.permute(0, 3, 1, 2)
    if spec.dtype == "uint8":
        frames = frames.contiguous()
    else:
        frames = frames.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        frames = frames.to(getattr(torch, spec.dtype))
    return frames.view(*handle.frame_indices.shape, *frames.shape[1:])


def count_frames_to_decode(frames: Int64Array, index: FrameIndex) -> int:
    """Returns how many frames must be decoded to have the wanted ones: from the keyframe before each on.

    Args:
        frames: int64[...], numbers of frames.
        index: Of the same video.
    """
    wanted = np.unique(frames)
    starts, positions = index.starts[wanted], index.positions[wanted]
    order = np.argsort(starts, kind="stable")
    groups, first = np.unique(starts[order], return_index=True)
    furthest = np.maximum.reduceat(positions[order], first)
    return int((furthest - groups + 1).sum())


def has_plain_packets(index: FrameIndex) -> bool:
    """Returns whether the frames of a video can be counted by its packets, as DALI does.

    Each packet is one shown frame with a time stamp of its own that is not negative, and no frame is shown before the
    keyframe that precedes it in the file (a decoder that begins there cannot give it).
    """
    packets = index.packets
    if not len(packets) or len(packets) != len(index) or packets.is_hidden.any() or int(packets.pts.min()) < 0:
        return False
    if not np.array_equal(index.positions, np.argsort(packets.pts, kind="stable")):
        return False  # pictures come packed behind others, or the file's times contradict the decoder's order
    earliest_after = np.minimum.accumulate(packets.pts[::-1])[::-1]  # int64[packets], the packet itself included
    return bool((earliest_after >= packets.pts)[packets.is_key].all())


def _choose(handle: ClipsHandle, file: MediaFile) -> None:
    from energon_dali.av import VideoReader

    spec = handle.spec
    video, audio = file.find_stream("video"), file.find_stream("audio")
    handle.format = file.format
    frames = spec.num_clips * spec.frames_per_clip
    if frames > file.limits.max_frames:
        raise DecodeError(
            f"The clips have {frames:,} frames, more than AVLimits(max_frames={file.limits.max_frames:,}) allows"
        )
    wanted = spec.clip_audio
    if wanted is not None:
        if audio is None and wanted.missing == "error":
            raise DecodeError(
                "The file has no audio stream, and clips with sound are wanted. Leave audio out, or give "
                'ClipAudio(missing="silence")'
            )
        handle.audio_codec = "" if audio is None else audio.codec
    if video is None:
        if not handle.audio_codec:
            raise DecodeError("The file has no video stream, and clips of its frames are wanted")
        _choose_sound(handle, file)
        return
    reader = VideoReader(file, damaged=spec.damaged)
    index = reader.index
    times = index.times
    handle.frame_indices, handle.starts = choose_frames(spec, times, index.end_seconds, handle.seed)
    handle.timestamps = times[handle.frame_indices]
    handle.width, handle.height = video.width, video.height
    handle.codec, handle.profile, handle.pixel_format = video.codec, video.profile, video.pixel_format
    handle.bit_depth = video.bit_depth
    handle.rotation = reader.rotation if spec.apply_rotation else 0
    handle.frame_count = len(index)
    handle.frames_to_decode = count_frames_to_decode(handle.frame_indices, index)
    alone = sum(stream.kind == "video" for stream in file.streams) == 1
    handle.packets_are_frames = alone and not video.is_interlaced_mpeg4 and has_plain_packets(index)


def _choose_sound(handle: ClipsHandle, file: MediaFile) -> None:
    from energon_dali.av.audio import AudioReader

    index = AudioReader(file, damaged=handle.spec.damaged).index
    handle.starts = choose_starts(handle.spec, index.start_seconds, index.end_seconds, handle.seed)


def _read_frames(handle: ClipsHandle, file: MediaFile) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the wanted frames: uint8[clips * frames, H, W, 3]."""
    from energon_dali.av import VideoReader

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

    reader = VideoReader(file, damaged=spec.damaged)
    return np.ascontiguousarray(reader.read(handle.frame_indices.ravel(), fit, upright=handle.rotation != 0))
