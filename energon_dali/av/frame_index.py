"""Which frames a video shows, when, and where decoding must start for each: plain numbers, no file access."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NO_TIME = np.iinfo(np.int64).min
"""Marks a missing time stamp in a packet table."""
_NEAR_KEYS = 4
"""Key packets that are examined for each frame one by one; open GOPs need two."""
TOLERANCE_SECONDS = 1e-9
"""A time less than this before a frame counts as at the frame, because sums of floats miss time stamps slightly."""


@dataclass(frozen=True, slots=True, eq=False)
class PacketTable:
    """The packets of one stream in file order, which is decoding order."""

    pts: Int64s
    """Presentation time stamps in units of the stream; `NO_TIME` if missing."""
    dts: Int64s
    """Decoding time stamps; `NO_TIME` if missing."""
    durations: Int64s
    """Durations; 0 if unknown."""
    offsets: Int64s
    """Byte offsets in the file; -1 if unknown."""
    is_key: Bools
    """Whether decoding may start there: the container says so, and the codec's header does not contradict."""
    is_hidden: Bools
    """Whether it is decoded but not shown: outside the edit list, or marked so by the codec."""
    encoder_note: bytes = b""
    """Data that a decoder needs if it does not start at the first packet (`key_packets.find_encoder_note`)."""

    def __len__(self) -> int:
        return len(self.pts)


@dataclass(frozen=True, slots=True, eq=False)
class FrameIndex:
    """The frames that a video shows, in presentation order."""

    pts: Int64s
    """When each frame is shown, in units of `time_base`; never decreasing."""
    durations: Int64s
    """For how long, in units of `time_base`; 0 if the file does not say."""
    is_key: Bools
    """Whether decoding may start at this frame."""
    positions: Int64s
    """Index of the packet that contains the frame, in decoding order."""
    starts: Int64s
    """Index of the packet at which decoding must start to get this frame exactly."""
    time_base: Fraction
    """Seconds per unit."""
    packets: PacketTable
    """The packets that these indices refer to."""
    proven: bool = False
    """Whether the index was found by decoding every frame once, and not from the packets."""

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def times(self) -> npt.NDArray[np.float64]:
        """When each frame is shown, in seconds: float64 [frames], a new array."""
        return self.pts * self.time_base.numerator / self.time_base.denominator

    @property
    def start_seconds(self) -> float:
        """When the first frame is shown, in seconds; 0.0 without frames."""
        return self.seconds(0)[0] if len(self) else 0.0

    @property
    def end_seconds(self) -> float:
        """When the last frame ends, in seconds; 0.0 without frames."""
        return self.seconds(len(self) - 1)[1] if len(self) else 0.0

    def _start_seconds(self, frame: int) -> float:
        return int(self.pts[frame]) * self.time_base.numerator / self.time_base.denominator

    def seconds(self, frame: int) -> tuple[float, float]:
        """Returns when a frame starts and ends, in seconds.

        Args:
            frame: Its number; negative numbers count from the end.

        Raises:
            ConfigError: There is no such frame.
        """
        if not -len(self) <= frame < len(self):
            raise ConfigError(f"Frame {frame} was asked for. The video shows {len(self)} frames, counted from 0.")
        pts, duration = int(self.pts[frame]), int(self.durations[frame])
        return float(pts * self.time_base), float((pts + duration) * self.time_base)

    def frame_at(self, seconds: float) -> int:
        """Returns the number of the frame shown at a time: the last that starts at or before it, or the first."""
        # Not `times`: for a video of hours, an array of all frames takes milliseconds per clip.
        return max(0, bisect_right(range(len(self)), seconds + TOLERANCE_SECONDS, key=self._start_seconds) - 1)

    def range_of_seconds(self, start: float, end: float) -> tuple[int, int] | None:
        """Returns (first, last) of the frames shown from `start` through `end`, both inclusive; None if there are none.

        The first is the frame shown at `start` (or the first of the video if the range begins before it), and the last
        is the frame shown at `end`; (t, t) is one frame. There are none if the range begins at or after the end of the
        video, or ends before its first frame.

        Args:
            start: Presentation time in seconds; may be negative.
            end: Presentation time in seconds; `math.inf` for the end of the video.

        Raises:
            ConfigError: The range is reversed or contains NaN.
        """
        check_range(start, end, "seconds", end_is="included")
        if not len(self) or end + TOLERANCE_SECONDS < self.start_seconds:
            return None
        # A last frame without a duration is shown at least at its own time.
        after = max(self.end_seconds, math.nextafter(self._start_seconds(len(self) - 1), math.inf) + TOLERANCE_SECONDS)
        if start >= after:
            return None
        return self.frame_at(start), self.frame_at(end)

    def range_of_frames(self, start: float, end: float) -> tuple[int, int] | None:
        """Returns (first, last) of the frames numbered `start` through `end`, both inclusive; None if there are none.

        Args:
            start: Number of the first frame; may be negative, as a time before the start.
            end: Number of the last frame; `math.inf` for the last of the video.

        Raises:
            ConfigError: The range is reversed or contains NaN.
        """
        check_range(start, end, "frames", end_is="included")
        if end == -math.inf:
            return None
        last = len(self) - 1 if end == math.inf else min(int(end), len(self) - 1)
        first = 0 if start == -math.inf else max(0, int(start)) if start != math.inf else len(self)
        return (first, last) if first <= last else None


