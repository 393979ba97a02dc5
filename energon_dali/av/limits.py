"""How much one video or audio file may cost: the guard against files that lie about themselves."""

from __future__ import annotations

from dataclasses import dataclass

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError


@explain_call
@dataclass(frozen=True, slots=True)
class AVLimits:
    """Upper bounds of what is made of one file; what would go beyond is refused before its memory is taken.

    Raises:
        ConfigError: A limit is not positive.
    """

    max_frames: int = 1_000_000
    """Frames that one call may return."""
    max_pixels: int = 128 * 1024 * 1024
    """Width x height of one frame, as stored and as asked for."""
    max_bytes: int = 4 << 30
    """Bytes that one call may return, of pictures or of sound."""
    max_audio_samples: int = 1 << 31
    """Samples per channel that one call may return."""
    max_packets: int = 50_000_000
    """Packets of a stream that are listed in its index."""
    max_seconds: float | None = None
    """Time that one call may take, in seconds of the clock; None sets no bound. Looked at between packets."""

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
