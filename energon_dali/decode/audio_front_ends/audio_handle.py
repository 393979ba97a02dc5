"""An encoded recording on its way to the decode stage, whose length is known and whose samples are not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, AudioInput
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.interface import MediaHandle
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.plan.rng import uniform

if TYPE_CHECKING:
    from energon_dali.av import AVLimits
    from energon_dali.av.audio_index import AudioIndex
    from energon_dali.av.sparse_media import SparseMedia

AudioSegments = Literal["first", "random", "all"]
_SEGMENT_DRAWS = 0x61756469
"""Part of the key of the random numbers for segments, so that they differ from other draws."""


@dataclass(frozen=True, slots=True)
class AudioSpec:
    """What the recordings of a decoder become.

    Raises:
        ConfigError: A value, or a combination of values, is invalid.
    """

    front_end: AudioFrontEnd
    """What makes their features."""
    segments: AudioSegments = "first"
    """Which part of a longer recording is used: its start, a random segment, or all segments, as a list."""
    seconds: float | None = None
    """Longest segment; None for the longest recording of the front end."""

    def __post_init__(self) -> None:
        if not isinstance(self.front_end, AudioFrontEnd):
            raise ConfigError(
                f"audio_front_end={self.front_end!r} is not an audio front end. Make one with "
                "AudioFrontEnd.from_processor(processor)."
            )
        if self.segments not in get_args(AudioSegments):
            raise ConfigError(
                f"audio_segments={self.segments!r} is unknown. Give one of {', '.join(get_args(AudioSegments))}."
            )
        seconds = self.seconds
        if seconds is not None and (
            isinstance(seconds, bool)
            or not isinstance(seconds, (int, float))
            or not 0 < seconds < math.inf
            or self.front_end.samples_of(seconds) < 1
        ):
            raise ConfigError(f"audio_seconds={seconds!r} cannot work. It is a number of seconds greater than 0.")
        if self.segments != "first" and self.most_samples is None:
            raise ConfigError(
                f"audio_segments={self.segments!r} was given with {type(self.front_end).__name__}, which takes "
                "recordings of any length. Give audio_seconds, the length of a segment."
            )
        if seconds is not None:
            self._check_length(seconds)

    def _check_length(self, seconds: float) -> None:
        """Checks that the front end takes segments of this length, and uses all of each."""
        front_end, most = self.front_end, self.front_end.max_seconds
        if self.segments != "first" and most is not None and front_end.samples_of(seconds) > front_end.samples_of(most):
            raise ConfigError(
                f"audio_seconds={seconds!r} is longer than the {most:g} seconds that {type(front_end).__name__} uses "
                f"of a segment, so the rest of each would be lost. Give at most {most:g}."
            )
        try:
            front_end.layout(front_end.samples_of(seconds))
        except DecodeError as error:
            raise ConfigError(
                f"audio_seconds={seconds!r} is too short for {type(front_end).__name__}: {error.reason}."
            ) from error

    @property
    def most_samples(self) -> int | None:
        """Samples of the longest segment, at the front end's rate; None if there is no limit."""
        return self.front_end.max_samples if self.seconds is None else self.front_end.samples_of(self.seconds)

    def choose(self, num_samples: int, seed: int) -> list[tuple[int, int]]:
        """Returns (start, stop) of the segments of a recording, in samples: one of them, except for "all".

        Args:
            num_samples: Of the recording, at the front end's rate.
            seed: Determines random segments.
        """
        most = self.most_samples
        if self.segments == "all" and most is not None:
            return self.front_end.segments(num_samples, most)
        if most is None or num_samples <= most or (self.segments == "first" and self.seconds is None):
            return [(0, num_samples)]
        start = 0
        if self.segments == "random":
            start = int(uniform(0, 1, _SEGMENT_DRAWS, seed)[0] * (num_samples - most + 1))
        return [(start, start + most)]


@dataclass(slots=True, eq=False, repr=False)
class AudioHandle(MediaHandle):
    """An encoded recording, or a segment of one; `format` is the container's ("wav"), `width` and `height` are 0.

    Its number of samples was counted from its packets, so `layout` and `num_tokens` are those of the decoded audio.
    """

    data: bytes | bytearray | memoryview | SparseMedia  # type: ignore[assignment]
    """The encoded file, or its index with the bytes of the packets of the segment."""
    spec: AudioSpec  # type: ignore[assignment]
    """What it becomes; one object shared by all handles of a decoder."""
    start_sample: int = 0
    """First sample of the segment, at the front end's rate."""
    num_samples: int = 0
    """Samples of the segment."""
    limits: AVLimits | None = None
    """Limits for decoding; None for the defaults."""
    index: AudioIndex | None = None
    """The packets that were counted, so that decoding need not count them again; None where they are many."""
    decoded: AudioInput | None = None
    """What the front end made of it, if a worker decoded it; `data` is then empty."""

    @property
    def layout(self) -> AudioLayout:  # type: ignore[override]
        """What the front end makes of the recording: frames, number of tokens. Computed from its length.

        Raises:
            DecodeError: The front end refuses recordings of this length.
        """
        return self.spec.front_end.layout(self.num_samples)

    @property
    def duration_seconds(self) -> float:
        """Duration of the recording, or segment."""
        return self.num_samples / self.spec.front_end.sampling_rate

    def decode(self) -> Any:
        """Returns the AudioInput, decoded now with PyAV in the calling thread.

        Raises:
            DecodeError: The data cannot be decoded.
        """
        from energon_dali.decode.audio_front_ends.audio_decoding import decode_recording

        return decode_recording(self)

    def __repr__(self) -> str:
        return f"AudioHandle({self.name}: {self.format} {self.duration_seconds:g} s, {len(self.data)} bytes)"
