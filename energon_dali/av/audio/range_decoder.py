"""Decodes ranges of samples: near the start from the start, far from it by seeking, if that provably gives the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from energon_dali.av.audio.index import AudioIndex
from energon_dali.av.audio.packets import decode_frames, demux, read_channels, start_over
from energon_dali.av.container import MediaFile
from energon_dali.av.frame_index import NO_TIME
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.av.video.scan import Damaged

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame

Sound = npt.NDArray[Any]

_STATELESS = ("pcm_", "flac", "alac")
"""Codecs whose packets need nothing of the packets before them."""
_STATEFUL = ("pcm_dvd",)
"""Those of them that do: blocks of samples go over the ends of packets."""
_WARM_UP_SECONDS = 1.0
"""How long before a range its decoding begins. MP3 needs 0.15 s to be bit-exact, Opus 0.7 s."""


class IndexWrongError(Exception):
    """A packet gave another number of samples than the index says."""


@dataclass(slots=True, eq=False)
class AudioRange:
    """A range of samples on its way."""

    start: int
    """Its first sample."""
    stop: int
    """The sample after its last."""
    samples: Sound
    """[channels, stop - start]; filled by the feed."""
    filled: int = 0
    """How many samples are there."""


class RangeDecoder:
    """Fills ranges of samples from one stream; lives during one call, inside `MediaFile.opened`.

    Args:
        file: The file.
        facts: Its audio stream.
        index: The samples of the stream.
        damaged: "partial" passes over packets that cannot be decoded.
        exact: See `AudioReader`.
    """

    def __init__(
        self, file: MediaFile, facts: StreamFacts, index: AudioIndex, *, damaged: Damaged, exact: bool
    ) -> None:
        self.file = file
        self.facts = facts
        self.index = index
        self._tolerant = damaged == "partial"
        self._exact = exact
        self._starts: list[int] = index.starts.tolist()
        self._number = -1
        """The packet whose frames come."""
        self._next = 0
        """The sample that the next of them begins with."""

    def fill(self, parts: list[AudioRange]) -> None:
        """Decodes the samples of all parts: near the start from the start, far from it with a warm-up."""
        waiting = [part for part in parts if part.stop > part.start]
        if not waiting:
            return
        stateless = self.facts.codec.startswith(_STATELESS) and self.facts.codec not in _STATEFUL
        warm_up = 0 if stateless else int(_WARM_UP_SECONDS * self.index.rate)
        # Twice the warm-up and twice the range, because two decodes must agree.
        effort = sum((1 if stateless else 2) * (part.stop - part.start) + 3 * warm_up for part in waiting)
        if effort < max(part.stop for part in waiting) and not self._tolerant:
            waiting = [
                part for part in waiting if not self._fill_far(part, warm_up, twice=not stateless and self._exact)
            ]
        if waiting:
            self._decode_from_start(waiting)

    def _fill_far(self, part: AudioRange, warm_up: int, *, twice: bool) -> bool:
        """Returns whether the part was filled from a seek on, provably as a decode from the start would.

        Two decodes that begin at different packets agree on a range only where nothing before it matters any more. The
        state that a flush leaves as it is (the noise generator of AAC) has moved on between them, if the range used it.
        """
        if not self._decode_from(part.start - 2 * warm_up if twice else part.start - warm_up, part):
            return False
        if twice:
            second = AudioRange(part.start, part.stop, np.empty_like(part.samples))
            if not self._decode_from(part.start - warm_up, second):
                return False
            return part.samples.tobytes() == second.samples.tobytes()
        return True

    def _decode_from(self, sample: int, part: AudioRange) -> bool:
        """Decodes a part from the packet on that holds `sample`; returns whether all went as the index says."""
        from av.error import FFmpegError

        index = self.index
        first = max(0, int(np.searchsorted(index.starts, sample, side="right")) - 1)
        if index.pts[first] == NO_TIME:
            return False
        position = self.facts.position
        container = self.file.container
        stream = container.streams[position]
        self.file.select(stream)
        context = stream.codec_context
        number, part.filled, self._number = -1, 0, -1
        try:
            container.seek(int(index.pts[first]), stream=stream)
            for packet in demux(self.file, position):
                number = number + 1 if number >= 0 else _number_of(packet, index, first)
                if number < 0 or (number > first and index.pts[number] != packet.pts):
                    return False
                if number < first:
                    number = -1
                    continue
                packet.opaque = number
                for frame in decode_frames(context, packet):
                    self._place(frame, [part])
                if part.filled == part.stop - part.start:
                    return True
            for frame in decode_frames(context, None):
                self._place(frame, [part])
        except (FFmpegError, IndexWrongError, EOFError):
            return False
        return part.filled == part.stop - part.start

    def _decode_from_start(self, parts: list[AudioRange]) -> None:
        """Decodes from the first packet to the last that a part needs, with a fresh decoder.

        Raises:
            DecodeError: A packet cannot be decoded.
        """
        tolerant = self._tolerant
        context, packets = start_over(self.file, self.facts, tolerant=tolerant)
        self._number, self._next = -1, 0
        for part in parts:
            part.filled = 0
        last = max(part.stop for part in parts)
        for number, packet in enumerate(packets):
            packet.opaque = number
            for frame in decode_frames(context, packet, tolerant=tolerant):
                self._place(frame, parts)
            if self._next >= last and all(part.filled == part.stop - part.start for part in parts):
                return
        for frame in decode_frames(context, None, tolerant=tolerant):
            self._place(frame, parts)
        if any(part.filled != part.stop - part.start for part in parts):
            raise IndexWrongError

    def _place(self, frame: AudioFrame, parts: list[AudioRange]) -> None:
        """Copies what parts want of a decoded frame.

        Raises:
            IndexWrongError: A wanted packet gave other samples than the index says.
        """
        index, number = self.index, int(frame.opaque)  # type: ignore[call-overload]
        if number != self._number:
            self._number, self._next = number, self._starts[number]
        start, self._next = self._next, self._next + frame.samples
        samples: Sound | None = None
        for part in parts:
            low, high = max(start, part.start), min(self._next, part.stop)
            if low >= high:
                continue
            if samples is None:
                samples = read_channels(frame)
                fits = samples.shape[0] == index.channels and samples.dtype == index.dtype
                if not fits or self._next > self._starts[number + 1] or frame.sample_rate != index.rate:
                    raise IndexWrongError
            part.samples[:, low - part.start : high - part.start] = samples[:, low - start : high - start]
            part.filled += high - low


def _number_of(packet: Any, index: AudioIndex, near: int) -> int:
    """Returns the number of the packet that a seek led to, -1 if it cannot be told."""
    found = np.flatnonzero(
        (index.pts == (NO_TIME if packet.pts is None else packet.pts)) & (index.sizes == packet.size)
    )
    return int(found[0]) if len(found) == 1 and found[0] <= near else -1
