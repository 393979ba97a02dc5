"""Log-mel spectrograms of audio, as Whisper and the models built on its encoder take them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from energon_dali.calls import explain_call
from energon_dali.decode.front_ends.processor_config import read_json_object
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch

FeatureDtype = Literal["float32", "bfloat16", "float16"]

_EXTRACTOR = "WhisperFeatureExtractor"
_FILES = ("preprocessor_config.json", "processor_config.json")
_MAX_FREQUENCY_HZ = 8000.0
_POWER_FLOOR = 1e-10
_WITHOUT_EFFECT = frozenset(
    {
        "chunk_length",
        "feature_extractor_type",
        "feature_size",
        "hop_length",
        "mel_filters",
        "n_fft",
        "n_samples",
        "nb_max_frames",
        "padding_value",
        "processor_class",
        "return_attention_mask",
        "sampling_rate",
    }
)
"""Keys that are taken, follow from others, or say nothing about the features."""
_MUST_BE = {"dither": 0.0, "padding_side": "right", "do_normalize": False, "return_tensors": None}


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
        values = _read_extractor(processor)
        name = values.get("feature_extractor_type")
        if name != _EXTRACTOR:
            raise ConfigError(
                f"LogMel makes what {_EXTRACTOR} makes, and this is {name or 'no feature extractor'}. Run yours in "
                "encode_sample on decoded audio."
            )
        for key, value in values.items():
            if key in _MUST_BE:
                if value is not None and value != _MUST_BE[key]:
                    raise ConfigError(
                        f"LogMel does not support {key}={value!r} of {_EXTRACTOR}: it must be {_MUST_BE[key]!r}. "
                        "Change it, or run the extractor in encode_sample on decoded audio."
                    )
            elif key not in _WITHOUT_EFFECT and not key.startswith("_"):
                raise ConfigError(
                    f"LogMel does not support {key}={value!r} of {_EXTRACTOR}. Values that could change features are "
                    "not ignored. Remove it, or run the extractor in encode_sample on decoded audio."
                )
        return cls(
            num_mels=int(values.get("feature_size", 80)),
            sample_rate=int(values.get("sampling_rate", 16_000)),
            n_fft=int(values.get("n_fft", 400)),
            hop_length=int(values.get("hop_length", 160)),
            duration_seconds=values.get("chunk_length", 30),
            padding_value=float(values.get("padding_value", 0.0)),
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
        import torch

        frames = wanted // self.hop_length
        # Silent frames have the floor's power, so the transform stops where padding with zeros fills its windows.
        heard = wanted
        if self.padding_value == 0:
            heard = min(wanted, (samples.shape[1] // self.hop_length + 1) * self.hop_length + 2 * self.n_fft)
        padded = samples[:, :heard]
        if padded.shape[1] < heard:
            missing = (0, heard - padded.shape[1])
            padded = torch.nn.functional.pad(padded, missing, value=self.padding_value)
        window = torch.hann_window(self.n_fft, device=samples.device)
        spectrum = torch.stft(padded, self.n_fft, self.hop_length, window=window, return_complex=True)
        # As transformers does, without the last frame.
        power = (spectrum[..., :-1].abs() ** 2).contiguous()  # float32[waveforms, n_fft // 2 + 1, frames]
        filters = torch.from_numpy(_mel_filters(self.num_mels, self.n_fft, self.sample_rate)).to(samples.device)
        logs = (filters @ power).clamp_(min=_POWER_FLOOR).log10_()
        if logs.shape[2] < frames:
            silent = (0, frames - logs.shape[2])
            logs = torch.nn.functional.pad(logs, silent, value=math.log10(_POWER_FLOOR))
        loudest = logs.amax(dim=(1, 2), keepdim=True)
        return torch.maximum(logs, loudest - 8.0).add_(4.0).div_(4.0)


@lru_cache(maxsize=8)
def _mel_filters(num_mels: int, n_fft: int, sample_rate: int) -> NDArray[np.float32]:
    """Returns the weights of the frequencies in each band: float32[num_mels, n_fft // 2 + 1].

    Triangles on Slaney's mel scale, each of about the same energy: the filters of librosa's defaults up to 8 kHz, which
    Whisper uses.
    """
    edges = _to_hertz(np.linspace(0.0, _to_mel(_MAX_FREQUENCY_HZ), num_mels + 2))
    frequencies = np.linspace(0, sample_rate // 2, n_fft // 2 + 1)
    distance = edges[None] - frequencies[:, None]  # float64[frequencies, num_mels + 2]
    widths = np.diff(edges)
    rising, falling = -distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:]
    weights = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))
    return np.ascontiguousarray(weights.T.astype(np.float32))


_LINEAR_TO_HZ = 1000.0
_LINEAR_TO_MEL = 15.0
_MEL_PER_LOG = 27.0 / math.log(6.4)


def _to_mel(hertz: float) -> float:
    """Returns a frequency of at least 1 kHz on Slaney's mel scale, which is linear below that and logarithmic above."""
    return _LINEAR_TO_MEL + math.log(hertz / _LINEAR_TO_HZ) * _MEL_PER_LOG


def _to_hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _LINEAR_TO_HZ * np.exp((mels - _LINEAR_TO_MEL) / _MEL_PER_LOG)
    return np.where(mels >= _LINEAR_TO_MEL, above, 200.0 * mels / 3.0)


def _read_extractor(processor: object) -> Mapping[str, Any]:
    """Returns the values of a feature extractor; its class as feature_extractor_type."""
    if isinstance(processor, (str, Path)):
        path = Path(processor)
        files = [path / name for name in _FILES if (path / name).is_file()] if path.is_dir() else [path]
        if not files:
            raise ConfigError(f"{path} has none of {', '.join(_FILES)}. Give the folder that a processor was saved to.")
        values = read_json_object(files[0], "Give the preprocessor_config.json of save_pretrained.")
    elif isinstance(processor, Mapping):
        values = dict(processor)
    else:
        extractor = getattr(processor, "feature_extractor", processor)
        to_dict = getattr(extractor, "to_dict", None)
        if not callable(to_dict):
            raise ConfigError(
                f"{type(processor).__name__} is not a feature extractor. Give a WhisperFeatureExtractor, a processor "
                "that has one, or the folder it was saved to."
            )
        values = {"feature_extractor_type": type(extractor).__name__, **to_dict()}
    inner = values.get("feature_extractor")
    return inner if isinstance(inner, Mapping) else values
