"""Log-mel spectrograms of audio, as Whisper and the models built on its encoder take them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from energon_dali.calls import explain_call
from energon_dali.decode.audio_front_ends import spectrogram
from energon_dali.decode.audio_front_ends.audio_front_end import FeatureDtype
from energon_dali.decode.audio_front_ends.whisper import MAX_HZ, Whisper
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch

_EXTRACTOR = "WhisperFeatureExtractor"


@explain_call
@dataclass(frozen=True, slots=True)
class LogMel:
    """Makes log-mel spectrograms of waveforms; also the form of the audio of clips (`ClipAudio(features=LogMel())`).

    They equal those of transformers' WhisperFeatureExtractor up to 1e-5 on the CPU, and up to 5e-4 between CPU and GPU,
    on a scale where features span 2. The defaults are Whisper's; its large-v3 has num_mels=128.

        features = LogMel()(waveform)               # float32[samples] at 16 kHz -> float32[80, 3000]

    Raises:
        ConfigError: A value is invalid.
    """

    num_mels: int = 80
    """Mel bands (feature_size)."""
    sample_rate: int = 16_000
    """Samples per second of the waveforms (sampling_rate)."""
    n_fft: int = 400
    """Samples of a window."""
    hop_length: int = 160
    """Samples from one frame to the next."""
    duration_seconds: float | None = 30
    """Seconds of the features (chunk_length): shorter waveforms are padded at their end, longer ones are cut. None
    keeps their length."""
    padding_value: float = 0.0
    """What shorter waveforms are padded with."""
    dtype: FeatureDtype = "float32"
    """Type of the features."""

    def __post_init__(self) -> None:
        for name in ("num_mels", "sample_rate", "n_fft", "hop_length"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"LogMel({name}={value!r}) is invalid. It is a whole number of at least 1.")
        duration = self.duration_seconds
        if duration is not None and (not math.isfinite(duration) or duration * self.sample_rate <= self.n_fft):
            raise ConfigError(
                f"LogMel(duration_seconds={duration!r}) is invalid. It must be longer than one window of "
                f"n_fft={self.n_fft} samples, or None for the length of each waveform."
            )
        if self.dtype not in get_args(FeatureDtype):
            raise ConfigError(
                f"LogMel(dtype={self.dtype!r}) is unknown. Give one of {', '.join(get_args(FeatureDtype))}."
            )

    @classmethod
    def from_processor(cls, processor: object, *, dtype: FeatureDtype = "float32") -> LogMel:
        """Returns the features that a Hugging Face feature extractor makes.

        Args:
            processor: A WhisperFeatureExtractor, or a processor that has one; or the folder (or JSON file) that it was
                saved to, for which transformers need not be installed.
            dtype: Type of the features.

        Raises:
            ConfigError: It is something else, or has a value that would change the features otherwise.
        """
        from energon_dali.decode.front_ends.registry import read_processor  # which imports all front ends

        config = read_processor(processor, "audio")
        if config.type_name != _EXTRACTOR:
            raise ConfigError(
                f"LogMel makes what {_EXTRACTOR} makes, and this is {config.type_name or 'no feature extractor'}. Use "
                "AudioFrontEnd.from_processor, or run yours in encode_sample on decoded audio."
            )
        config.require("do_normalize", False, "it changes the samples")
        fields = Whisper.fields_of(config)
        config.finish(Whisper.unused_keys)
        return cls(
            num_mels=fields["num_mels"],
            sample_rate=fields["sampling_rate"],
            n_fft=fields["n_fft"],
            hop_length=fields["hop_length"],
            duration_seconds=fields["chunk_seconds"],
            padding_value=fields["padding_value"],
            dtype=dtype,
        )

    @property
    def num_samples(self) -> int | None:
        """Samples that a waveform is padded or cut to; None keeps its length."""
        return None if self.duration_seconds is None else round(self.duration_seconds * self.sample_rate)

    def num_frames(self, num_samples: int) -> int:
        """Returns the frames of a waveform of this many samples."""
        return (self.num_samples or num_samples) // self.hop_length

    def __call__(self, waveform: torch.Tensor | NDArray[np.float32]) -> torch.Tensor:
        """Returns the features of waveforms, on their device; does not wait for it.

        Args:
            waveform: float32[..., samples] in [-1, 1], mono, at `sample_rate`.

        Returns:
            dtype[..., num_mels, frames], a new tensor. The loudest value of each waveform sets its own floor.

        Raises:
            ConfigError: It is not floating-point, or too short for one window.
        """
        import torch

        given = torch.as_tensor(waveform)
        if not given.is_floating_point() or not given.ndim:
            raise ConfigError(
                f"LogMel was given {given.dtype}{list(given.shape)}. It takes floating-point samples in [-1, 1], with "
                "the samples in the last axis. Divide integers by the largest of their type first."
            )
        samples = given.reshape(-1, given.shape[-1]).to(torch.float32)  # float32[waveforms, samples]
        wanted = self.num_samples or samples.shape[1]
        if wanted <= self.n_fft // 2 or wanted < self.hop_length:
            raise ConfigError(
                f"LogMel was given {wanted} samples, fewer than half a window of n_fft={self.n_fft} or a hop. Leave "
                "out such clips, or give duration_seconds, to which waveforms are padded."
            )
        features = self._features(samples, wanted)
        return features.view(*given.shape[:-1], *features.shape[1:]).to(getattr(torch, self.dtype))

    def _features(self, samples: torch.Tensor, wanted: int) -> torch.Tensor:
        """Returns float32[waveforms, num_mels, frames] of float32[waveforms, samples], padded or cut to `wanted`."""
        frames, heard = wanted // self.hop_length, wanted
        if self.padding_value == 0:
            heard = spectrogram.heard_samples(samples.shape[1], wanted, self.n_fft, self.hop_length)
        padded = spectrogram.padded_to(samples, heard, self.padding_value)
        power = spectrogram.power_spectra(padded, self.n_fft, self.hop_length)
        filters = spectrogram.mel_tensor(self.n_fft // 2 + 1, self.num_mels, self.sample_rate, high_hz=MAX_HZ)
        logs = spectrogram.log10_mel(power, filters)
        return spectrogram.whisper_scale(spectrogram.padded_to(logs, frames, spectrogram.LOG10_FLOOR))
