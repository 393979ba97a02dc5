"""Whisper and models with its features: log-mel spectrograms of 30 seconds, of recordings padded with silence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.audio_front_ends import spectrogram
from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, AudioInput
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.front_ends.extractor_config import take_sampling_rate
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import torch

MAX_HZ = 8000.0
"""Highest frequency of the bands, whatever the sampling rate."""
LONGEST_CHUNK_SECONDS = 3600


@dataclass(frozen=True, kw_only=True)
class WhisperFeatures(AudioFrontEnd):
    """Base of the front ends for WhisperFeatureExtractor. Values: dtype[num_mels, frames] for a recording."""

    num_mels: int = 80
    """Mel bands (feature_size)."""
    n_fft: int = 400
    """Samples of a window."""
    hop_length: int = 160
    """Samples from one frame to the next."""
    chunk_seconds: int = 30
    """Seconds that the features of a chunk span (chunk_length)."""
    padding_value: float = 0.0
    """What recordings are padded with."""

    processors: ClassVar[tuple[str, ...]] = ("WhisperFeatureExtractor",)
    unused_keys: ClassVar[frozenset[str]] = frozenset({"n_samples", "nb_max_frames", "do_normalize"})
    mask_key: ClassVar[str] = "attention_mask"
    """Key of the mask of the frames in `collate`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_mels", "n_fft", "hop_length", "chunk_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self._invalid(name, "It is a whole number of at least 1")
        if self.n_fft % 2:
            raise self._invalid("n_fft", "It is even: with an odd one, features and masks have different lengths")
        if self.chunk_samples <= self.n_fft // 2 or self.chunk_samples < self.hop_length:
            raise self._invalid("chunk_seconds", "It must be longer than half a window and a hop")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return cls(**cls.fields_of(config))

    @classmethod
    def fields_of(cls, config: ProcessorConfig) -> dict[str, Any]:
        """Returns the fields that all models with these features have.

        Raises:
            ConfigError: A value is not supported.
        """
        config.require("dither", 0.0, "it adds random noise")
        config.require("padding_side", "right", "features of recordings padded at their start")
        config.take("return_attention_mask")
        return {
            "sampling_rate": take_sampling_rate(config),
            "num_mels": config.take_integer("feature_size", 80, most=1024),
            "n_fft": config.take_integer("n_fft", 400, most=1 << 16),
            "hop_length": config.take_integer("hop_length", 160, most=1 << 16),
            "chunk_seconds": config.take_integer("chunk_length", 30, most=LONGEST_CHUNK_SECONDS),
            "padding_value": config.take_number("padding_value", 0.0, least=-1.0, most=1.0),
            "audio_token": config.outer_text("audio_token", cls.audio_token),
        }

    @property
    def chunk_samples(self) -> int:
        """Samples of a chunk."""
        return self.chunk_seconds * self.sampling_rate

    @property
    def chunk_frames(self) -> int:
        """Frames of a chunk."""
        return self.chunk_samples // self.hop_length

    def attention_groups(self, layout: AudioLayout) -> list[tuple[int, int]]:
        """Returns (chunks, positions of the encoder in each): two frames become a position."""
        return [(layout.num_chunks, (self.chunk_frames - 1) // 2 + 1)]

    @property
    def loudest_log(self) -> float | None:
        """Logarithm of the value that features are relative to; None for the loudest of each recording."""
        return None

    def logs(self, samples: torch.Tensor, padded: int) -> torch.Tensor:
        """Returns the logarithms of the powers in the bands of padded samples.

        Args:
            samples: float32[n].
            padded: Samples after padding.

        Returns:
            float32[num_mels, frames]; frames after the last in which anything is heard are left out.
        """
        heard = padded
        if self.padding_value == 0.0:
            heard = spectrogram.heard_samples(samples.shape[-1], padded, self.n_fft, self.hop_length)
        filled = spectrogram.padded_to(samples[None], heard, self.padding_value)
        return self._log_mel(spectrogram.power_spectra(filled, self.n_fft, self.hop_length))

    def _log_mel(self, power: torch.Tensor) -> torch.Tensor:
        filters = spectrogram.mel_tensor(self.n_fft // 2 + 1, self.num_mels, self.sampling_rate, high_hz=MAX_HZ)
        return spectrogram.log10_mel(power, filters)[0]

    def scaled(self, logs: torch.Tensor, frames: int) -> torch.Tensor:
        """Returns the features of a recording: silence after the frames of `logs`, on the scale of Whisper.

        Args:
            logs: float32[num_mels, some frames].
            frames: Of the result.

        Returns:
            dtype[num_mels, frames], a new tensor.
        """
        filled = spectrogram.padded_to(logs, frames, spectrogram.LOG10_FLOOR)[None]
        return spectrogram.whisper_scale(filled, self.loudest_log)[0].to(self.torch_dtype)


@dataclass(frozen=True, kw_only=True)
class ChunkFeatures(WhisperFeatures):
    """Base of front ends that pad or cut each recording to one chunk."""

    @property
    def max_samples(self) -> int | None:
        return self.chunk_samples

    def layout(self, num_samples: int) -> AudioLayout:
        kept = min(num_samples, self.chunk_samples)
        frames = min(math.ceil(kept / self.hop_length), self.chunk_frames)
        return AudioLayout(num_samples, kept, frames, self.tokens_of(frames))

    def tokens_of(self, frames: int) -> int:
        """Returns the tokens of a recording of this many frames."""
        return 0

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        return self.logs(samples, self.chunk_samples)

    def finish(self, audio: AudioInput) -> torch.Tensor:
        return self.scaled(audio.features, self.chunk_frames)

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        recordings = [audio for sample in samples for audio in sample]
        frames = [audio.layout.num_frames for audio in recordings]
        return {
            "input_features": torch.stack([audio.values for audio in recordings]),
            self.mask_key: spectrogram.frame_mask(frames, self.chunk_frames, torch.int32),
        }


@dataclass(frozen=True, kw_only=True)
class Whisper(ChunkFeatures):
    """Whisper: 30 seconds of features for each recording, without a mask unless the extractor is set to return one.

    `layout.num_tokens` are the positions of the encoder, which sees the silence too.
    """

    returns_mask: bool = False
    """Whether `collate` has a mask of the samples (return_attention_mask)."""

    family: ClassVar[str] = "whisper"
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "attention_mask")
    in_text: ClassVar[bool] = False

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return cls(**cls.fields_of(config), returns_mask=config.take_flag("return_attention_mask", False))

    def tokens_of(self, frames: int) -> int:
        return (self.chunk_frames - 1) // 2 + 1

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        made = super().collate(samples)
        del made["attention_mask"]
        if self.returns_mask:
            kept = [audio.layout.kept_samples for sample in samples for audio in sample]
            made["attention_mask"] = spectrogram.frame_mask(kept, self.chunk_samples, torch.int32)
        return made


@dataclass(frozen=True, kw_only=True)
class LongestFeatures(WhisperFeatures):
    """Base of front ends with features as long as the recording, padded to the longest of a batch."""

    contiguous: ClassVar[bool] = True
    """Whether the extractor makes the spectra contiguous."""

    def check_window(self, samples: int) -> None:
        """Checks that samples that are mirrored at their ends have at least one frame.

        Raises:
            DecodeError: There are fewer than half a window, or than a hop.
        """
        if samples <= self.n_fft // 2 or samples < self.hop_length:
            raise DecodeError(
                f"The recording has {samples} samples, too few for one frame: the extractor needs more than "
                f"{self.n_fft // 2} and at least {self.hop_length}"
            )

    def padded_samples(self, layout: AudioLayout) -> int:
        """Returns the samples of a recording after the padding that the extractor gives it alone."""
        return layout.kept_samples

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        filled = spectrogram.padded_to(samples[None], self.padded_samples(layout))
        power = spectrogram.power_spectra(filled, self.n_fft, self.hop_length, contiguous=self.contiguous)
        return self._log_mel(power)

    def ending(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor | None:
        filled = spectrogram.padded_to(samples, self.padded_samples(layout))
        return spectrogram.ending_of(filled, self.n_fft, self.hop_length)

    def finish(self, audio: AudioInput) -> torch.Tensor:
        return self.scaled(audio.features, audio.features.shape[1])

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        recordings = [audio for sample in samples for audio in sample]
        rows = self.padded_rows(recordings)
        frames = [audio.layout.num_frames for audio in recordings]
        return {
            "input_features": rows,
            self.mask_key: spectrogram.frame_mask(frames, rows.shape[2], torch.int32),
        }

    def padded_rows(self, recordings: Sequence[AudioInput]) -> torch.Tensor:
        """Returns the features of recordings, padded with silence to the longest: dtype[recordings, num_mels, frames].

        The extractor pads samples, so the last frames of shorter ones are computed again.
        """
        import torch

        padded = max(self.padded_samples(audio.layout) for audio in recordings)
        width = padded // self.hop_length
        return torch.stack([self.scaled(self._padded_logs(audio, padded), width) for audio in recordings])

    def _padded_logs(self, audio: AudioInput, padded: int) -> torch.Tensor:
        import torch

        samples = self.padded_samples(audio.layout)
        first = spectrogram.first_padded_frame(samples, self.n_fft, self.hop_length)
        if samples == padded or first >= padded // self.hop_length:
            return audio.features
        assert audio.ending is not None
        windows = spectrogram.padded_windows(audio.ending, samples, padded, self.n_fft, self.hop_length)
        last = self._log_mel(spectrogram.power_of_windows(windows[None], self.n_fft, self.hop_length))
        return torch.cat([audio.features[:, :first], last], 1)
