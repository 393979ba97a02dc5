"""Clips and frames at equal distances over a file."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from energon_dali.av.audio_resample import is_count
from energon_dali.av.decoder import AVData, AVDecoder
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """Returns clips of equal duration at equal distances: the first at the start, the last up to the end.

    If both video and audio are requested, the end is that of the shorter one. If the file is shorter than one clip,
    each clip is the whole file. A duration of 0 returns single frames, from the middle of the first frame to the middle
    of the last.

    Args:
        av_decoder: The file.
        clip_duration_seconds: Duration of each clip, in seconds, at least 0.
        num_clips: Number of clips, at least 1.
        request_video: Whether to return video.
        request_audio: Whether to return audio.
        video_out_frame_size: (width, height) in pixels that frames are resized to; None keeps theirs.

    Raises:
        ConfigError: Neither video nor audio is requested, or a number is too small.
        DecodeError: A requested stream is missing, or cannot be decoded within the limits.
    """
    if not (request_video or request_audio):
        raise ConfigError(
            "get_clips_uniform was called with request_video=False and request_audio=False. There is nothing to "
            "return. Request video, audio, or both."
        )
    if not is_count(num_clips) or not _is_duration(clip_duration_seconds):
        raise ConfigError(
            f"{num_clips=} and {clip_duration_seconds=} were given. Give at least one clip, of 0 seconds or more."
        )
    starts, ends = [], []
    if request_video:
        frames = av_decoder.video.index
        starts.append(frames.start_seconds)
        ends.append(frames.end_seconds)
    if request_audio:
        samples = av_decoder.audio.index
        starts.append(samples.start_seconds)
        ends.append(samples.end_seconds)
    first, last = max(starts), max(max(starts), min(ends) - clip_duration_seconds)
    if clip_duration_seconds == 0:
        first, last = _middles_of_frames(av_decoder, first, last)
    clips = [(start, start + clip_duration_seconds) for start in np.linspace(first, last, num_clips).tolist()]
    return av_decoder.get_clips(
        video_clip_ranges=clips if request_video else None,
        audio_clip_ranges=clips if request_audio else None,
        video_out_frame_size=video_out_frame_size,
    )


@overload
def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: Literal[True],
) -> tuple[torch.Tensor, list[float]]: ...


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, list[float]]:
    """Returns single frames at equal distances, from the first to the last: uint8 (num_frames, 3, H, W).

    Args:
        av_decoder: The file.
        num_frames: Number of frames, at least 1; frames repeat if the video has fewer.
        video_out_frame_size: (width, height) in pixels that frames are resized to; None keeps theirs.
        return_timestamps: Also returns when each frame starts, in seconds.

    Raises:
        ConfigError: The number of frames is below 1.
        DecodeError: There is no video, or it cannot be decoded within the limits.
    """
    import torch

    data = get_clips_uniform(av_decoder, 0, num_frames, request_video=True, video_out_frame_size=video_out_frame_size)
    frames = torch.cat(data.video_clips)
    return (frames, [start for start, _ in data.video_timestamps]) if return_timestamps else frames


def _is_duration(value: object) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < float("inf")


def _middles_of_frames(av_decoder: AVDecoder, first: float, last: float) -> tuple[float, float]:
    """Returns the range of times, shortened by half a frame at both ends if there is a video."""
    if not av_decoder.has_video_stream():
        return first, last
    half = 0.5 / av_decoder.get_video_fps()
    return min(first + half, last), max(last - half, first)
