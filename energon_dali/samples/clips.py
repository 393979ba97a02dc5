"""The clips of a video that decoders return for `VideoClips`: frames, timestamps and audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError
from energon_dali.samples.batching import batch_pad_stack

if TYPE_CHECKING:
    import torch


@dataclass(eq=False)
class Clips:
    """The clips of one video; or of a batch of videos, with one more leading dimension in every field."""

    frames: torch.Tensor | None
    """Frames (clips, frames, C, H, W) in RGB, or in the layout of the spec; None for a file without video."""
    timestamps: torch.Tensor | None
    """Presentation time of each frame in seconds, float64 (clips, frames), on the CPU."""
    audio: torch.Tensor | None = None
    """Audio in [-1, 1], float32 (clips, C, S), on the CPU; silence where the media stream has none."""
    audio_timestamps: torch.Tensor | None = None
    """Start and end of the audio of each clip in seconds, float64 (clips, 2), without added silence."""
    audio_sample_rate: int | list[int] | None = None
    """Audio samples per second; a list in a batch."""
    audio_features: torch.Tensor | None = None
    """Features of the audio (clips, bands, frames), where the spec has them made in place of the audio."""

    @classmethod
    def from_samples(cls, samples: Sequence[Clips]) -> Clips:
        """Stacks the clips of several videos field by field; smaller ones are padded with zeros at their ends.

        Args:
            samples: At least one; a field that is None in all of them stays None.

        Raises:
            ConfigError: A field is None in only some samples, or has different numbers of dimensions.
        """
        return cls(
            **{
                field.name: _stack(field.name, [getattr(clips, field.name) for clips in samples])
                for field in fields(cls)
            }
        )

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{field.name}={tuple(value.shape) if hasattr(value, 'shape') else value}"
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        )
        return f"Clips({shapes})"


def _stack(name: str, column: list[Any]) -> Any:
    missing = sum(value is None for value in column)
    if missing == len(column):
        return None
    if missing:
        raise ConfigError(
            f"{missing} of {len(column)} Clips of a batch have no {name}, so it cannot be stacked. Batch files of the "
            "same kind together (batch_group_criterion), or keep them in lists with batch_list."
        )
    return column if name == "audio_sample_rate" else batch_pad_stack(column)
