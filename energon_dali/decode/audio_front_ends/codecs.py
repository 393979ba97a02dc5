"""Audio codecs and models of their samples: EnCodec, Mimi, Moshi, DAC, Dia, Kyutai's speech to text, VibeVoice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from energon_dali.decode.audio_front_ends.audio_front_end import AudioInput
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.audio_front_ends.padded_audio import PaddedAudio, PaddedWaveforms
from energon_dali.decode.audio_front_ends.padding import Padding
from energon_dali.decode.front_ends.extractor_config import take_sampling_rate
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import torch

LONGEST_SECONDS = 3600.0


def _take_optional(config: ProcessorConfig, name: str, most: float) -> float | None:
    """Returns a number, or None if the configuration has none."""
    return None if config.take(name) is None else config.take_number(name, 0.0, least=0.0, most=most)


@dataclass(frozen=True, kw_only=True)
class CodecWaveforms(PaddedWaveforms):
    """Base of front ends for codecs. Values: dtype[channels, samples]; the mask is int32[recordings, samples]."""

    masks_unpadded: ClassVar[bool] = False
    """Whether `collate` has a mask without padding, too."""
    mask_key: ClassVar[str] = "padding_mask"
    model_keys: ClassVar[tuple[str, ...]] = ("input_values", "padding_mask")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.truncation and self.padding != "none":
            raise self._invalid("truncation", 'The extractor pads or cuts, not both: give padding="none" too')

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        batch, mask = self.stacked(samples)
        channels = batch[:, None] if batch.ndim == 2 else np.ascontiguousarray(np.moveaxis(batch, 2, 1))
        made = {"input_values": self.as_values(channels)}
        if self.returns_mask and (self.padding != "none" or self.masks_unpadded):
            made[self.mask_key] = torch.from_numpy(mask)
        return made


@dataclass(frozen=True, kw_only=True)
class Encodec(CodecWaveforms):
    """EnCodec and models with its extractor (Mimi, Moshi, CSM, MusicGen): one or two channels, in chunks if set."""

    sampling_rate: int = 24_000
    chunk_seconds: float | None = None
    """Length of a chunk (chunk_length_s). Batches are padded to whole chunks, unless `max_length` is given."""
    overlap: float | None = None
    """Share of a chunk that the next one repeats."""

    family: ClassVar[str] = "encodec"
    processors: ClassVar[tuple[str, ...]] = ("EncodecFeatureExtractor",)
    unused_keys: ClassVar[frozenset[str]] = frozenset({"chunk_length", "chunk_stride", "return_attention_mask"})

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return cls(
            sampling_rate=take_sampling_rate(config, 24_000),
            channels=config.take_integer("feature_size", 1, most=2),
            chunk_seconds=_take_optional(config, "chunk_length_s", LONGEST_SECONDS),
            overlap=_take_optional(config, "overlap", 1.0),
            **cls.padding_of(config),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels > 2:
            raise self._invalid("channels", "It is 1 or 2")

    def _chunks(self) -> tuple[int, int] | None:
        """Returns (samples of a chunk, samples from one to the next), or None if batches are not in chunks."""
        if self.chunk_seconds is None or self.overlap is None or self.max_length is not None:
            return None
        length = int(self.chunk_seconds * self.sampling_rate)
        return length, max(1, int((1.0 - self.overlap) * length))

    @property
    def rule(self) -> Padding:
        """The options as one value, without those that depend on the batch."""
        if self._chunks() is None:
            return super().rule
        return Padding(rule="none", side=self.padding_side, value=self.padding_value)

    def rule_for(self, lengths: Sequence[int]) -> Padding:
        chunks = self._chunks()
        if chunks is None or not (self.truncation or self.padding != "none"):
            return self.rule
        chunk, stride = chunks
        steps = min(lengths) // stride if self.truncation else math.ceil(max(lengths) / stride)
        return Padding(
            rule="none" if self.truncation else "max_length",
            max_length=(steps - 1) * stride + chunk,
            truncation=self.truncation,
            side=self.padding_side,
            value=self.padding_value,
        )

    @property
    def max_samples(self) -> int | None:
        return super().max_samples if self._chunks() is None else None


@dataclass(frozen=True, kw_only=True)
class Dac(CodecWaveforms):
    """DAC and models with its extractor: one channel, padded to whole hops."""

    family: ClassVar[str] = "dac"
    processors: ClassVar[tuple[str, ...]] = ("DacFeatureExtractor",)
    default_hop: ClassVar[int] = 512
    unused_keys: ClassVar[frozenset[str]] = frozenset({"return_attention_mask"})

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        hop = config.take_integer("hop_length", cls.default_hop)
        return cls(**cls.mono_of(config, cls.sampling_rate), pad_to_multiple_of=hop)


@dataclass(frozen=True, kw_only=True)
class Dia(Dac):
    """Dia: one channel, or the mean of two; a mask in any case."""

    family: ClassVar[str] = "dia"
    processors: ClassVar[tuple[str, ...]] = ("DiaFeatureExtractor",)
    masks_unpadded: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return cls(
            sampling_rate=take_sampling_rate(config),
            channels=config.take_integer("feature_size", 1, most=2),
            pad_to_multiple_of=config.take_integer("hop_length", cls.default_hop),
            **cls.padding_of(config),
        )

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        return samples if samples.ndim == 1 else torch.from_numpy(np.mean(samples.numpy().T, -1))


@dataclass(frozen=True, kw_only=True)
class PeAudio(Dac):
    """Perception Encoder Audio: one channel, continued to whole hops by its mirror image."""

    sampling_rate: int = 48_000

    family: ClassVar[str] = "pe_audio"
    processors: ClassVar[tuple[str, ...]] = ("PeAudioFeatureExtractor",)
    default_hop: ClassVar[int] = 1920

    def layout(self, num_samples: int) -> AudioLayout:
        if not num_samples:
            raise DecodeError("The recording has no samples, and the extractor mirrors its end")
        whole = num_samples + -num_samples % self._hop
        frames = self.rule.kept(whole)
        return AudioLayout(num_samples, min(num_samples, frames), frames, 0)

    @property
    def _hop(self) -> int:
        return self.pad_to_multiple_of or self.default_hop

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        missing = layout.num_frames - samples.shape[-1]
        return torch.from_numpy(np.pad(samples.numpy(), (0, missing), "reflect")) if missing else samples


@dataclass(frozen=True, kw_only=True)
class KyutaiSpeechToText(Encodec):
    """Kyutai's speech to text: silence before and after the rows of a batch."""

    prefix_seconds: float = 0.0
    """Silence before each row (audio_silence_prefix_seconds)."""
    delay_seconds: float = 0.0
    """Silence after each row, to which the extractor adds a second (audio_delay_seconds)."""

    family: ClassVar[str] = "kyutai_speech_to_text"
    processors: ClassVar[tuple[str, ...]] = ("KyutaiSpeechToTextFeatureExtractor",)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("feature_size", 1, "the extractor cannot put silence around two channels")
        prefix = config.take_number("audio_silence_prefix_seconds", 0.0, least=0.0, most=LONGEST_SECONDS)
        delay = config.take_number("audio_delay_seconds", 0.0, least=-1.0, most=LONGEST_SECONDS)
        return super().from_config(config).with_fields(prefix_seconds=prefix, delay_seconds=delay)

    def stacked(self, samples: Sequence[Sequence[AudioInput]]) -> tuple[Any, Any]:
        silence = int(self.prefix_seconds * self.sampling_rate), int((self.delay_seconds + 1.0) * self.sampling_rate)
        batch, mask = (np.pad(rows, ((0, 0), silence)) for rows in super().stacked(samples))
        return batch, mask


