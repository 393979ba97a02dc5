"""Which samples each packet of an audio stream contains, and when they are heard: plain numbers, no file access."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_dali.av.frame_index import Int64s, check_range

GAP_SECONDS = 0.01
"""A packet further than this from the end of the samples before it starts a new span. Matroska rounds times to 1 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class AudioIndex:
    """The samples of a stream as a decode from its first packet to its last returns them, counted from 0.

    Where the header states the number of samples (`find_stated_audio`), no packet is listed, and
    `starts` has two numbers.
    """

    starts: Int64s
    """First sample of each packet, then the number of all samples. int64 [packets + 1]."""
    pts: Int64s
    """Time stamp of each packet, in units of the stream; `NO_TIME` if missing. int64 [packets]."""
    sizes: Int64s
    """Bytes of each packet, int64 [packets]."""
    rate: int
    """Samples per second."""
    channels: int
    """Number of channels."""
    layout: str
    """FFmpeg's name of the channel layout."""
    sample_format: str
    """FFmpeg's name of the type of the samples, such as "fltp"."""
    dtype: np.dtype[np.generic]
    """Type of the samples."""
    span_starts: Int64s
    """First sample of each uninterrupted span; a single span if the audio has no gaps. int64 [spans]."""
    span_seconds: npt.NDArray[np.float64]
    """When each span begins, in seconds, increasing: float64 [spans]."""
    proven: bool = False
    """Whether the index was found by decoding all packets once, and not from the packets."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def start_seconds(self) -> float:
        """When the first sample is heard."""
        return float(self.span_seconds[0])

    @property
    def end_seconds(self) -> float:
        """When the last sample ends."""
        return self.seconds(len(self))

    def seconds(self, position: float) -> float:
        """Returns when a sample is heard.

        Args:
            position: Index of the sample, possibly fractional.
        """
        span = max(0, int(np.searchsorted(self.span_starts, position, side="right")) - 1)
        return float(self.span_seconds[span] + (position - int(self.span_starts[span])) / self.rate)

    def position(self, seconds: float) -> float:
        """Returns the (fractional) sample index of a time: negative before the first; a gap has a single index."""
        span = max(0, int(np.searchsorted(self.span_seconds, seconds, side="right")) - 1)
        position = int(self.span_starts[span]) + (seconds - float(self.span_seconds[span])) * self.rate
        if span + 1 < len(self.span_starts):
            position = min(position, float(self.span_starts[span + 1]))
        return position

    def range_of_seconds(self, start: float, end: float, rate: int | None = None) -> tuple[int, int] | None:
        """Returns (first, stop) of the samples from `start` to `end`, stop exclusive; None if there are none.

        The first is the one nearest to `start`, and there are `round((end - start) * rate)` of them, unless the stream
        begins or ends in between. An empty range inside the stream returns (first, first).

        Args:
            start: In seconds.
            end: In seconds, `math.inf` for the end of the stream.
            rate: Samples per second at which to count; None for the stream's own.

        Raises:
            ConfigError: The range is reversed or contains NaN.
        """
        check_range(start, end, "seconds", end_is="excluded")
        scale = 1.0 if rate is None else rate / self.rate
        total = self.count_at(rate)
        if start == math.inf or end == -math.inf:
            return None
        first = -math.inf if start == -math.inf else math.floor(self.position(start) * scale + 0.5)
        if end == math.inf:
            return _clip(first, total, total, is_empty=False)
        stop = math.floor(self.position(end) * scale + 0.5)
        spans = np.maximum(np.searchsorted(self.span_seconds, (start, end), side="right"), 1)
        if math.isfinite(first) and spans[0] == spans[1]:
            stop = int(first) + math.floor((end - start) * self.rate * scale + 0.5)
            if spans[1] < len(self.span_starts):  # not past the gap
                stop = min(stop, math.floor(int(self.span_starts[spans[1]]) * scale + 0.5))
        return _clip(first, stop, total, is_empty=start == end)

    def range_of_samples(self, start: float, stop: float, rate: int | None = None) -> tuple[int, int] | None:
        """Returns (first, stop) of the samples numbered `start` to `stop`, stop exclusive; None if there are none.

        Args:
            start: First sample, counted from 0.
            stop: Last sample, exclusive; `math.inf` for all.
            rate: Samples per second at which to count; None for the stream's own.

        Raises:
            ConfigError: The range is reversed or contains NaN.
        """
        check_range(start, stop, "samples", end_is="excluded")
        total = self.count_at(rate)
        if start == math.inf or stop == -math.inf:
            return None
        last = total if stop == math.inf else int(stop)
        first = start if start == -math.inf else int(start)
        return _clip(first, last, total, is_empty=start == stop)

    def count_at(self, rate: int | None) -> int:
        """Returns the number of samples of the whole stream at a rate; the first keeps its time."""
        return len(self) if rate is None else len(self) * rate // self.rate


def find_spans(starts: Int64s, seconds: npt.NDArray[np.float64], rate: int) -> tuple[Int64s, npt.NDArray[np.float64]]:
    """Returns (first sample, time) of each uninterrupted span.

    Args:
        starts: First sample of some packets, increasing; int64 [n], n > 0.
        seconds: When they are heard, NaN if unknown; float64 [n].
        rate: Samples per second.
    """
    known = ~np.isnan(seconds)
    starts, seconds = starts[known], seconds[known]
    if not len(starts):
        return np.zeros(1, np.int64), np.zeros(1)
    offsets = seconds - starts / rate  # constant as long as nothing is missing
    spans = [(0, float(offsets[0]))]
    at = 0
    while True:
        apart = np.flatnonzero(np.abs(offsets[at:] - spans[-1][1]) > GAP_SECONDS)
        if not len(apart):
            break
        at += int(apart[0])
        start, time = int(starts[at]), float(seconds[at])
        if time >= spans[-1][1] + start / rate:  # late samples open a gap; early ones cannot overlap
            spans.append((start, float(offsets[at])))
        else:
            offsets[at] = spans[-1][1]
    return (
        np.array([start for start, _ in spans], np.int64),
        np.array([offset + start / rate for start, offset in spans]),
    )


def _clip(first: float, stop: float, total: int, *, is_empty: bool) -> tuple[int, int] | None:
    inside = (int(max(first, 0)), int(min(stop, total)))
    if is_empty:
        return (inside[0], inside[0]) if 0 <= first < total else None
    return inside if inside[0] < inside[1] else None
