"""Decodes ranges of samples that equal those of a full decode bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from energon_dali.av.audio_index import AudioIndex
from energon_dali.av.audio_packets import AudioRange, IndexWrongError, RangeDecoder
from energon_dali.av.audio_resample import AudioFormat, resample_part
from energon_dali.av.audio_scan import scan_audio
from energon_dali.av.container import ROUTE, MediaFile, translated_errors
from energon_dali.av.stated_audio import fill_stated
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.av.video_scan import Damaged
from energon_dali.errors import ConfigError, DecodeError

Samples = npt.NDArray[Any]
AudioUnit = Literal["seconds", "samples"]


@dataclass(frozen=True, slots=True, eq=False)
class AudioClip:
    """The samples of a range."""

    samples: Samples
    """[channels, samples] in the codec's sample type; a new array."""
    start_seconds: float
    """When the first sample is heard."""
    end_seconds: float
    """When the last sample ends."""


class AudioReader:
    """The first audio stream of a file.

    Args:
        file: The file; not closed by this.
        sample_rate: Resamples to this many samples per second; None keeps the stream's rate.
        channels: Mixes to this many channels; None keeps the stream's.
        damaged: "error": a packet that cannot be decoded raises. "partial": the audio is what can be decoded.
        exact: If a decoder's state depends on more than the last second (noise of AAC), decodes from the start of the
            file, so that a range equals a slice of the whole bit for bit. False starts at most one second earlier, and
            that noise may differ.

    Raises:
        ConfigError: The rate or the number of channels is not positive, or `damaged` is unknown.
    """

    def __init__(
        self,
        file: MediaFile,
        *,
        sample_rate: int | None = None,
        channels: int | None = None,
        damaged: Damaged = "error",
        exact: bool = True,
    ) -> None:
        if damaged not in ("error", "partial"):
            raise ConfigError(f'damaged={damaged!r} is unknown. Choose "error" or "partial".')
        self.file = file
        self.wanted = AudioFormat(sample_rate, channels)
        self.damaged: Damaged = damaged
        self.exact = exact

    @property
    def facts(self) -> StreamFacts:
        """Facts about the stream.

        Raises:
            DecodeError: The file cannot be opened, or has no audio stream that can be decoded, or it is encrypted.
        """
        return self.file.decodable_stream("audio")

    @property
    def index(self) -> AudioIndex:
        """The samples of the stream, determined once per file.

        Raises:
            DecodeError: The file cannot be read.
        """
        key = ("audio_index", self.damaged)
        return self.file.found(key, lambda: scan_audio(self.file, self.facts, damaged=self.damaged))

    def use_index(self, index: AudioIndex) -> None:
        """Uses an index that was found for the same file before, or without packets, instead of reading its packets."""
        self.file.cache.setdefault(("audio_index", self.damaged), index)

    @property
    def sample_rate(self) -> int:
        """Samples per second of what is read."""
        return self.wanted.sample_rate or self.index.rate

    @property
    def channels(self) -> int:
        """Channels of what is read."""
        return self.wanted.channels or self.index.channels

    @property
    def num_samples(self) -> int:
        """Number of samples of the whole stream, at `sample_rate`."""
        return self.index.count_at(self._rate(self.index))

    def read(self, start: int, stop: int) -> Samples:
        """Returns samples `start` to `stop` (exclusive), counted from 0: [channels, samples], a new array.

        Raises:
            ConfigError: The range is reversed.
            DecodeError: The stream has no sample there, or cannot be decoded, or it is beyond the limits.
        """
        (clip,) = self.read_clips([(start, stop)], "samples")
        if clip is None:
            raise DecodeError(f"There are no samples {start} to {stop}: the audio has {len(self.index)}", "", ROUTE)
        return clip.samples

    def read_clips(self, ranges: Sequence[tuple[float, float]], unit: AudioUnit = "seconds") -> list[AudioClip | None]:
        """Returns the samples of each range; None for a range without samples.

        Args:
            ranges: (start, end), in samples counted from 0 with the end excluded, or in seconds as in
                `AudioIndex.range_of_seconds`.
            unit: "seconds" or "samples", the latter at the rate of what is read.

        Raises:
            ConfigError: A range is reversed or the unit unknown.
            DecodeError: The stream cannot be decoded, or the samples are beyond the limits.
        """
        if unit not in ("seconds", "samples"):
            raise ConfigError(f'audio_unit={unit!r} is unknown. Choose "seconds" or "samples".')
        try:
            return self._read_clips(ranges, unit)
        except IndexWrongError:
            index = scan_audio(self.file, self.facts, damaged=self.damaged, decode_all=True)
            self.file.cache[("audio_index", self.damaged)] = index
        try:
            return self._read_clips(ranges, unit)
        except IndexWrongError as error:
            raise DecodeError(
                "Its rate, channels or type of samples change in the middle, or decoding it twice differs. "
                "It is several files concatenated, or damaged. Encode it again",
                self.facts.codec,
                ROUTE,
            ) from error

    def check(self) -> None:
        """Decodes every sample and keeps none: takes as long as a full decode, and only the memory of a decoder.

        Raises:
            DecodeError: A packet cannot be decoded.
        """
        index: AudioIndex | None = self.file.cache.get(("audio_index", self.damaged))
        if index is None or not index.proven:  # otherwise everything was decoded to count the samples
            scan_audio(self.file, self.facts, damaged=self.damaged, decode_all=True)

    def _read_clips(self, ranges: Sequence[tuple[float, float]], unit: AudioUnit) -> list[AudioClip | None]:
        index = self.index
        found = self._find(ranges, unit, index)
        plans = [self.wanted.plan(span, index) for span in found if span is not None]
        self._check_size(plans, index, decoded=True)
        parts = [AudioRange(*plan, np.empty((index.channels, plan[1] - plan[0]), index.dtype)) for plan in plans]
        with self.file.used():
            if len(index.pts):
                self._decoder(index).fill(parts)
            else:
                fill_stated(self.file, index, parts)
        following = iter(parts)
        return [None if span is None else self._finish(next(following), span, index) for span in found]

    def _find(
        self, ranges: Sequence[tuple[float, float]], unit: AudioUnit, index: AudioIndex
    ) -> list[tuple[int, int] | None]:
        """Returns (first, stop) of the samples of each range, at the rate of what is read; None for none."""
        rate = self._rate(index)
        find = index.range_of_seconds if unit == "seconds" else index.range_of_samples
        found = [find(start, end, rate) for start, end in ranges]
        self._check_size([span for span in found if span is not None], index)
        return found

    def _decoder(self, index: AudioIndex) -> RangeDecoder:
        return RangeDecoder(self.file, self.facts, index, damaged=self.damaged, exact=self.exact)

    def packets_of(self, ranges: Sequence[tuple[float, float]], unit: AudioUnit = "seconds") -> list[tuple[int, int]]:
        """Returns the packets that `read_clips` decodes, as runs (first, last).

        Args:
            ranges: As for `read_clips`.
            unit: "seconds" or "samples".

        Raises:
            ConfigError: A range is reversed.
            DecodeError: The stream cannot be read, or the samples are beyond the limits.
        """
        index = self.index
        plans = [self.wanted.plan(span, index) for span in self._find(ranges, unit, index) if span is not None]
        none = np.empty((0, 0), index.dtype)
        return self._decoder(index).packets_of([AudioRange(*plan, none) for plan in plans])

    def _finish(self, part: AudioRange, span: tuple[int, int], index: AudioIndex) -> AudioClip:
        """Returns the clip of samples `span` from samples of the stream."""
        samples = part.samples
        if self.wanted.changes(index):
            try:
                with translated_errors(self.file.format):
                    samples = resample_part(samples, part.start, span, index, self.wanted)
            except DecodeError as error:
                raise DecodeError(
                    f"FFmpeg cannot bring {index.channels} channels ({index.layout}) at {index.rate} Hz to "
                    f"{self.channels} at {self.sample_rate} Hz. Leave out the number of channels, and mix yourself",
                    self.facts.codec,
                    ROUTE,
                ) from error
        scale = index.rate / self.sample_rate
        start = index.seconds(span[0] * scale)
        if len(index.span_starts) > 1:  # the sample after the last one may be heard only after a gap
            end = index.seconds((span[1] - 1) * scale) + 1 / self.sample_rate if span[0] < span[1] else start
            return AudioClip(samples, start, end)
        return AudioClip(samples, start, index.start_seconds + span[1] / self.sample_rate)

    def _rate(self, index: AudioIndex) -> int | None:
        """Returns the rate at which samples are counted, None for the stream's own."""
        return None if self.wanted.sample_rate in (None, index.rate) else self.wanted.sample_rate

    def _check_size(self, spans: list[tuple[int, int]], index: AudioIndex, *, decoded: bool = False) -> None:
        limits = self.file.limits
        samples = sum(stop - start for start, stop in spans)
        size = samples * index.dtype.itemsize * (index.channels if decoded else max(index.channels, self.channels))
        if (samples > limits.max_audio_samples and not decoded) or size > limits.max_bytes:
            raise DecodeError(
                f"{samples} samples of {index.channels} channels are beyond "
                f"max_audio_samples={limits.max_audio_samples} or max_bytes={limits.max_bytes} of AVLimits. "
                "Ask for shorter ranges, or raise the limit",
                self.facts.codec,
                ROUTE,
            )
