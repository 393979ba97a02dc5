"""Models of speech synthesis that take log-mel spectra: UnivNet, CLVP (Tortoise), SpeechT5's decoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from energon_dali.decode.audio_front_ends.audio_front_end import AudioInput, check_long_enough
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.audio_front_ends.framed_spectrum import FramedSpectrum, WindowName
from energon_dali.decode.audio_front_ends.mel_bank import MelBank
from energon_dali.decode.audio_front_ends.padded_audio import Floats32, PaddedAudio, PaddedWaveforms
from energon_dali.decode.front_ends.extractor_config import take_sampling_rate
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

if TYPE_CHECKING:
    import torch

MOST_SAMPLES = 1 << 16
"""Longest frame that a configuration may ask for."""


def _take_window(config: ProcessorConfig) -> WindowName:
    name = config.take("win_function", "hann_window")
    if not isinstance(name, str) or name.removesuffix("_window") not in get_args(WindowName):
        raise config.invalid("win_function", name, f"It is one of {', '.join(get_args(WindowName))}")
    return name.removesuffix("_window")  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class SpeechT5Target(PaddedAudio):
    """SpeechT5: the spectra that its decoder learns (`audio_target`). Values: dtype[frames, num_mels].

    `SpeechT5Target.from_processor` makes it; `AudioFrontEnd.from_processor` makes the front end of the encoder.
    """

    num_mels: int = 80
    """Mel bins (num_mel_bins)."""
    frame_length: int = 1024
    """Samples of a frame (win_length, in milliseconds)."""
    hop_length: int = 256
    """Samples from one frame to the next (hop_length, in milliseconds)."""
    window: WindowName = "hann"
    """Weights of a frame's samples (win_function)."""
    min_frequency: float = 80.0
    """Hz where the first mel filter begins (fmin)."""
    max_frequency: float = 7600.0
    """Hz where the last mel filter ends (fmax)."""
    mel_floor: float = 1e-10
    """Least value of a bin."""

    family: ClassVar[str] = "speecht5_target"
    processors: ClassVar[tuple[str, ...]] = ("SpeechT5FeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_values", "attention_mask")
    unused_keys: ClassVar[frozenset[str]] = frozenset(
        {"do_normalize", "feature_size", "frame_signal_scale", "reduction_factor"}
    )
    in_text: ClassVar[bool] = False

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        rate = take_sampling_rate(config)
        return cls(
            sampling_rate=rate,
            num_mels=config.take_integer("num_mel_bins", 80, most=1024),
            frame_length=config.take_integer("win_length", 64, most=10_000) * rate // 1000,
            hop_length=config.take_integer("hop_length", 16, most=10_000) * rate // 1000,
            window=_take_window(config),
            min_frequency=config.take_number("fmin", 80.0, least=0.0, most=rate / 2),
            max_frequency=config.take_number("fmax", 7600.0, least=1.0, most=float(rate)),
            mel_floor=config.take_number("mel_floor", 1e-10, least=1e-30, most=1e6),
            returns_mask=config.take_flag("return_attention_mask", True),
            **cls.padding_of(config),
        )

    @property
    def spectrum(self) -> FramedSpectrum:
        """How waveforms become log-mel spectra."""
        fft_length = 2 ** int(np.ceil(np.log2(self.frame_length)))
        bank = MelBank(
            num_bins=fft_length // 2 + 1,
            num_filters=self.num_mels,
            low_hz=self.min_frequency,
            high_hz=self.max_frequency,
            sampling_rate=self.sampling_rate,
            scale="slaney",
            area=True,
        )
        return FramedSpectrum(
            frame_length=self.frame_length,
            hop_length=self.hop_length,
            fft_length=fft_length,
            window=self.window,
            power=1,
            mel=bank,
            mel_floor=self.mel_floor,
            log="log10",
        )

    def layout(self, num_samples: int) -> AudioLayout:
        check_long_enough(num_samples, self.frame_length // 2 + 1, "half a frame, which it mirrors")
        frames = self.rule.kept(self.spectrum.num_frames(num_samples))
        return AudioLayout(num_samples, num_samples, frames, 0)

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        return torch.from_numpy(np.ascontiguousarray(self.spectrum.compute(samples.numpy())))

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        batch, mask = self.rule.stack([audio.features.numpy() for sample in samples for audio in sample])
        made = {"input_values": self.as_values(batch)}
        return made | ({"attention_mask": torch.from_numpy(mask)} if self.returns_mask else {})


@dataclass(frozen=True, kw_only=True)
class PaddedSpectra(PaddedWaveforms):
    """Base of front ends whose extractors pad samples, and compute spectra of the padded rows when a batch is made."""

    mask_key: ClassVar[str] = "attention_mask"

    @abstractmethod
    def frames_of(self, padded: int) -> int:
        """Returns the frames of a padded row."""

    @abstractmethod
    def least_samples(self) -> int:
        """Returns the fewest samples of a padded row."""

    @abstractmethod
    def features_of(self, row: Floats32) -> Floats32:
        """Returns the features of a padded row."""

    def layout(self, num_samples: int) -> AudioLayout:
        kept = self.rule.kept(num_samples)
        padded = self.rule.padded([num_samples])
        check_long_enough(padded, self.least_samples(), "a frame of its padded samples")
        return AudioLayout(num_samples, kept, self.frames_of(padded), 0)

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        batch, mask = self.stacked(samples)
        made = {"input_features": self.as_values(np.stack([self.features_of(row) for row in batch]))}
        return made | ({self.mask_key: torch.from_numpy(mask)} if self.returns_mask else {})


@dataclass(frozen=True, kw_only=True)
class Clvp(PaddedSpectra):
    """CLVP: six seconds of each recording. Values: dtype[num_mels, frames]. The mask is that of samples."""

    sampling_rate: int = 22_050
    padding: Any = "max_length"
    max_length: int | None = 132_300
    truncation: bool = True
    num_mels: int = 80
    """Mel bins (feature_size)."""
    n_fft: int = 1024
    """Samples of a frame."""
    hop_length: int = 256
    """Samples from one frame to the next."""
    mel_norms: tuple[float, ...] | None = None
    """What divides the bins."""

    family: ClassVar[str] = "clvp"
    processors: ClassVar[tuple[str, ...]] = ("ClvpFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "attention_mask")
    unused_keys: ClassVar[frozenset[str]] = frozenset(
        {"chunk_length", "n_samples", "nb_max_frames", "return_attention_mask"}  # the call's default comes first
    )

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        rate = take_sampling_rate(config, 22_050)
        mels = config.take_integer("feature_size", 80, most=1024)
        norms = config.take("mel_norms")
        if norms is not None:
            norms = tuple(np.asarray(norms, dtype=np.float64).ravel().tolist())
            if len(norms) != mels:
                raise config.invalid("mel_norms", norms, f"It has a number for each of {mels} bins")
        return cls(
            sampling_rate=rate,
            num_mels=mels,
            n_fft=config.take_integer("n_fft", 1024, least=2, most=MOST_SAMPLES),
            hop_length=config.take_integer("hop_length", 256, most=MOST_SAMPLES),
            max_length=config.take_integer("default_audio_length", 6, most=3600) * rate,
            mel_norms=norms,
            **cls.padding_of(config),
        )

    @property
    def spectrum(self) -> FramedSpectrum:
        """How padded samples become mel spectra."""
        bank = MelBank(
            num_bins=self.n_fft // 2 + 1,
            num_filters=self.num_mels,
            low_hz=0.0,
            high_hz=8000.0,
            sampling_rate=self.sampling_rate,
            area=True,
        )
        return FramedSpectrum(
            frame_length=self.n_fft, hop_length=self.hop_length, fft_length=self.n_fft, mel=bank, log=None
        )

    def frames_of(self, padded: int) -> int:
        return self.spectrum.num_frames(padded)

    def least_samples(self) -> int:
        return self.n_fft // 2 + 1

    def features_of(self, row: Floats32) -> Floats32:
        logs = np.log(np.maximum(self.spectrum.compute(row).T, 1e-5))
        if self.mel_norms is not None:
            logs /= np.array(self.mel_norms)[:, None]
        features: Floats32 = logs.astype(np.float32)
        return features


@dataclass(frozen=True, kw_only=True)
class UnivNet(PaddedSpectra):
    """UnivNet: spectra and noise, from which it makes samples. Values: dtype[frames, num_mels].

    What the extractor draws from a generator is drawn from the seed of the recording, a function of (seed, sample,
    epoch): the noise of `extractor(..., generator=numpy.random.default_rng(seed))` for this recording alone.
    """

    sampling_rate: int = 24_000
    max_length: int | None = 240_000
    truncation: bool = True
    num_mels: int = 100
    """Mel bins (num_mel_bins)."""
    frame_length: int = 1024
    """Samples of a frame (filter_length, or the power of two from win_length on)."""
    hop_length: int = 256
    """Samples from one frame to the next."""
    window: WindowName = "hann"
    """Weights of a frame's samples (win_function)."""
    min_frequency: float = 0.0
    """Hz where the first mel filter begins (fmin)."""
    max_frequency: float = 12_000.0
    """Hz where the last mel filter ends (fmax)."""
    mel_floor: float = 1e-9
    """Added to powers before their root."""
    center: bool = False
    """Whether half a frame of mirrored samples is put on both sides, too."""
    compression_factor: float = 1.0
    """Multiplies amplitudes."""
    compression_clip_val: float = 1e-5
    """Least amplitude of a bin."""
    normalize_range: tuple[float, float] | None = None
    """(normalize_min, normalize_max) that become -1 and 1, with do_normalize."""
    noise_channels: int = 64
    """Random numbers for each frame (model_in_channels); 0 for no noise."""

    family: ClassVar[str] = "univnet"
    processors: ClassVar[tuple[str, ...]] = ("UnivNetFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "noise_sequence", "padding_mask")
    unused_keys: ClassVar[frozenset[str]] = frozenset({"feature_size", "pad_end_length"})
    mask_key: ClassVar[str] = "padding_mask"

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        rate = take_sampling_rate(config, 24_000)
        win_length = config.take_integer("win_length", 1024, least=2, most=MOST_SAMPLES)
        frame = 1024
        if config.take("filter_length", 1024) is not None:
            frame = config.take_integer("filter_length", 1024, least=2, most=MOST_SAMPLES)
        if frame != win_length:
            raise config.error(f"win_length={win_length} and filter_length={frame} differ, which the extractor refuses")
        low = config.take_number("normalize_min", -11.512925148010254, least=-1e6, most=1e6)
        high = config.take_number("normalize_max", 2.3143386840820312, least=-1e6, most=1e6)
        return cls(
            sampling_rate=rate,
            num_mels=config.take_integer("num_mel_bins", 100, most=1024),
            frame_length=frame,
            hop_length=config.take_integer("hop_length", 256, most=MOST_SAMPLES),
            window=_take_window(config),
            min_frequency=config.take_number("fmin", 0.0, least=0.0, most=rate / 2),
            max_frequency=config.take_number("fmax", rate / 2, least=1.0, most=float(rate)),
            mel_floor=config.take_number("mel_floor", 1e-9, least=0.0, most=1e6),
            center=config.take_flag("center", False),
            compression_factor=config.take_number("compression_factor", 1.0, least=1e-9, most=1e9),
            compression_clip_val=config.take_number("compression_clip_val", 1e-5, least=1e-30, most=1e6),
            normalize_range=(low, high) if config.take_flag("do_normalize", False) else None,
            noise_channels=config.take_integer("model_in_channels", 64, most=4096),
            max_length=config.take_integer("max_length_s", 10, most=3600) * rate,
            returns_mask=config.take_flag("return_attention_mask", True),
            **cls.padding_of(config),
        )

    @property
    def _margin(self) -> int:
        """Mirrored samples on both sides."""
        return int((self.frame_length - self.hop_length) / 2)

    @property
    def spectrum(self) -> FramedSpectrum:
        """How padded samples become spectra."""
        bank = MelBank(
            num_bins=self.frame_length // 2 + 1,
            num_filters=self.num_mels,
            low_hz=self.min_frequency,
            high_hz=self.max_frequency,
            sampling_rate=self.sampling_rate,
            scale="slaney",
            area=True,
        )
        return FramedSpectrum(
            frame_length=self.frame_length,
            hop_length=self.hop_length,
            fft_length=self.frame_length,
            window=self.window,
            center=self.center,
            mel=bank,
        )

    def frames_of(self, padded: int) -> int:
        return self.spectrum.num_frames(padded + 2 * self._margin)

    def least_samples(self) -> int:
        return max(self._margin + 1, self.frame_length - 2 * self._margin)

    def features_of(self, row: Floats32) -> Floats32:
        return self._normalized(self._logarithms(np.pad(row, self._margin, mode="reflect")).astype(np.float32))

    def _logarithms(self, samples: Floats32) -> NDArray[np.float64]:
        transform = self.spectrum.transform(samples)
        amplitudes = np.sqrt(transform.real**2 + transform.imag**2 + self.mel_floor)
        mels = self.spectrum.mel.apply(amplitudes.astype(np.float64))
        logarithms: NDArray[np.float64] = np.log(np.maximum(mels, self.compression_clip_val) * self.compression_factor)
        return logarithms

    def _normalized(self, features: Floats32) -> Floats32:
        if self.normalize_range is None:
            return features
        low, high = self.normalize_range
        return 2 * ((features - low) / (high - low)) - 1

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        made = super().collate(samples)
        if self.noise_channels:
            shape = (made["input_features"].shape[1], self.noise_channels)
            noise = [
                np.random.default_rng(audio.seed).standard_normal(shape, dtype=np.float32)
                for sample in samples
                for audio in sample
            ]
            made["noise_sequence"] = torch.from_numpy(np.stack(noise)).to(self.torch_dtype)
        return made
