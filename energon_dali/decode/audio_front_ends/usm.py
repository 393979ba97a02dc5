"""Features of Google's Universal Speech Model: Gemma 3n and Gemma 4."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from typing_extensions import Self

from energon_dali.decode.audio_front_ends.audio_front_end import AudioInput, check_long_enough
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.audio_front_ends.framed_spectrum import window_weights
from energon_dali.decode.audio_front_ends.mel_bank import MelBank
from energon_dali.decode.audio_front_ends.padded_audio import Floats32, PaddedAudio
from energon_dali.decode.front_ends.extractor_config import take_sampling_rate
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

if TYPE_CHECKING:
    import torch

_FRAMES_AT_ONCE = 128
MOST_MELS = 1024


@dataclass(frozen=True, kw_only=True)
class UsmFeatures(PaddedAudio):
    """Base of front ends for Gemma's audio features: logarithms of amplitudes in mel bins, from float32 transforms.

    Values: dtype[frames, num_mels]. Recordings are padded in samples, so that a batch has frames of silence.
    """

    num_mels: int = 128
    """Mel bins (feature_size)."""
    frame_length: int = 512
    """Samples of a frame (frame_length_ms)."""
    hop_length: int = 160
    """Samples from one frame to the next (hop_length_ms)."""
    fft_length: int = 1024
    """Samples of the Fourier transform."""
    min_frequency: float = 125.0
    """Hz where the first mel filter begins."""
    max_frequency: float = 7600.0
    """Hz where the last mel filter ends."""
    preemphasis: float = 0.97
    """Share of the sample before that is subtracted."""
    preemphasis_htk_flavor: bool = True
    """Whether the first sample of a frame is scaled instead, or the sample before the frame is used."""
    input_scale_factor: float = 1.0
    """What samples are multiplied by."""
    mel_floor: float = 1e-5
    """Least amplitude of a bin, or what is added to it."""
    per_bin_mean: tuple[float, ...] | None = None
    """Subtracted from the bins."""
    per_bin_stddev: tuple[float, ...] | None = None
    """Divides the bins."""
    start_token: str = ""
    """Text before the tokens (boa_token)."""
    end_token: str = ""
    """Text after them (eoa_token)."""
    max_length: int | None = 480_000
    truncation: bool = True
    pad_to_multiple_of: int | None = 128

    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "input_features_mask")
    unused_keys: ClassVar[frozenset[str]] = frozenset({"return_attention_mask", "window", "mel_filters"})
    default_milliseconds: ClassVar[float]
    default_overdrive: ClassVar[bool]

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("dither", 0.0, "it adds random noise")
        config.require("padding_side", "right", "masks of recordings padded at their start")
        config.require("padding_value", 0.0, "recordings are padded with silence")
        rate = take_sampling_rate(config)
        frame = cls._samples_of(config, "frame_length", cls.default_milliseconds, rate)
        fft_length = 2 ** math.ceil(math.log2(frame))
        if config.take_flag("fft_overdrive", cls.default_overdrive):
            fft_length *= 2
        config.take("fft_length")  # of the extractor as an object
        mels = config.take_integer("feature_size", 128, most=MOST_MELS)
        ranges = {
            "preemphasis": (0.0, 1.0),
            "input_scale_factor": (1e-9, 1e9),
            "min_frequency": (0.0, rate / 2),
            "max_frequency": (1.0, float(rate)),
        }
        floor = config.take("mel_floor", cls.mel_floor)
        if isinstance(floor, np.ndarray):  # of the extractor as an object
            floor = floor.item()
        if not isinstance(floor, float) or not 0.0 < floor < math.inf:
            raise config.invalid("mel_floor", floor, "a number greater than 0")
        numbers: dict[str, Any] = {
            name: config.take_number(name, getattr(cls, name), least=least, most=most)
            for name, (least, most) in ranges.items()
        }
        bins: dict[str, Any] = {name: cls._per_bin(config, name, mels) for name in ("per_bin_mean", "per_bin_stddev")}
        return cls(
            sampling_rate=rate,
            num_mels=mels,
            frame_length=frame,
            hop_length=cls._samples_of(config, "hop_length", 10.0, rate),
            fft_length=fft_length,
            preemphasis_htk_flavor=config.take_flag("preemphasis_htk_flavor", True),
            mel_floor=floor,
            audio_token=config.outer_text("audio_token", cls.audio_token),
            start_token=config.outer_text("boa_token", cls.start_token),
            end_token=config.outer_text("eoa_token", cls.end_token),
            **numbers,
            **bins,
        )

    @classmethod
    def _samples_of(cls, config: ProcessorConfig, name: str, milliseconds: float, rate: int) -> int:
        """Returns a length that a file has in milliseconds, and an extractor in samples."""
        default = round(rate * config.take_number(f"{name}_ms", milliseconds, least=0.01, most=10_000.0) / 1000.0)
        return config.take_integer(name, default, most=1 << 20)

    @staticmethod
    def _per_bin(config: ProcessorConfig, name: str, mels: int) -> tuple[float, ...] | None:
        given = config.take(name)
        if given is None:
            return None
        values = np.asarray(given, dtype=np.float64).ravel()
        if len(values) != mels or not np.isfinite(values).all():
            raise config.invalid(name, given, f"a finite number for each of {mels} bins")
        return tuple(values.tolist())

    # --- lengths ---------------------------------------------------------------------------------------------------

    @property
    def lead(self) -> int:
        """Zeros before a recording."""
        return 0

    @property
    def max_samples(self) -> int | None:
        return self.rule.kept(1 << 30) if self.truncation else None

    def frames_of(self, padded: int) -> int:
        """Returns the frames of a padded row."""
        return max(0, (padded + self.lead - self.frame_length - 1) // self.hop_length + 1)

    def heard_frames(self, kept: int) -> int:
        """Returns the frames that reach into a recording, however it is padded."""
        return -(-(kept + self.lead) // self.hop_length)

    def valid_frames(self, kept: int) -> int:
        """Returns the frames of a recording that the mask counts, however it is padded."""
        return -(-kept // self.hop_length)

    def layout(self, num_samples: int) -> AudioLayout:
        kept = self.rule.kept(num_samples)
        padded = self.rule.padded([kept])
        check_long_enough(padded, self.frame_length + 1 - self.lead, "one frame of its padded samples")
        frames = min(self.valid_frames(kept), self.frames_of(padded))
        return AudioLayout(num_samples, kept, frames, self.tokens_of(frames))

    @abstractmethod
    def tokens_of(self, frames: int) -> int:
        """Returns the tokens of a recording of this many frames."""

    def audio_text(self, layout: AudioLayout) -> str:
        return f"{self.start_token}{super().audio_text(layout)}{self.end_token}"

    def text_tokens(self, layout: AudioLayout) -> int:
        return layout.num_tokens + 2

    # --- features --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def bank(self) -> MelBank:
        """The mel filters."""

    def window(self) -> Floats32:
        """Returns the window, float32[frame_length]."""
        return window_weights("hann", self.frame_length).astype(np.float32)

    def floored(self, mels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns amplitudes that have a logarithm; may change its argument."""
        return np.maximum(mels, self.mel_floor, out=mels)

    def _scaled(self, mels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns features of amplitudes, float64[frames, num_mels]."""
        features = np.log(self.floored(mels), out=mels)
        if self.per_bin_mean is not None:
            features -= np.array(self.per_bin_mean)
        if self.per_bin_stddev is not None:
            features /= np.array(self.per_bin_stddev)
        return features

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        count = self.heard_frames(layout.kept_samples)
        padded = np.zeros((count - 1) * self.hop_length + self.frame_length + 1, dtype=np.float32)
        padded[self.lead : self.lead + layout.kept_samples] = samples.numpy()
        if self.input_scale_factor != 1.0:
            padded *= self.input_scale_factor
        result = np.empty((count, self.num_mels), dtype=np.float32)
        window, frames = self.window(), self._frames(padded)
        for start in range(0, count, _FRAMES_AT_ONCE):
            some = slice(start, start + _FRAMES_AT_ONCE)
            weighted = frames[some] * window
            if self.preemphasis > 0.0 and self.preemphasis_htk_flavor:
                first = padded[:: self.hop_length][some][: len(weighted)] * (1.0 - self.preemphasis)
                weighted[:, 0] = first * window[0]
            amplitudes = np.abs(np.fft.rfft(weighted, n=self.fft_length))
            result[some] = self._scaled(self.bank.apply(amplitudes.astype(np.float64)))
        return torch.from_numpy(result)

    def _frames(self, padded: Floats32) -> Floats32:
        """Returns a view of the frames, [frames, frame_length], with preemphasis within them."""
        if self.preemphasis <= 0.0:
            return sliding_window_view(padded, self.frame_length)[:: self.hop_length]
        emphasized = np.empty_like(padded)
        emphasized[0] = padded[0]
        emphasized[1:] = padded[1:] - self.preemphasis * padded[:-1]
        first = 0 if self.preemphasis_htk_flavor else 1
        return sliding_window_view(emphasized[first:], self.frame_length)[:: self.hop_length]

    def silence(self) -> Floats32:
        """Returns the features of a frame of zeros, float32[num_mels]."""
        silence: Floats32 = self._scaled(np.zeros((1, self.num_mels)))[0].astype(np.float32)
        return silence

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        recordings = [audio for sample in samples for audio in sample]
        padded = self.rule.padded([audio.layout.kept_samples for audio in recordings])
        frames = self.frames_of(padded)
        batch = np.empty((len(recordings), frames, self.num_mels), dtype=np.float32)
        batch[:] = self.silence()
        mask = np.zeros((len(recordings), frames), dtype=np.bool_)
        for row, valid, audio in zip(batch, mask, recordings, strict=True):
            features = audio.features[:frames].numpy()
            row[: len(features)] = features
            valid[: self.valid_frames(audio.layout.kept_samples)] = True
        values = self.masked(batch, mask)
        return {"input_features": self.as_values(values), "input_features_mask": torch.from_numpy(mask)}

    def masked(self, batch: Floats32, mask: NDArray[np.bool_]) -> Floats32:
        """Returns the values of a batch, float32[recordings, frames, num_mels]; may change its argument."""
        return batch


@dataclass(frozen=True, kw_only=True)
class Gemma3n(UsmFeatures):
    """Gemma 3n: a fixed number of tokens for each recording (audio_seq_length)."""

    audio_seq_length: int = 188
    """Tokens of a recording."""
    audio_token: str = "<audio_soft_token>"
    start_token: str = "<start_of_audio>"
    end_token: str = "<end_of_audio>"
    blank_line_tokens: int = 1
    """Tokens of an empty line in the tokenizer: 1 if it merges two line breaks."""

    family: ClassVar[str] = "gemma3n"
    processors: ClassVar[tuple[str, ...]] = ("Gemma3nAudioFeatureExtractor",)
    default_milliseconds: ClassVar[float] = 32.0
    default_overdrive: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return (
            super()
            .from_config(config)
            .with_fields(
                audio_seq_length=config.outer_integer("audio_seq_length", 188, least=1),
                blank_line_tokens=config.blank_line_tokens(),
            )
        )

    @property
    def bank(self) -> MelBank:
        return MelBank(
            num_bins=self.fft_length // 2 + 1,
            num_filters=self.num_mels,
            low_hz=self.min_frequency,
            high_hz=self.max_frequency,
            sampling_rate=self.sampling_rate,
            float32_bins=True,
        )

    def window(self) -> Floats32:
        steps = np.arange(self.frame_length, dtype=np.float32)
        return (0.5 * (1 - np.cos(2 * np.pi * steps / self.frame_length))).astype(np.float32)

    def tokens_of(self, frames: int) -> int:
        return self.audio_seq_length

    def audio_text(self, layout: AudioLayout) -> str:
        return f"\n\n{super().audio_text(layout)}\n\n"

    def text_tokens(self, layout: AudioLayout) -> int:
        return super().text_tokens(layout) + 2 * self.blank_line_tokens


@dataclass(frozen=True, kw_only=True)
class Gemma4(UsmFeatures):
    """Gemma 4: a token for four frames. Frames that end in padding are zeros."""

    frame_length: int = 320
    fft_length: int = 512
    min_frequency: float = 0.0
    max_frequency: float = 8000.0
    preemphasis: float = 0.0
    mel_floor: float = 1e-3
    audio_token: str = "<|audio|>"
    start_token: str = "<|audio>"
    end_token: str = "<audio|>"

    family: ClassVar[str] = "gemma4"
    processors: ClassVar[tuple[str, ...]] = ("Gemma4AudioFeatureExtractor",)
    default_milliseconds: ClassVar[float] = 20.0
    default_overdrive: ClassVar[bool] = False

    @property
    def bank(self) -> MelBank:
        return MelBank(
            num_bins=self.fft_length // 2 + 1,
            num_filters=self.num_mels,
            low_hz=self.min_frequency,
            high_hz=self.max_frequency,
            sampling_rate=self.sampling_rate,
        )

    @property
    def lead(self) -> int:
        return self.frame_length // 2

    def floored(self, mels: NDArray[np.float64]) -> NDArray[np.float64]:
        mels += self.mel_floor
        return mels

    def valid_frames(self, kept: int) -> int:
        return max(0, (kept + self.lead - self.frame_length - 1) // self.hop_length + 1)

    def tokens_of(self, frames: int) -> int:
        return (frames + 3) // 4

    def masked(self, batch: Floats32, mask: NDArray[np.bool_]) -> Floats32:
        batch *= mask[..., None]
        return batch
