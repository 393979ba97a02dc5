"""Extractors after NVIDIA NeMo: Parakeet and Canary, Nemotron ASR, Cohere ASR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.audio_front_ends import spectrogram
from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, AudioInput, check_long_enough
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.front_ends.extractor_config import take_windows
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

if TYPE_CHECKING:
    import torch

_POWER_ADDED = 2**-24
_DEVIATION_ADDED = 1e-5


@dataclass(frozen=True, kw_only=True)
class Parakeet(AudioFrontEnd):
    """Parakeet and Canary: log-mel features, each band normalised over the recording. Values: dtype[frames, num_mels].

    The last frame is padding, as from the extractor. Of fewer than two frames the extractor makes NaN; such recordings
    are refused.
    """

    num_mels: int = 80
    """Mel bands (feature_size)."""
    n_fft: int = 512
    """Samples of a transform."""
    win_length: int = 400
    """Samples of a window."""
    hop_length: int = 160
    """Samples from one frame to the next."""
    preemphasis: float | None = 0.97
    """Share of the sample before that is subtracted from each sample; None for no such filter."""

    family: ClassVar[str] = "parakeet"
    processors: ClassVar[tuple[str, ...]] = ("ParakeetFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "attention_mask")
    unused_keys: ClassVar[frozenset[str]] = frozenset({"return_attention_mask", "do_normalize"})
    in_text: ClassVar[bool] = False
    default_mels: ClassVar[int] = 80
    least_frames: ClassVar[int] = 2
    subsampling: ClassVar[int] = 8
    """Frames that become a position of the encoders of the published models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hop_length <= self.win_length <= self.n_fft:
            raise self._invalid("win_length", "It must be at least hop_length and at most n_fft")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return cls(**cls.fields_of(config))

    @classmethod
    def fields_of(cls, config: ProcessorConfig) -> dict[str, Any]:
        """Returns the fields that all models with these features have.

        Raises:
            ConfigError: A value is not supported.
        """
        preemphasis = config.take_number("preemphasis", 0.97, least=-1.0, most=1.0)
        return {
            **take_windows(config, cls.default_mels),
            "preemphasis": None if "preemphasis" in config.nulls else preemphasis,
        }

    def layout(self, num_samples: int) -> AudioLayout:
        check_long_enough(num_samples, self.least_frames * self.hop_length, f"{self.least_frames} frames")
        frames = num_samples // self.hop_length
        return AudioLayout(num_samples, num_samples, frames, -(-frames // self.subsampling))

    def attention_groups(self, layout: AudioLayout) -> list[tuple[int, int]]:
        return [(1, layout.num_tokens)]

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        return self.normalized(self.log_mel(samples[None]), layout.num_frames)[0]

    def log_mel(self, samples: torch.Tensor) -> torch.Tensor:
        """Returns the logarithms of the powers in the bands: float32[1, frames, num_mels].

        Args:
            samples: float32[1, n].
        """
        import torch

        if self.preemphasis is not None:
            changed = samples[:, 1:] - self.preemphasis * samples[:, :-1]
            samples = torch.cat([samples[:, :1], changed], dim=1)
        spectra = torch.stft(
            samples,
            self.n_fft,
            hop_length=self.hop_length,
            win_length=self.win_length,
            window=self._window(),
            return_complex=True,
            pad_mode="constant",
        )
        # The square of the root is that of the extractor, with its rounding.
        power = torch.sqrt(torch.view_as_real(spectra).pow(2).sum(-1)).pow(2)
        return torch.log(self._filters() @ power + _POWER_ADDED).permute(0, 2, 1)

    def _window(self) -> torch.Tensor:
        return spectrogram.hann_window(self.win_length, periodic=False)

    def _filters(self) -> torch.Tensor:
        """Returns the weights of the bands: float32[num_mels, frequencies]."""
        return spectrogram.mel_tensor(
            self.n_fft // 2 + 1, self.num_mels, self.sampling_rate, high_hz=self.sampling_rate / 2, dtype="float32"
        ).T.contiguous()

    def normalized(self, logs: torch.Tensor, frames: int) -> torch.Tensor:
        """Returns features with mean 0 and deviation 1 in each band, and zeros after the recording.

        Args:
            logs: float32[1, all frames, num_mels].
            frames: Those of the recording.
        """
        import torch

        mask = (torch.arange(logs.shape[1]) < frames)[None, :, None]
        mean = ((logs * mask).sum(dim=1) / frames)[:, None]
        variance = ((logs * mask - mean) ** 2 * mask).sum(dim=1) / (frames - 1)
        return (logs - mean) / (torch.sqrt(variance)[:, None] + _DEVIATION_ADDED) * mask

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        recordings = [audio for sample in samples for audio in sample]
        width = max(len(audio.features) for audio in recordings)
        frames = [audio.layout.num_frames for audio in recordings]
        rows = [spectrogram.padded_to(audio.values.T, width).T for audio in recordings]
        return {
            "input_features": torch.stack(rows),
            "attention_mask": spectrogram.frame_mask(frames, width, torch.bool),
        }


@dataclass(frozen=True, kw_only=True)
class NemotronAsr(Parakeet):
    """Nemotron ASR: the features of Parakeet, not normalised."""

    filters_dtype: str = "float32"
    """To which the window and the weights of the bands are rounded (mel_filters_dtype)."""

    family: ClassVar[str] = "nemotron_asr"
    processors: ClassVar[tuple[str, ...]] = ("NemotronAsrStreamingFeatureExtractor",)
    least_frames: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.filters_dtype not in ("float32", "bfloat16", "float16"):
            raise self._invalid("filters_dtype", "Give one of float32, bfloat16, float16")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return cls(**cls.fields_of(config), filters_dtype=config.take("mel_filters_dtype", "float32"))

    def _window(self) -> torch.Tensor:
        return self._rounded(super()._window())

    def _filters(self) -> torch.Tensor:
        return self._rounded(super()._filters())

    def _rounded(self, values: torch.Tensor) -> torch.Tensor:
        import torch

        return values.to(getattr(torch, self.filters_dtype)).float()

    def normalized(self, logs: torch.Tensor, frames: int) -> torch.Tensor:
        import torch

        return logs * (torch.arange(logs.shape[1]) < frames)[None, :, None]


@dataclass(frozen=True, kw_only=True)
class CohereAsr(Parakeet):
    """Cohere ASR: the features of Parakeet, of samples with noise that their number determines.

    The extractor splits recordings of more than 30 seconds where they are quiet, not by their duration. Here their
    end is cut off; `audio_segments="all"` splits them by their duration.
    """

    num_mels: int = 128
    dither: float = 1e-5
    """Deviation of the noise."""
    longest_seconds: float = 30.0
    """Longest recording that is not split (max_audio_clip_s - overlap_chunk_second)."""

    family: ClassVar[str] = "cohere_asr"
    processors: ClassVar[tuple[str, ...]] = ("CohereAsrFeatureExtractor",)
    unused_keys: ClassVar[frozenset[str]] = Parakeet.unused_keys | {"min_energy_window_samples"}
    default_mels: ClassVar[int] = 128

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        longest = config.take_number("max_audio_clip_s", 35.0, least=0.0)
        overlap = config.take_number("overlap_chunk_second", 5.0, least=0.0)
        dither = config.take_number("dither", 1e-5, least=-1.0, most=1.0)
        return cls(**cls.fields_of(config), dither=dither, longest_seconds=max(0.0, longest - overlap))

    @property
    def max_samples(self) -> int | None:
        return self.samples_of(self.longest_seconds)

    def layout(self, num_samples: int) -> AudioLayout:
        assert self.max_samples is not None
        kept = super().layout(min(num_samples, self.max_samples))
        return AudioLayout(num_samples, kept.kept_samples, kept.num_frames, kept.num_tokens)

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        if self.dither > 0:
            generator = torch.Generator().manual_seed(len(samples))
            samples = samples + self.dither * torch.randn(len(samples), generator=generator)
        return super().arrange(samples, layout)

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        made = super().collate(samples)
        return {**made, "audio_chunk_index": [(number, None) for number in range(len(made["input_features"]))]}
