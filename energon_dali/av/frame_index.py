"""Which frames a video shows, when, and from where each can be decoded: plain numbers, no file."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NO_TIME = np.iinfo(np.int64).min
"""Stands in a packet table for a time stamp that the file does not give."""
TOLERANCE_SECONDS = 1e-9
"""A time this little before a frame counts as at it: sums of floats do not meet time stamps exactly."""


@dataclass(frozen=True, slots=True, eq=False)
class PacketTable:
    """The packets of one stream in the order of the file, which is the order of decoding."""

    pts: Int64s
    """Presentation time stamps in units of the stream; `NO_TIME` where there is none."""
    dts: Int64s
    """Decoding time stamps; `NO_TIME` where there is none."""
    durations: Int64s
    """Durations; 0 where unknown."""
    offsets: Int64s
    """Places in the file, in bytes; -1 where unknown."""
    is_key: Bools
    """Whether decoding may begin there: the container says so, and the codec's own header does not object."""
    is_hidden: Bools
    """Whether it is decoded but not shown: outside the edit list, or so marked by the codec."""
    encoder_note: bytes = b""
    """What a decoder that does not begin with the first packet must be told (`key_packets.find_encoder_note`)."""

    def __len__(self) -> int:
        return len(self.pts)


@dataclass(frozen=True, slots=True, eq=False)
class FrameIndex:
    """The frames that a video shows, in the order in which it shows them."""

    pts: Int64s
    """When each frame is shown, in units of `time_base`; never falling."""
    durations: Int64s
    """For how long, in units of `time_base`; 0 where the file does not say."""
    is_key: Bools
    """Whether decoding may begin at this frame."""
    positions: Int64s
    """Number of the packet that gives the frame, in the order of decoding."""
    starts: Int64s
    """Number of the packet from which on decoding gives this frame exactly."""
    time_base: Fraction
    """Seconds per unit."""
    packets: PacketTable
    """The packets that the numbers refer to."""
    proven: bool = False
    """Whether every frame was decoded once to find this out; else it was told by the packets."""

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
        # Not `times`: an array of all frames for each clip takes milliseconds where the video lasts hours.
        return max(0, bisect_right(range(len(self)), seconds + TOLERANCE_SECONDS, key=self._start_seconds) - 1)

    def range_of_seconds(self, start: float, end: float) -> tuple[int, int] | None:
        """Returns (first, last) of the frames shown from `start` through `end`, both inclusive; None if there are none.

        The first is the frame shown at `start` (the very first if the range begins before it), the last the one
        shown at `end`; (t, t) is one frame. There are none where the range begins at or after the end of the video,
        or ends before its first frame.

        Args:
            start: Presentation time in seconds; may be negative.
            end: Presentation time in seconds; `math.inf` for the end of the video.

        Raises:
            ConfigError: The range is reversed, or not made of numbers.
        """
        if math.isnan(start) or math.isnan(end) or end < start:
            raise ConfigError(
                f"The clip range ({start}, {end}) in seconds was given. It begins before it ends, both are numbers, "
                "and the end is included. Give (start, end) with start <= end."
            )
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
            ConfigError: The range is reversed, or not made of numbers.
        """
        if math.isnan(start) or math.isnan(end) or end < start:
            raise ConfigError(
                f"The clip range ({start}, {end}) in frames was given. It begins before it ends, both are numbers, "
                "and the end is included. Give (first, last) with first <= last."
            )
        if end == -math.inf:
            return None
        last = len(self) - 1 if end == math.inf else min(int(end), len(self) - 1)
        first = 0 if start == -math.inf else max(0, int(start)) if start != math.inf else len(self)
        return (first, last) if first <= last else None


def find_starts(positions: Int64s, order: Int64s, packets: PacketTable, packet_order: Int64s) -> Int64s:
    """Returns for each frame the packet where decoding begins: int64 [frames].

    That is the last key packet at or before it that is also shown no later: frames shown before a key frame that
    precedes them in the file (leading frames of an open group of pictures) refer to what came before the key frame.

    Args:
        positions: Packet of each frame, int64 [frames].
        order: Rank in time of each frame, int64 [frames].
        packets: The packets.
        packet_order: Rank in time of each packet, comparable with `order`; int64 [packets].
    """
    keys = np.flatnonzero(packets.is_key)
    if not len(keys):
        return np.zeros(len(positions), np.int64)
    at = np.searchsorted(keys, positions, side="right") - 1
    while True:
        late = (at >= 0) & (packet_order[keys[np.maximum(at, 0)]] > order)
        if not late.any():
            return np.where(at >= 0, keys[np.maximum(at, 0)], 0)
        at[late] -= 1
