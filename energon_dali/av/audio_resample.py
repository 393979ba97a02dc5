"""Converts audio to another sample rate and number of channels, so that clips are slices of the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.av.audio_index import AudioIndex
from energon_dali.av.audio_packets import MOST_PLANES
from energon_dali.errors import ConfigError

MAX_CHANNELS = 8
"""FFmpeg has a default layout for up to this many."""
_FILTER_TAPS = 32
"""Length of swresample's filter, in samples of the lower of the two rates."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """The format that audio is converted to.

    Raises:
        ConfigError: A number is not positive, or there are too many channels.
    """

    sample_rate: int | None = None
    """Samples per second; None keeps the stream's."""
    channels: int | None = None
    """Number of channels, in FFmpeg's default layout (1 mono, 2 stereo, 6 is 5.1); None keeps the stream's."""

    def __post_init__(self) -> None:
        if self.sample_rate is not None and not is_count(self.sample_rate):
            raise ConfigError(
                f"sample_rate={self.sample_rate!r} was given. Give samples per second, such as 16000, or None."
            )
        if self.channels is not None and not (is_count(self.channels) and self.channels <= MAX_CHANNELS):
            raise ConfigError(f"audio_channels={self.channels!r} was given. Give 1 to {MAX_CHANNELS}, or None.")

    def changes(self, index: AudioIndex) -> bool:
        """Returns whether the audio of a stream must be converted at all."""
        return self.sample_rate not in (None, index.rate) or self.channels not in (None, index.channels)

    def plan(self, span: tuple[int, int], index: AudioIndex) -> tuple[int, int]:
        """Returns (first, stop) of the samples of the stream that are needed for samples `span` at the wanted rate.

        The first is far enough before the span, and at a position where the filter has the same phase as at the start
        of the stream.
        """
        step_in, step_out = _steps(self, index)
        if step_in == step_out or span[0] == span[1]:
            start = min(span[0] * step_in // step_out, len(index))
            return start, start + span[1] - span[0]
        margin = _margin(step_in, step_out)
        start = max(0, (span[0] // step_out - math.ceil(margin / step_in)) * step_in)
        return start, min(len(index), -(-span[1] * step_in // step_out) + margin)


def is_count(value: object) -> bool:
    """Returns whether a value is an integer of at least 1, of any library."""
    return isinstance(value, Integral) and int(value) >= 1


def resample_part(
    samples: npt.NDArray[Any], start: int, span: tuple[int, int], index: AudioIndex, wanted: AudioFormat
) -> npt.NDArray[Any]:
    """Returns samples `span` of the wanted format: [channels, span], of the same type; a new array or a view of one.

    Args:
        samples: The samples that `AudioFormat.plan` asked for, [channels, samples].
        start: Number of its first sample.
        span: (first, stop) at the wanted rate.
        index: The stream.
        wanted: The format to convert to.
    """
    channels = wanted.channels or index.channels
    if span[0] == span[1]:
        return np.empty((channels, 0), samples.dtype)
    step_in, step_out = _steps(wanted, index)
    if step_in != step_out and samples.shape[1] < _margin(step_in, step_out):
        # For a stream shorter than the filter swresample returns too few samples.
        padding = _margin(step_in, step_out) - samples.shape[1]
        samples = np.pad(samples, ((0, 0), (0, padding)), constant_values=128 if samples.dtype == np.uint8 else 0)
    result = np.concatenate(_convert(samples, index, wanted), axis=1)
    before = span[0] - start // step_in * step_out
    return result[:, before : before + span[1] - span[0]]


def _margin(step_in: int, step_out: int) -> int:
    """Returns the number of samples on either side that a resampled one depends on, plus one."""
    return _FILTER_TAPS * max(1, math.ceil(step_in / step_out)) + 1


def _convert(samples: npt.NDArray[Any], index: AudioIndex, wanted: AudioFormat) -> list[npt.NDArray[Any]]:
    import av

    kind = av.AudioFormat(index.sample_format)
    if max(index.channels, wanted.channels or 0) > MOST_PLANES:
        kind = kind.packed
    planar = kind.is_planar
    layout = index.layout
    if layout.endswith(" channels"):  # of unknown places: FFmpeg's default ones, if there are some for as many
        layout = f"{index.channels}{'c' if index.channels <= MAX_CHANNELS else 'C'}"
    resampler = av.AudioResampler(
        format=kind.name,
        layout=layout if wanted.channels is None else f"{wanted.channels}c",
        rate=wanted.sample_rate or index.rate,
    )
    packed = samples if planar else samples.T.reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(packed), format=kind.name, layout=layout)
    frame.sample_rate, frame.pts, frame.time_base = index.rate, 0, Fraction(1, index.rate)
    frames = [*resampler.resample(frame), *resampler.resample(None)]
    return [
        piece.to_ndarray() if planar else piece.to_ndarray().reshape(piece.samples, -1).T
        for piece in frames
        if piece is not None and piece.samples
    ]


def _steps(wanted: AudioFormat, index: AudioIndex) -> tuple[int, int]:
    """Returns the smallest numbers of samples before and after conversion with the same duration."""
    rate = wanted.sample_rate or index.rate
    common = math.gcd(rate, index.rate)
    return index.rate // common, rate // common
