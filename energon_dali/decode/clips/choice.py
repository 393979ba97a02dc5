"""Chooses the frames of clips by presentation time: the same for every decoder and device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from energon_dali.decode.clips.video_clips import VideoClips
from energon_dali.errors import DecodeError
from energon_dali.plan.rng import Int64Array, uniform

Float64Array = NDArray[np.float64]

TOLERANCE_SECONDS = 1e-9
"""A time less than this before a frame counts as at the frame, because sums of floats miss time stamps slightly."""
_CLIP_DRAWS = 0x636C6970
"""Part of the key of the random numbers for clip starts, so that they differ from other draws."""


def choose_frames(spec: VideoClips, times: Float64Array, end: float, seed: int = 0) -> tuple[Int64Array, Float64Array]:
    """Returns which frames each clip has, and where each clip starts.

    Args:
        spec: The clips.
        times: float64[n], presentation times of all shown frames in seconds, ascending.
        end: When the last frame ends, in seconds.
        seed: Determines random starts.

    Returns:
        int64[num_clips, frames_per_clip], frame numbers in presentation order; and float64[num_clips], seconds.

    Raises:
        DecodeError: There are no frames, a clip starts outside the video, or it is too short and `spec.short` is
            "error".
    """
    if len(times) == 0:
        raise DecodeError("The video has no frames")
    if spec.clip_duration_seconds is None:
        frames = _by_stride(spec, times, end, seed)
        return frames, times[frames[:, 0]]
    starts = choose_starts(spec, float(times[0]), end, seed)
    stop = float(starts.max()) + spec.clip_duration_seconds
    if spec.short == "error" and stop > end + 1e-6:
        raise DecodeError(
            f"A clip of {spec.clip_duration_seconds:g} s ends at {stop:g} s, and the video at {end:g} s. Ask for "
            'shorter clips, or give VideoClips(short="repeat") to repeat the last frame'
        )
    offsets = np.arange(spec.frames_per_clip) * (spec.clip_duration_seconds / spec.frames_per_clip)
    return frames_shown_at(starts[:, None] + offsets, times), starts


def choose_starts(spec: VideoClips, first: float, end: float, seed: int = 0) -> Float64Array:
    """Returns where each clip starts, in seconds.

    Args:
        spec: Clips with a duration (of their frames, or of their audio).
        first: Presentation time of the start of the stream, in seconds.
        end: Presentation time of its end.
        seed: Determines random starts.

    Returns:
        float64[num_clips].

    Raises:
        DecodeError: A start of `spec.at` is outside the stream.
    """
    if spec.sampling == "at":
        starts = np.array(spec.at, np.float64)
        _check_inside(starts, first, end)
        return starts
    span = max(0.0, end - first - (spec.clip_duration_seconds or spec.audio_seconds))
    if spec.sampling == "uniform":
        return np.linspace(first, first + span, spec.num_clips)
    return first + span * np.sort(uniform(0, spec.num_clips, _CLIP_DRAWS, seed))


def frames_shown_at(seconds: Float64Array, times: Float64Array) -> Int64Array:
    """Returns the frame shown at each time: the last one that starts at or before it, or the first frame.

    Args:
        seconds: float64[...], presentation times.
        times: float64[n], presentation times of the frames, ascending.

    Returns:
        int64[...], in 0 ... n - 1.
    """
    frames: Int64Array = np.searchsorted(times, seconds + TOLERANCE_SECONDS, side="right").astype(np.int64) - 1
    return np.maximum(frames, 0)


def _by_stride(spec: VideoClips, times: Float64Array, end: float, seed: int) -> Int64Array:
    stride = spec.stride or 1
    reach = (spec.frames_per_clip - 1) * stride
    span = max(0, len(times) - 1 - reach)
    if spec.sampling == "at":
        seconds = np.array(spec.at, np.float64)
        _check_inside(seconds, float(times[0]), end)
        starts = frames_shown_at(seconds, times)
    elif spec.sampling == "uniform":
        starts = np.rint(np.linspace(0, span, spec.num_clips)).astype(np.int64)
    else:
        draws = np.sort(uniform(0, spec.num_clips, _CLIP_DRAWS, seed))
        starts = (draws * (span + 1)).astype(np.int64)
    if spec.short == "error" and int(starts.max()) + reach >= len(times):
        raise DecodeError(
            f"A clip spans {reach + 1} frames and ends after the last of {len(times)} frames. Ask for shorter clips, "
            'or give VideoClips(short="repeat") to repeat the last frame'
        )
    frames: Int64Array = np.minimum(starts[:, None] + np.arange(spec.frames_per_clip) * stride, len(times) - 1)
    return frames


def _check_inside(starts: Float64Array, first: float, end: float) -> None:
    outside = starts[(starts < first - TOLERANCE_SECONDS) | (starts >= max(end, first + TOLERANCE_SECONDS))]
    if len(outside):
        raise DecodeError(
            f"A clip was asked for at {outside[0]:g} s, and the stream lasts from {first:g} s to {end:g} s. Give "
            "starts inside it"
        )
