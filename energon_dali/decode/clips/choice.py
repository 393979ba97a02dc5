"""Chooses the frames of clips by presentation time: integers in, integers out, the same for every decoder."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from energon_dali.errors import DecodeError
from energon_dali.plan.rng import Int64Array, uniform

if TYPE_CHECKING:
    from energon_dali.decode.clips.video_clips import VideoClips

Float64Array = NDArray[np.float64]

_CLIP_DRAWS = 0x636C6970
"""What the random numbers of clip starts are for, as part of their key."""
_TICK_TOLERANCE = 1e-3
"""A time that lies less than this part of a tick before a frame counts as on it: seconds as floats are not exact."""


def choose_frames(
    spec: VideoClips, pts: Int64Array, durations: Int64Array, time_base: Fraction, seed: int = 0
) -> Int64Array:
    """Returns which frames each clip has.

    Args:
        spec: The clips.
        pts: int64[n], presentation times of all shown frames in their order, in ticks.
        durations: int64[n], how long each is shown, in ticks.
        time_base: Seconds per tick.
        seed: Decides random starts.

    Returns:
        int64[num_clips, frames_per_clip], numbers of frames in presentation order.

    Raises:
        DecodeError: There are no frames, a clip starts outside the video, or it is too short and `spec.short` is
            "error".
    """
    if len(pts) == 0:
        raise DecodeError("The video has no frames")
    if spec.clip_duration_seconds is None:
        return _by_stride(spec, pts, durations, time_base, seed)
    first, end = stream_bounds(pts, durations, time_base)
    starts = choose_starts(spec, first, end, seed)
    if spec.short == "error":
        _refuse_short(starts + spec.clip_duration_seconds, end, f"{spec.clip_duration_seconds} s", time_base)
    offsets = np.arange(spec.frames_per_clip) * (spec.clip_duration_seconds / spec.frames_per_clip)
    return frames_shown_at(starts[:, None] + offsets, pts, time_base)


def choose_starts(spec: VideoClips, first: float, end: float, seed: int = 0) -> Float64Array:
    """Returns where each clip starts, in seconds.

    Args:
        spec: Clips with a duration (of their frames, or of their sound).
        first: Presentation time of the start of the stream, in seconds.
        end: Presentation time of its end.
        seed: Decides random starts.

    Returns:
        float64[num_clips].

    Raises:
        DecodeError: A start of `spec.at` lies outside the stream.
    """
    if spec.sampling == "at":
        starts = np.array(spec.at, np.float64)
        _check_inside(starts, first, end)
        return starts
    span = max(0.0, end - first - (spec.clip_duration_seconds or spec.audio_seconds))
    if spec.sampling == "uniform":
        return np.linspace(first, first + span, spec.num_clips)
    return first + span * np.sort(uniform(0, spec.num_clips, _CLIP_DRAWS, seed))


def frames_shown_at(seconds: Float64Array, pts: Int64Array, time_base: Fraction) -> Int64Array:
    """Returns which frame is shown at each time: the last one that starts there or before; the first before its start.

    Args:
        seconds: float64[...], presentation times.
        pts: int64[n], presentation times of the frames in ticks, ascending.
        time_base: Seconds per tick.

    Returns:
        int64[...], in 0 ... n - 1.
    """
    ticks = np.floor(seconds * (time_base.denominator / time_base.numerator) + _TICK_TOLERANCE)
    return np.clip(np.searchsorted(pts, ticks, side="right") - 1, 0, len(pts) - 1)


def stream_bounds(pts: Int64Array, durations: Int64Array, time_base: Fraction) -> tuple[float, float]:
    """Returns presentation time in seconds of the start of the first frame and of the end of the last."""
    return float(int(pts[0]) * time_base), float(int(pts[-1] + durations[-1]) * time_base)


def _by_stride(spec: VideoClips, pts: Int64Array, durations: Int64Array, time_base: Fraction, seed: int) -> Int64Array:
    stride = spec.stride or 1
    reach = (spec.frames_per_clip - 1) * stride
    span = max(0, len(pts) - 1 - reach)
    if spec.sampling == "at":
        seconds = np.array(spec.at, np.float64)
        _check_inside(seconds, *stream_bounds(pts, durations, time_base))
        starts = frames_shown_at(seconds, pts, time_base)
    elif spec.sampling == "uniform":
        starts = np.rint(np.linspace(0, span, spec.num_clips)).astype(np.int64)
    else:
        draws = np.sort(uniform(0, spec.num_clips, _CLIP_DRAWS, seed))
        starts = (draws * (span + 1)).astype(np.int64)
    if spec.short == "error" and int(starts.max()) + reach >= len(pts):
        raise DecodeError(
            f"A clip spans {reach + 1} frames and ends behind the last of {len(pts)} frames. Ask for shorter clips, or "
            'give VideoClips(short="repeat") to repeat the last frame'
        )
    frames: Int64Array = np.minimum(starts[:, None] + np.arange(spec.frames_per_clip) * stride, len(pts) - 1)
    return frames


def _check_inside(starts: Float64Array, first: float, end: float) -> None:
    outside = starts[(starts < first - 1e-6) | (starts >= end)]
    if len(outside):
        raise DecodeError(
            f"A clip was asked for at {outside[0]:g} s, and the stream lasts from {first:g} s to {end:g} s. Give "
            "starts inside it"
        )


def _refuse_short(ends: Float64Array, end: float, length: str, time_base: Fraction) -> None:
    if float(ends.max()) > end + float(time_base):
        raise DecodeError(
            f"A clip of {length} ends at {float(ends.max()):g} s, and the video at {end:g} s. Ask for shorter clips, "
            'or give VideoClips(short="repeat") to repeat the last frame'
        )
