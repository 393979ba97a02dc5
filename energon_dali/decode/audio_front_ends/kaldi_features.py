"""Models with log-mel features as Kaldi's: SeamlessM4T, Wav2Vec2-BERT, Speech2Text, Audio Spectrogram Transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, AudioInput, check_long_enough
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.audio_front_ends.framed_spectrum import FramedSpectrum, WindowName
from energon_dali.decode.audio_front_ends.mel_bank import MelBank
from energon_dali.decode.audio_front_ends.padded_audio import Floats32, PaddedAudio
from energon_dali.decode.front_ends.extractor_config import take_sampling_rate
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

if TYPE_CHECKING:
    import torch

FRAME_LENGTH = 400
HOP_LENGTH = 160
MOST_MELS = 1024


def kaldi_spectrum(num_mels: int, sampling_rate: int, window: WindowName) -> FramedSpectrum:
    """Returns Kaldi's log-mel features: frames of 400 samples, every 160.

    Args:
        num_mels: Mel bins.
        sampling_rate: Samples per second.
        window: Of a frame.
    """
    return FramedSpectrum(
        frame_length=FRAME_LENGTH,
        hop_length=HOP_LENGTH,
        fft_length=512,
        window=window,
        periodic=False,
        center=False,
        preemphasis=0.97,
        remove_dc_offset=True,
        mel_floor=1.192092955078125e-07,
        mel=MelBank(
            num_bins=257,
            num_filters=num_mels,
            low_hz=20,
            high_hz=sampling_rate // 2,
            sampling_rate=sampling_rate,
            scale="kaldi",
            in_mels=True,
        ),
    )


def _check_frames(num_samples: int, frames: int) -> None:
    """Checks that a recording has at least this many frames.

    Raises:
        DecodeError: It has fewer.
    """
    least = FRAME_LENGTH + HOP_LENGTH * (frames - 1)
    noun = "frame" if frames == 1 else "frames"
    check_long_enough(num_samples, least, f"{frames} {noun} of {FRAME_LENGTH} samples, every {HOP_LENGTH}")


@dataclass(frozen=True, kw_only=True)
class SeamlessM4T(PaddedAudio):
    """SeamlessM4T (both versions) and Wav2Vec2-BERT: normalised bins, of which consecutive frames form one row.

    `layout.num_frames` are the rows that the mask counts. Values: dtype[rows, stride * num_mels].
    """

    num_mels: int = 80
    """Mel bins (num_mel_bins)."""
    stride: int = 2
    """Frames of a row."""
    normalizes: bool = True
    """Whether each bin gets zero mean and unit variance (do_normalize_per_mel_bins of the call)."""
    pad_to_multiple_of: int | None = 2
    """Frames are padded to a multiple of this; what is over after that is cut off, if it forms no row."""

    family: ClassVar[str] = "seamless_m4t"
    processors: ClassVar[tuple[str, ...]] = ("SeamlessM4TFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "attention_mask")
    in_text: ClassVar[bool] = False

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.take_integer("feature_size", 80, least=2)  # of 1, the extractor would pad both axes
        config.take("return_attention_mask")
        return cls(
            sampling_rate=take_sampling_rate(config),
            num_mels=config.take_integer("num_mel_bins", 80, most=MOST_MELS),
            stride=config.take_integer("stride", 2, most=MOST_MELS),
            **cls.padding_of(config),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride < 1:
            raise self._invalid("stride", "It is at least 1")

    def layout(self, num_samples: int) -> AudioLayout:
        _check_frames(num_samples, 2 if self.normalizes else 1)
        frames = (num_samples - FRAME_LENGTH) // HOP_LENGTH + 1
        return AudioLayout(num_samples, num_samples, self.rule.kept(frames) // self.stride, 0)

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        spectrum = kaldi_spectrum(self.num_mels, self.sampling_rate, "povey")
        features = spectrum.compute(samples.numpy() * np.float32(2**15))
        if self.normalizes:
            deviation = np.sqrt(features.var(0, ddof=1)[None] + 1e-7)
            features = (features - features.mean(0)[None]) / deviation
        return torch.from_numpy(np.ascontiguousarray(features))

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        batch, mask = self.rule.stack([audio.features.numpy() for sample in samples for audio in sample])
        rows = batch.shape[1] // self.stride
        batch, mask = batch[:, : rows * self.stride], mask[:, : rows * self.stride]
        made = {"input_features": self.as_values(batch.reshape(len(batch), rows, self.stride * self.num_mels))}
        if self.returns_mask:
            second = np.arange(mask.shape[1]) % self.stride == 1
            made["attention_mask"] = torch.from_numpy(mask[:, second])
        return made


@dataclass(frozen=True, kw_only=True)
class Speech2Text(PaddedAudio):
    """Speech2Text: bins that are normalised over a recording. Values: dtype[frames, num_mels]."""

    num_mels: int = 80
    """Mel bins (num_mel_bins)."""
    normalizes_means: bool = True
    """Whether each bin gets zero mean (normalize_means, of do_ceptral_normalize)."""
    normalizes_deviations: bool = True
    """Whether each bin is divided by its standard deviation (normalize_vars, of do_ceptral_normalize)."""

    family: ClassVar[str] = "speech_to_text"
    processors: ClassVar[tuple[str, ...]] = ("Speech2TextFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "attention_mask")
    in_text: ClassVar[bool] = False

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("dither", 0.0, "it adds random noise")
        config.take_integer("feature_size", 80, least=2)  # of 1, the extractor would pad both axes
        config.take("return_attention_mask")
        means, deviations = config.take_flag("normalize_means", True), config.take_flag("normalize_vars", True)
        normalizes = config.take_flag("do_ceptral_normalize", True)
        return cls(
            sampling_rate=take_sampling_rate(config),
            num_mels=config.take_integer("num_mel_bins", 80, most=MOST_MELS),
            normalizes_means=normalizes and means,
            normalizes_deviations=normalizes and deviations,
            **cls.padding_of(config),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.normalizes_means or self.normalizes_deviations) and self.padding != "none":
            if self.padding_side == "left":
                raise self._invalid("padding_side", "The extractor normalises the first frames, which are padding")
            if not self.returns_mask:
                raise self._invalid("returns_mask", "The extractor needs the mask to normalise padded rows")

    def layout(self, num_samples: int) -> AudioLayout:
        _check_frames(num_samples, 1)
        kept = self.rule.kept((num_samples - FRAME_LENGTH) // HOP_LENGTH + 1)
        return AudioLayout(num_samples, FRAME_LENGTH + (kept - 1) * HOP_LENGTH, kept, 0)

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        spectrum = kaldi_spectrum(self.num_mels, self.sampling_rate, "povey")
        features = np.ascontiguousarray(spectrum.compute(samples.numpy() * np.float32(2**15)))
        return torch.from_numpy(self._normalized(features))

    def _normalized(self, features: Floats32) -> Floats32:
        mean = features.mean(axis=0)
        result = features - mean if self.normalizes_means else features
        if self.normalizes_deviations:
            with np.errstate(divide="ignore", invalid="ignore"):  # a bin that does not change, as in the extractor
                result = result / result.std(axis=0)
        return result

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        batch, mask = self.rule.stack([audio.features.numpy() for sample in samples for audio in sample])
        made = {"input_features": self.as_values(batch)}
        return made | ({"attention_mask": torch.from_numpy(mask)} if self.returns_mask else {})


@dataclass(frozen=True, kw_only=True)
class AudioSpectrogramTransformer(AudioFrontEnd):
    """Audio Spectrogram Transformer: a fixed number of frames. Values: dtype[max_frames, num_mels]."""

    num_mels: int = 128
    """Mel bins (num_mel_bins)."""
    max_frames: int = 1024
    """Frames that each recording is padded or cut to (max_length)."""
    mean: float | None = -4.2677393
    """Subtracted from values, and from the zeros of the padding; None (do_normalize=False) does not normalise."""
    std: float = 4.5689974
    """Twice this divides them."""

    family: ClassVar[str] = "audio_spectrogram_transformer"
    processors: ClassVar[tuple[str, ...]] = ("ASTFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_values",)
    unused_keys: ClassVar[frozenset[str]] = frozenset(
        {"feature_size", "padding_side", "padding_value", "return_attention_mask"}
    )
    in_text: ClassVar[bool] = False

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        mean = config.take_number("mean", -4.2677393, least=-1e6, most=1e6)
        return cls(
            sampling_rate=take_sampling_rate(config),
            num_mels=config.take_integer("num_mel_bins", 128, most=MOST_MELS),
            max_frames=config.take_integer("max_length", 1024, most=1 << 20),
            mean=mean if config.take_flag("do_normalize", True) else None,
            std=config.take_number("std", cls.std, least=1e-6, most=1e6),
        )

    @property
    def max_samples(self) -> int | None:
        return FRAME_LENGTH + (self.max_frames - 1) * HOP_LENGTH

    def layout(self, num_samples: int) -> AudioLayout:
        _check_frames(num_samples, 1)
        frames = min((num_samples - FRAME_LENGTH) // HOP_LENGTH + 1, self.max_frames)
        return AudioLayout(num_samples, FRAME_LENGTH + (frames - 1) * HOP_LENGTH, frames, 0)

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        features = kaldi_spectrum(self.num_mels, self.sampling_rate, "hann").compute(samples.numpy())
        padded = np.zeros((self.max_frames, self.num_mels), dtype=np.float32)
        padded[: len(features)] = features
        if self.mean is not None:
            padded -= self.mean
            padded /= self.std * 2
        return torch.from_numpy(padded)

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        return {"input_values": torch.stack([audio.values for sample in samples for audio in sample])}
