"""What front ends share whose extractors pad and cut the rows of a batch by options of their call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, AudioInput
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.audio_front_ends.padding import Padding, PaddingRule, PaddingSide
from energon_dali.decode.front_ends.extractor_config import take_sampling_rate
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

if TYPE_CHECKING:
    import torch

Floats32 = NDArray[np.float32]
LONGEST_ROW = 1 << 30
"""Most elements of a row that a configuration may ask for."""


@dataclass(frozen=True, kw_only=True)
class PaddedAudio(AudioFrontEnd):
    """Base of front ends that pad the rows of a batch: of samples, or of frames.

    The first six fields are options of the extractor's call, by its names; give them to `from_processor`.
    """

    padding: PaddingRule = "longest"
    """"longest" (the call's True) pads to the longest row of a batch, "max_length" to `max_length`, "none" (False) not
    at all."""
    max_length: int | None = None
    """Most elements of a row with `truncation`, and what "max_length" pads to."""
    truncation: bool = False
    """Whether rows are cut to `max_length`."""
    pad_to_multiple_of: int | None = None
    """Rows are padded to a multiple of this."""
    returns_mask: bool = True
    """Whether `collate` has a mask of what is not padding (return_attention_mask)."""
    padding_side: PaddingSide = "right"
    """Where rows are padded."""
    padding_value: float = 0.0
    """What rows are padded with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rule  # noqa: B018  checks the options

    @classmethod
    def padding_of(cls, config: ProcessorConfig) -> dict[str, Any]:
        """Returns the fields of padding that an extractor holds.

        Raises:
            ConfigError: A value is not supported.
        """
        side = config.take("padding_side", "right")
        if side not in ("right", "left"):
            raise config.invalid("padding_side", side, "It is right or left")
        return {
            "padding_side": side,
            "padding_value": config.take_number("padding_value", cls.padding_value, least=-1e6, most=1e6),
        }

    @property
    def rule(self) -> Padding:
        """The options as one value."""
        return Padding(
            rule=self.padding,
            max_length=self.max_length,
            truncation=self.truncation,
            multiple=self.pad_to_multiple_of,
            side=self.padding_side,
            value=self.padding_value,
        )

    def rule_for(self, lengths: Sequence[int]) -> Padding:
        """Returns the options for a batch of rows of these lengths."""
        return self.rule

    def finish(self, audio: AudioInput) -> torch.Tensor:
        values: torch.Tensor = self.collate([[audio]])[self.model_keys[0]][0]
        return values

    def as_values(self, values: Floats32) -> torch.Tensor:
        """Returns an array in the front end's dtype, as a tensor."""
        import torch

        return torch.from_numpy(values).to(self.torch_dtype)


@dataclass(frozen=True, kw_only=True)
class PaddedWaveforms(PaddedAudio):
    """Base of front ends whose rows are samples. `layout.num_frames` are the samples that are kept."""

    in_text: ClassVar[bool] = False

    @classmethod
    def mono_of(cls, config: ProcessorConfig, sampling_rate: int = 16_000) -> dict[str, Any]:
        """Returns sampling rate and padding of an extractor that takes one channel.

        Args:
            config: Of the extractor.
            sampling_rate: If the configuration does not have it.

        Raises:
            ConfigError: A value is not supported.
        """
        config.require("feature_size", 1, "the extractor takes one channel")
        return {"sampling_rate": take_sampling_rate(config, sampling_rate), **cls.padding_of(config)}

    @property
    def max_samples(self) -> int | None:
        return self.rule.kept(LONGEST_ROW) if self.truncation else None

    def layout(self, num_samples: int) -> AudioLayout:
        kept = self.rule.kept(num_samples)
        return AudioLayout(num_samples, kept, kept, 0)

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        return samples

    def stacked(self, samples: Sequence[Sequence[AudioInput]]) -> tuple[Floats32, NDArray[np.int32]]:
        """Returns (float32[recordings, elements, ...], int32[recordings, elements]): padded features, and their mask.

        The last axis of features is that of samples, and becomes the second one.
        """
        rows = [np.moveaxis(audio.features.numpy(), -1, 0) for sample in samples for audio in sample]
        return self.rule_for([len(row) for row in rows]).stack(rows)
