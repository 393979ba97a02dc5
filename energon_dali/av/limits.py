"""Limits for decoding one video or audio file, against files whose headers are false."""

from __future__ import annotations

from dataclasses import dataclass

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError


@explain_call
@dataclass(frozen=True, slots=True)
class AVLimits:
    """Upper bounds for one file. Anything beyond them is refused before memory is allocated for it.

    Raises:
        ConfigError: A limit is not positive.
    """

    max_frames: int = 1_000_000
    """Frames that one call may return."""
    max_pixels: int = 128 * 1024 * 1024
    """Width x height of one frame, as stored and as requested."""
    max_bytes: int = 4 << 30
    """Bytes of frames or of audio that one call may return."""
    max_audio_samples: int = 1 << 31
    """Samples per channel that one call may return."""
    max_packets: int = 50_000_000
    """Packets in the index of a stream."""
    max_seconds: float | None = None
    """Wall-clock seconds that one call may take; None for no limit. Checked between packets."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is None and name == "max_seconds":
                continue
            if not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(
                    f"AVLimits({name}={value!r}) would refuse every file. Limits are positive numbers. "
                    "Give a larger one, or leave it out."
                )
