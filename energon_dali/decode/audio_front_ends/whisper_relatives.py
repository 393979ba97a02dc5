"""Extractors that differ from Whisper's in padding, chunks or scale: Voxtral Realtime, Qwen3-ASR, dots note."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.audio_front_ends import spectrogram
from energon_dali.decode.audio_front_ends.audio_front_end import AudioInput
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.audio_front_ends.speech_llm import windowed_tokens
from energon_dali.decode.audio_front_ends.whisper import LongestFeatures, WhisperFeatures
from energon_dali.decode.front_ends.extractor_config import take_sampling_rate
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

if TYPE_CHECKING:
    import torch

_FRAMES_PER_TOKEN = 8


@dataclass(frozen=True, kw_only=True)
class VoxtralRealtime(LongestFeatures):
    """Voxtral Realtime: features relative to a fixed loudest value. Tokens: positions, of eight frames each.

    These are the features of its extractor. What the processor adds to the samples before and after the recording for
    streaming is not part of them.
    """

    num_mels: int = 128
    fixed_loudest_log: float | None = 1.5
    """Logarithm of the value that features are relative to (global_log_mel_max); None for the loudest of each."""

    family: ClassVar[str] = "voxtral_realtime"
    processors: ClassVar[tuple[str, ...]] = ("VoxtralRealtimeFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features",)
    unused_keys: ClassVar[frozenset[str]] = frozenset({"do_normalize", "win_length", "return_attention_mask"})
    in_text: ClassVar[bool] = False
    contiguous: ClassVar[bool] = False

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("padding_side", "right", "features of recordings padded at their start")
        config.require("padding_value", 0.0, "the end of recordings in a batch")
        loudest = config.take_number("global_log_mel_max", 1.5, least=-100.0, most=100.0)
        return cls(
            sampling_rate=take_sampling_rate(config),
            num_mels=config.take_integer("feature_size", 128, most=1024),
            n_fft=config.take_integer("n_fft", 400, most=1 << 16),
            hop_length=config.take_integer("hop_length", 160, most=1 << 16),
            fixed_loudest_log=None if "global_log_mel_max" in config.nulls else loudest,
        )

    @property
    def loudest_log(self) -> float | None:
        return self.fixed_loudest_log

    def layout(self, num_samples: int) -> AudioLayout:
        self.check_window(num_samples)
        frames = num_samples // self.hop_length
        return AudioLayout(num_samples, num_samples, frames, frames // _FRAMES_PER_TOKEN)

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        recordings = [audio for sample in samples for audio in sample]
        if self.fixed_loudest_log is None and len(recordings) > 1:
            raise self._invalid("fixed_loudest_log", "The extractor then scales all recordings of a batch by one value")
        return {"input_features": self.padded_rows(recordings)}


@dataclass(frozen=True, kw_only=True)
class Qwen3Asr(LongestFeatures):
    """Qwen3-ASR: features as long as the recording, and zeros up to a whole number of the encoder's windows.

    A frame that a recording has only started does not count. In a batch with longer recordings the processor itself
    counts it.
    """

    num_mels: int = 128
    audio_token: str = "<|audio_pad|>"
    window_frames: int = 50
    """Half the frames of a window of the encoder (n_window); 0 adds no zeros."""
    least_samples: int = 8000
    """Shorter recordings are padded with silence that counts (min_length)."""

    family: ClassVar[str] = "qwen3_asr"
    processors: ClassVar[tuple[str, ...]] = ("Qwen3ASRFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "input_features_mask")
    mask_key: ClassVar[str] = "input_features_mask"
    contiguous: ClassVar[bool] = False

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.take("n_window")  # the processor passes its own
        passed = config.outer.get("audio_kwargs", {})
        window = passed.get("n_window", cls.window_frames) if isinstance(passed, dict) else cls.window_frames
        config.require("padding_value", 0.0, "the end of recordings in a batch")
        least = config.take_integer("min_length", 8000, least=0)
        return cls(**{"num_mels": 128, **cls.fields_of(config)}, window_frames=window, least_samples=least)

    @classmethod
    def fields_of(cls, config: ProcessorConfig) -> dict[str, Any]:
        return {**super().fields_of(config), "num_mels": config.take_integer("feature_size", 128, most=1024)}

    def padded_samples(self, layout: AudioLayout) -> int:
        return max(layout.kept_samples, self.least_samples)

    def layout(self, num_samples: int) -> AudioLayout:
        samples = max(num_samples, self.least_samples)
        self.check_window(samples)
        frames = samples // self.hop_length
        tokens = windowed_tokens(frames, self.window_frames or 50)
        return AudioLayout(num_samples, num_samples, frames, tokens)

    def attention_groups(self, layout: AudioLayout) -> list[tuple[int, int]]:
        return [(1, layout.num_tokens)]

    def finish(self, audio: AudioInput) -> torch.Tensor:
        return self._whole_windows(super().finish(audio)[None])[0]

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        made = super().collate(samples)
        return {name: self._whole_windows(values) for name, values in made.items()}

    def _whole_windows(self, values: torch.Tensor) -> torch.Tensor:
        multiple, width = 2 * self.window_frames, values.shape[-1]
        return spectrogram.padded_to(values, math.ceil(width / multiple) * multiple if multiple else width)


@dataclass(frozen=True, kw_only=True)
class Dots3Note(WhisperFeatures):
    """dots note: chunks of 60 seconds, cut after the last that is heard. Values: dtype[chunks, num_mels, frames]."""

    num_mels: int = 128
    chunk_seconds: int = 60
    audio_token: str = "<|audio_pad|>"

    family: ClassVar[str] = "dots3_note"
    processors: ClassVar[tuple[str, ...]] = ("Dots3NoteFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "chunk_sample_lengths")

    @classmethod
    def fields_of(cls, config: ProcessorConfig) -> dict[str, Any]:
        seconds = config.take_integer("chunk_length", 60, most=3600)
        return {
            **super().fields_of(config),
            "num_mels": config.take_integer("feature_size", 128, most=1024),
            "chunk_seconds": config.take_integer("chunk_seconds", seconds, most=3600),
        }

    def layout(self, num_samples: int) -> AudioLayout:
        lengths = self._lengths(num_samples)
        tokens = [self._tokens_of(length) for length in lengths]
        return AudioLayout(num_samples, num_samples, -(-num_samples // self.hop_length), sum(tokens), len(lengths))

    def _lengths(self, samples: int) -> list[int]:
        """Returns the samples of each chunk."""
        full, rest = divmod(samples, self.chunk_samples)
        return [self.chunk_samples] * full + ([rest] if rest or not full else [])

    def _tokens_of(self, samples: int) -> int:
        return math.ceil(samples / (self.hop_length * _FRAMES_PER_TOKEN))

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        chunks = [self.logs(chunk, self.chunk_samples) for chunk in torch.split(samples, self.chunk_samples)]
        width = max(logs.shape[1] for logs in chunks)
        return torch.stack([spectrogram.padded_to(logs, width, spectrogram.LOG10_FLOOR) for logs in chunks])

    def finish(self, audio: AudioInput) -> torch.Tensor:
        return self._cut(audio, self._width(audio))

    def _width(self, audio: AudioInput) -> int:
        tokens = max(self._tokens_of(length) for length in self._lengths(audio.layout.kept_samples))
        return min(tokens * _FRAMES_PER_TOKEN, self.chunk_frames)

    def _cut(self, audio: AudioInput, width: int) -> torch.Tensor:
        import torch

        # All frames are scaled before the last are cut off: one of these may be the loudest.
        frames = max(width, audio.features.shape[2])
        return torch.stack([self.scaled(logs, frames)[:, :width] for logs in audio.features])

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        recordings = [audio for sample in samples for audio in sample]
        width = max(self._width(audio) for audio in recordings)
        lengths = [length for audio in recordings for length in self._lengths(audio.layout.kept_samples)]
        return {
            "input_features": torch.cat([self._cut(audio, width) for audio in recordings]),
            "chunk_sample_lengths": torch.tensor(lengths, dtype=torch.int64),
        }
