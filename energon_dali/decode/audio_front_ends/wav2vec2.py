"""wav2vec 2 and its relatives, which take samples: HuBERT, WavLM, UniSpeech, Data2Vec, SEW, Moonshine, SpeechT5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from energon_dali.decode.audio_front_ends.audio_front_end import AudioInput
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.audio_front_ends.padded_audio import Floats32, PaddedWaveforms
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Wav2Vec2(PaddedWaveforms):
    """Samples, normalised to zero mean and unit variance. Values: dtype[samples].

    Without a mask (`returns_mask`) the extractor normalises padded rows, so that values depend on the longest
    recording of the batch; with one, or without padding, it normalises each recording by itself.
    """

    normalizes: bool = True
    """Whether samples are normalised (do_normalize)."""
    returns_mask: bool = False

    family: ClassVar[str] = "wav2vec2"
    processors: ClassVar[tuple[str, ...]] = ("Wav2Vec2FeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_values", "attention_mask")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return cls(
            **cls.mono_of(config),
            normalizes=config.take_flag("do_normalize", cls.normalizes),
            returns_mask=config.take_flag("return_attention_mask", cls.returns_mask),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalizes and self.returns_mask and self.padding_side == "left" and self.padding != "none":
            raise self._invalid(
                "padding_side", "With a mask the extractor normalises the first samples of a row, which are padding"
            )

    @property
    def _alone(self) -> bool:
        """Whether a recording is normalised by itself."""
        return self.normalizes and (self.returns_mask or self.padding == "none")

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        return torch.from_numpy(normalized(samples.numpy())) if self._alone else samples

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        batch, mask = self.stacked(samples)
        if self.normalizes and not self._alone:
            batch = np.stack([normalized(row) for row in batch])
        made = {"input_values": self.as_values(batch)}
        return made | ({"attention_mask": torch.from_numpy(mask)} if self.returns_mask else {})


@dataclass(frozen=True, kw_only=True)
class SpeechT5(Wav2Vec2):
    """SpeechT5: the samples that its encoder takes (`audio`), which its published extractors do not normalise."""

    normalizes: bool = False
    returns_mask: bool = True

    family: ClassVar[str] = "speecht5"
    processors: ClassVar[tuple[str, ...]] = ("SpeechT5FeatureExtractor",)
    unused_keys: ClassVar[frozenset[str]] = frozenset(
        {"fmax", "fmin", "frame_signal_scale", "hop_length", "mel_floor", "num_mel_bins", "reduction_factor"}
        | {"win_function", "win_length"}
    )


def normalized(samples: Floats32) -> Floats32:
    """Returns samples with zero mean and unit variance.

    Args:
        samples: float32[samples], contiguous.
    """
    result: Floats32 = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
    return result