@dataclass(frozen=True, kw_only=True)
class MuseSpark(PaddedWaveforms):
    """Muse Spark: samples padded to whole tokens. Values: dtype[samples]."""

    sampling_rate: int = 24_000
    pad_to_multiple_of: int | None = 1920
    samples_per_token: int = 1920
    """Samples of a token."""
    audio_token: str = "<|audio|>"
    start_token: str = "<|soft_audio_start|>"
    """Text before the tokens (audio_start_token)."""
    end_token: str = "<|soft_audio_end|>"
    """Text after them (audio_end_token)."""

    family: ClassVar[str] = "muse_spark"
    processors: ClassVar[tuple[str, ...]] = ("MuseSparkFeatureExtractor",)
    in_text: ClassVar[bool] = True
    model_keys: ClassVar[tuple[str, ...]] = ("input_values", "input_values_mask")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        size = config.take_integer("samples_per_token", 1920)
        return cls(
            **cls.mono_of(config, cls.sampling_rate),
            pad_to_multiple_of=size,
            samples_per_token=size,
            audio_token=config.outer_text("audio_token", cls.audio_token),
            start_token=config.outer_text("audio_start_token", cls.start_token),
            end_token=config.outer_text("audio_end_token", cls.end_token),
            returns_mask=config.take_flag("return_attention_mask", True),
        )

    def layout(self, num_samples: int) -> AudioLayout:
        kept = self.rule.kept(num_samples)
        return AudioLayout(num_samples, kept, kept, -(-kept // self.samples_per_token))

    def audio_text(self, layout: AudioLayout) -> str:
        return f"{self.start_token}{super().audio_text(layout)}{self.end_token}"

    def text_tokens(self, layout: AudioLayout) -> int:
        return layout.num_tokens + 2

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        batch, mask = self.stacked(samples)
        made = {"input_values": self.as_values(batch)}
        return made | ({"input_values_mask": torch.from_numpy(mask)} if self.returns_mask else {})


@dataclass(frozen=True, kw_only=True)
class VibeVoice(CodecWaveforms):
    """VibeVoice's acoustic tokenizer: samples of one loudness, padded to whole frames."""

    sampling_rate: int = 24_000
    pad_to_multiple_of: int | None = 3200
    normalizes: bool = True
    """Whether recordings get one loudness (normalize_audio)."""
    loudness_db: float = -25.0
    """Root of the mean square of their samples, in dB below full scale (target_dB_FS)."""
    epsilon: float = 1e-6
    """What is added to divisors (eps)."""

    family: ClassVar[str] = "vibevoice_acoustic_tokenizer"
    processors: ClassVar[tuple[str, ...]] = ("VibeVoiceAcousticTokenizerFeatureExtractor",)
    masks_unpadded: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.take("return_attention_mask")  # the call's default comes first
        return cls(
            **cls.mono_of(config, cls.sampling_rate),
            pad_to_multiple_of=config.take_integer("pad_to_multiple_of", 3200),
            normalizes=config.take_flag("normalize_audio", True),
            loudness_db=config.take_number("target_dB_FS", -25.0, least=-200.0, most=200.0),
            epsilon=config.take_number("eps", 1e-6, least=0.0, most=1.0),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.truncation:
            raise self._invalid("truncation", "The extractor cannot cut recordings")

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        if not self.normalizes or not len(samples):
            return samples
        loudness = torch.sqrt(torch.mean(samples**2))
        scaled = samples * (10 ** (self.loudness_db / 20) / (loudness + self.epsilon))
        peak = torch.max(torch.abs(scaled))
        return scaled / (peak + self.epsilon) if peak > 1.0 else scaled


@dataclass(frozen=True, kw_only=True)
class Gemma4Unified(PaddedAudio):
    """Gemma 4 without an audio encoder: each token is a row of samples. Values: dtype[tokens, samples of a token]."""

    samples_per_token: int = 640
    """Samples of a token (audio_samples_per_token)."""
    audio_token: str = "<|audio|>"
    start_token: str = "<|audio>"
    """Text before the tokens (boa_token)."""
    end_token: str = "<audio|>"
    """Text after them (eoa_token)."""

    family: ClassVar[str] = "gemma4_unified"
    processors: ClassVar[tuple[str, ...]] = ("Gemma4UnifiedAudioFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "input_features_mask")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.take("return_attention_mask")
        config.take_integer("feature_size", 640, least=2)  # of 1, the extractor would pad both axes
        return cls(
            sampling_rate=take_sampling_rate(config),
            samples_per_token=config.take_integer("audio_samples_per_token", 640),
            audio_token=config.outer_text("audio_token", cls.audio_token),
            start_token=config.outer_text("boa_token", cls.start_token),
            end_token=config.outer_text("eoa_token", cls.end_token),
            **cls.padding_of(config),
        )

    def layout(self, num_samples: int) -> AudioLayout:
        tokens = self.rule.kept(-(-num_samples // self.samples_per_token))
        return AudioLayout(num_samples, min(num_samples, tokens * self.samples_per_token), tokens, tokens)

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        missing = layout.num_frames * self.samples_per_token - samples.shape[-1]
        return torch.nn.functional.pad(samples, (0, missing)).view(-1, self.samples_per_token)

    def audio_text(self, layout: AudioLayout) -> str:
        return f"{self.start_token}{super().audio_text(layout)}{self.end_token}"

    def text_tokens(self, layout: AudioLayout) -> int:
        return layout.num_tokens + 2

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        batch, mask = self.rule.stack([audio.features.numpy() for sample in samples for audio in sample])
        return {"input_features": self.as_values(batch), "input_features_mask": torch.from_numpy(mask).bool()}
