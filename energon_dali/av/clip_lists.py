"""Reads lists of clips: each range becomes one tensor with its times, in the order of the ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from energon_dali.av.audio_reader import AudioReader, AudioUnit
from energon_dali.av.container import ROUTE
from energon_dali.av.video_reader import VideoReader
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    import torch

VideoUnit = Literal["seconds", "frames"]
Missing = Literal["error", "empty", "drop"]
ClipRange = tuple[float, float]
WHOLE: list[ClipRange] = [(0, math.inf)]
"""From the first frame or sample to the last."""
Clips = tuple[list["torch.Tensor"], list[tuple[float, float]]]


def read_video_clips(
    reader: VideoReader,
    ranges: Sequence[ClipRange],
    unit: VideoUnit,
    size: tuple[int, int] | None,
    upright: bool,
    missing: Missing,
) -> Clips:
    """Returns (clips, timestamps) of a video; `AVDecoder.get_video_clips` says what they are.

    Frames shared by several clips are decoded once.

    Raises:
        ConfigError: A range is reversed or not numeric, or the unit or size is wrong.
        DecodeError: There is no video, nothing in a range, or it cannot be decoded within the limits.
    """
    import torch

    index = reader.index
    pairs = check_ranges(ranges)
    spans = find_spans(reader, pairs, unit)
    if missing == "error" and None in spans:
        what = f"{len(index)} frames, from {index.start_seconds:g} s to {index.end_seconds:g} s"
        raise _nothing_there(pairs[spans.index(None)], unit, "video", what, reader.facts.codec)
    if missing == "drop":
        found = [(span, pair) for span, pair in zip(spans, pairs, strict=True) if span is not None]
        spans, pairs = [span for span, _ in found], [pair for _, pair in found]
    wanted = [np.arange(first, last + 1) for first, last in (span or (0, -1) for span in spans)]
    frames = reader.read(np.concatenate([*wanted, np.zeros(0, np.int64)]), size, upright=upright)
    edges = np.cumsum([0, *map(len, wanted)])
    clips, timestamps = [], []
    for number, (span, asked) in enumerate(zip(spans, pairs, strict=True)):
        clip = frames[edges[number] : edges[number + 1]]
        if len(clip) < len(frames):
            clip = clip.copy()  # a clip that is kept or sent must not keep the others alive
        clips.append(torch.from_numpy(np.ascontiguousarray(clip)).permute(0, 3, 1, 2))
        if span is None:
            ends = (index.start_seconds, index.end_seconds)
            timestamps.append(asked if unit == "seconds" else _times_outside(asked, len(index), ends))
        else:
            timestamps.append((index.seconds(span[0])[0], index.seconds(span[1])[1]))
    return clips, timestamps


def find_spans(reader: VideoReader, ranges: Sequence[ClipRange], unit: VideoUnit) -> list[tuple[int, int] | None]:
    """Returns (first, last) frame of each range, None where there are none.

    Raises:
        ConfigError: A range is reversed, or the unit is wrong.
        DecodeError: There is no video, or it cannot be read.
    """
    if unit not in ("seconds", "frames"):
        raise ConfigError(f'video_unit={unit!r} is unknown. Choose "seconds" or "frames".')
    index = reader.index
    find = index.range_of_seconds if unit == "seconds" else index.range_of_frames
    return [find(start, end) for start, end in ranges]


def read_audio_clips(reader: AudioReader, ranges: Sequence[ClipRange], unit: AudioUnit, missing: Missing) -> Clips:
    """Returns (clips, timestamps) of audio; `AVDecoder.get_audio_clips` says what they are.

    Raises:
        ConfigError: A range is reversed or not numeric, or the unit is wrong.
        DecodeError: There is no audio, nothing in a range, or it cannot be decoded within the limits.
    """
    import torch

    pairs = check_ranges(ranges)
    found = reader.read_clips(pairs, unit)
    index = reader.index
    clips, timestamps = [], []
    for asked, clip in zip(pairs, found, strict=True):
        if clip is not None:
            clips.append(torch.from_numpy(np.ascontiguousarray(clip.samples)))
            timestamps.append((clip.start_seconds, clip.end_seconds))
            continue
        if missing == "error":
            what = f"{reader.num_samples} samples, from {index.start_seconds:g} s to {index.end_seconds:g} s"
            raise _nothing_there(asked, unit, "audio", what, reader.facts.codec)
        if missing == "drop":
            continue
        clips.append(torch.from_numpy(np.empty((reader.channels, 0), index.dtype)))
        ends = (index.start_seconds, index.end_seconds)
        timestamps.append(asked if unit == "seconds" else _times_outside(asked, reader.num_samples, ends))
    return clips, timestamps


def check_ranges(ranges: Any) -> list[ClipRange]:
    """Returns clip ranges as pairs of floats; numbers of numpy and torch are accepted.

    Raises:
        ConfigError: They are not pairs of numbers, for example a single range outside a list.
    """
    try:
        pairs = [(start, end) for start, end in ranges]
        if any(isinstance(number, (str, bytes)) for pair in pairs for number in pair):
            raise TypeError
        return [(float(start), float(end)) for start, end in pairs]
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last of these
        raise ConfigError(
            f"The clip ranges {ranges!r} were given. They are pairs of numbers, one pair for each clip. "
            "Give a list such as [(0, 2), (4, 6)]."
        ) from error


def _times_outside(asked: ClipRange, count: int, ends: tuple[float, float]) -> tuple[float, float]:
    """Returns the times for frames or samples that do not exist: the start or the end of the stream."""
    return (ends[1], ends[1]) if asked[0] >= count else (ends[0], ends[0])


def _nothing_there(asked: ClipRange, unit: str, kind: str, what: str, codec: str) -> DecodeError:
    return DecodeError(
        f"Nothing of the {kind} is in the clip range ({asked[0]:g}, {asked[1]:g}) in {unit}: it has {what}. Ask for "
        'what exists, or give missing="empty" to get a clip of length 0 instead',
        codec,
        ROUTE,
    )
