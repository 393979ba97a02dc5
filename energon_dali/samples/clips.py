"""What decoders make of a video by `VideoClips`: the frames of its clips, when they are shown, and their sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(slots=True, eq=False)
class Clips:
    """The clips of one video; or, made by the default batching, of a batch, with a first dimension more everywhere."""

    frames: torch.Tensor | None
    """Frames (clips, frames, C, H, W) in RGB, or as the spec's layout says; None for a file without video."""
    timestamps: torch.Tensor | None
    """Presentation time float64 (clips, frames) of each frame in seconds, on the CPU."""
    audio: torch.Tensor | None = None
    """Sound float32 (clips, C, S) in [-1, 1], on the CPU; silence where the stream has none."""
    audio_timestamps: torch.Tensor | None = None
    """Presentation time float64 (clips, 2) in seconds: start and end of each clip's sound, without added silence."""
    audio_sample_rate: int | list[int] | None = None
    """Samples of the sound per second; a list in a batch."""

    @classmethod
    def from_samples(cls, samples: Sequence[Clips]) -> Clips:
        """Returns the clips of several videos, each field stacked; smaller ones are padded with zeros at their ends.

        Args:
            samples: At least one; a field that is None in all of them stays None.

        Raises:
            ConfigError: A field is None in some samples only, or has different numbers of dimensions.
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
    # Lazily: batching knows the samples too.
    from energon_dali.errors import ConfigError
    from energon_dali.task_encoder.batching import batch_pad_stack

    missing = sum(value is None for value in column)
    if missing == len(column):
        return None
    if missing:
        raise ConfigError(
            f"{missing} of {len(column)} Clips of a batch have no {name}, so it cannot be stacked. Batch files of one "
            "kind (batch_group_criterion), or keep them apart with batch_list."
        )
    return column if name == "audio_sample_rate" else batch_pad_stack(column)