def order_by_time(packets: PacketTable) -> Int64s:
    """Returns the packets whose frames are shown, in the order of their presentation times: int64 [frames]."""
    shown = np.flatnonzero(~packets.is_hidden)
    return shown[np.argsort(packets.pts[shown], kind="stable")]


def list_frames(
    packets: PacketTable, positions: Int64s, pts: Int64s, time_base: Fraction, *, is_intra_only: bool, proven: bool
) -> FrameIndex:
    """Returns the index of frames whose packets and times are known.

    Args:
        packets: All packets of the stream.
        positions: Packet of each frame, in presentation order; int64 [frames].
        pts: When each frame is shown; int64 [frames].
        time_base: Seconds per unit.
        is_intra_only: Whether every packet can be decoded alone.
        proven: Whether a decoder returned the frames in this order. Otherwise `pts` are the times of the packets.
    """
    order, packet_order = pts, packets.pts
    if proven:
        order = np.arange(len(positions))
        packet_order = np.full(len(packets), len(positions), np.int64)
        packet_order[positions] = order
    starts = positions if is_intra_only else find_starts(positions, order, packets, packet_order)
    return FrameIndex(
        pts, packets.durations[positions], packets.is_key[positions], positions, starts, time_base, packets, proven
    )


def check_range(start: float, end: float, unit: str, *, end_is: Literal["included", "excluded"]) -> None:
    """Checks that a range begins before it ends.

    Raises:
        ConfigError: The range is reversed, or not made of numbers.
    """
    if math.isnan(start) or math.isnan(end) or end < start:
        raise ConfigError(
            f"The clip range ({start}, {end}) in {unit} was given. It begins before it ends, both are numbers, "
            f"and the end is {end_is}. Give (start, end) with start <= end."
        )


def find_starts(positions: Int64s, order: Int64s, packets: PacketTable, packet_order: Int64s) -> Int64s:
    """Returns the packet at which decoding must start for each frame: int64 [frames].

    That is the last key packet at or before the frame that is also shown no later. Frames that follow a key frame in
    the file and are shown before it (leading frames of an open GOP) refer to frames before the key frame.

    Args:
        positions: Packet of each frame, int64 [frames].
        order: Rank of each frame in time, int64 [frames].
        packets: The packets.
        packet_order: Rank of each packet in time, comparable with `order`; int64 [packets].
    """
    keys = np.flatnonzero(packets.is_key)
    if not len(keys):
        return np.zeros(len(positions), np.int64)
    key_order = packet_order[keys]
    at = np.searchsorted(keys, positions, side="right") - 1
    for _ in range(_NEAR_KEYS):
        late = (at >= 0) & (key_order[np.maximum(at, 0)] > order)
        if not late.any():
            break
        at[late] -= 1
    else:
        at = _last_at_most(key_order, at, order)
    return np.where(at >= 0, keys[np.maximum(at, 0)], 0)


def _last_at_most(values: Int64s, at: Int64s, most: Int64s) -> Int64s:
    """Returns the last index at or before `at` whose value is at most `most`, for each pair; -1 if there is none.

    Takes n log n steps, so that times without any order, as in a damaged file, cost no more.

    Args:
        values: int64 [keys].
        at: Where to begin, -1 for nowhere; int64 [n].
        most: int64 [n].
    """
    least = [values]  # of the 1, 2, 4, ... values up to and including each
    while 2 ** len(least) <= len(values):
        half = 2 ** (len(least) - 1)
        longer = least[-1].copy()
        longer[half:] = np.minimum(longer[half:], least[-1][:-half])
        least.append(longer)
    at = at.copy()
    for power in reversed(range(len(least))):
        beyond = (at >= 2**power - 1) & (least[power][np.maximum(at, 0)] > most)
        at[beyond] -= 2**power
    return at
