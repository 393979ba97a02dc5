"""Extractors that take windows from the first sample on, as Kaldi does: Phi-4 multimodal, LASR."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from energon_dali.decode.audio_front_ends import spectrogram
from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, AudioInput, check_long_enough
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.front_ends.extractor_config import take_windows
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

if TYPE_CHECKING:
    import torch

_INT16 = 32768


@dataclass(frozen=True, kw_only=True)
class KaldiFrames(AudioFrontEnd):
    """Base of front ends for windows that are inside the recording. Values: dtype[frames, num_mels]."""

    num_mels: int = 80
    """Mel bands (feature_size)."""
    n_fft: int = 512
    """Samples of a transform."""
    win_length: int = 400
    """Samples of a window."""
    hop_length: int = 160
    """Samples from one frame to the next."""

    unused_keys: ClassVar[frozenset[str]] = frozenset({"return_attention_mask", "do_normalize"})
    default_mels: ClassVar[int] = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hop_length <= self.win_length <= self.n_fft:
            raise self._invalid("win_length", "It must be at least hop_length and at most n_fft")

    def frames_of(self, samples: int) -> int:
        """Returns the windows that are inside the recording.

        Raises:
            DecodeError: There is none.
        """
        check_long_enough(samples, self.win_length, "a window")
        return (samples - self.win_length) // self.hop_length + 1

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        return self.log_mel(samples[None].unfold(-1, self.win_length, self.hop_length))[0]

    @abstractmethod
    def log_mel(self, frames: torch.Tensor) -> torch.Tensor:
        """Returns the logarithms of the powers in the bands.

        Args:
            frames: float32[1, frames, win_length].

        Returns:
            float32[1, frames, num_mels].
        """

    def padded_rows(self, recordings: Sequence[AudioInput]) -> torch.Tensor:
        """Returns the features of recordings, padded with zeros to the longest: dtype[recordings, frames, num_mels].

        Windows that reach past the end of a recording are computed too, as from the extractor, which masks them.
        """
        import torch

        longest = max(audio.layout.kept_samples for audio in recordings)
        width = self.frames_of(longest)
        rows = []
        for audio in recordings:
            rest = width - len(audio.features)
            row = audio.features
            if audio.layout.kept_samples < longest and rest:
                assert audio.ending is not None
                length = (rest - 1) * self.hop_length + self.win_length
                windows = spectrogram.padded_to(audio.ending, length).unfold(-1, self.win_length, self.hop_length)
                row = torch.cat([row, self.log_mel(self.masked(windows[None], audio.layout))[0]])
            rows.append(row)
        return torch.stack(rows).to(self.torch_dtype)

    def masked(self, windows: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        """Returns windows after the recording as the extractor changes them.

        Args:
            windows: float32[1, windows, win_length], of the first window that reaches past the end and of later ones.
            layout: Of the recording.
        """
        return windows

    def ending(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor | None:
        return samples[self.frames_of(layout.kept_samples) * self.hop_length :].clone()


@dataclass(frozen=True, kw_only=True)
class Phi4MultimodalAudio(KaldiFrames):
    """Audio of Phi-4 multimodal."""

    preemphasis: float = 0.97
    """Share of the sample before that is subtracted from each sample of a window."""
    low_hz: float = 0.0
    """Lowest frequency of the bands."""
    high_hz: float = 7690.0
    """Highest frequency of the bands."""
    frame_stride: int = 1
    """Factor of the number of frames in masks and token counts (audio_feat_stride)."""
    compression: int = 8
    """Frames that become a feature of the encoder (audio_compression_rate)."""
    downsampling: int = 1
    """Features that become a token (audio_downsample_rate)."""
    audio_token: str = "<|endoftext11|>"

    family: ClassVar[str] = "phi4_multimodal_audio"
    processors: ClassVar[tuple[str, ...]] = ("Phi4MultimodalFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("audio_input_features", "audio_embed_sizes", "audio_attention_mask")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        made = cls(
            **take_windows(config, cls.default_mels),
            preemphasis=config.take_number("preemphasis", 0.97, least=-1.0, most=1.0),
            low_hz=config.take_number("mel_min_frequency", 0.0, least=0.0),
            high_hz=config.take_number("mel_max_frequency", 7690.0, least=1.0),
            frame_stride=config.take_integer("audio_feat_stride", 1, most=64),
            compression=config.take_integer("audio_compression_rate", 8, most=1024),
            downsampling=config.take_integer("audio_downsample_rate", 1, most=1024),
            audio_token=config.outer_text("audio_token", cls.audio_token),
        )
        given = getattr(config, "mel_filters", None)
        if given is not None and not np.array_equal(made._filters().numpy(), np.asarray(given, np.float32)):
            raise config.error(
                "its mel_filters are not those from 0 to 7,690 Hz, and it does not keep mel_min_frequency and "
                "mel_max_frequency. Give the values of its file as a dict, with both"
            )
        return made

    def _filters(self) -> torch.Tensor:
        """Returns the weights of the bands: float32[frequencies, bands]."""
        return spectrogram.mel_tensor(
            self.n_fft // 2 + 1,
            self.num_mels,
            self.sampling_rate,
            low_hz=self.low_hz,
            high_hz=self.high_hz,
            scale="kaldi",
            area=False,
            in_mels=True,
        )

    def layout(self, num_samples: int) -> AudioLayout:
        frames = self.frames_of(num_samples) * self.frame_stride
        tokens = math.ceil(math.ceil(frames / self.compression) / self.downsampling)
        return AudioLayout(num_samples, num_samples, frames, tokens)

    def attention_groups(self, layout: AudioLayout) -> list[tuple[int, int]]:
        return [(1, -(-layout.num_frames // self.compression))]

    def log_mel(self, frames: torch.Tensor) -> torch.Tensor:
        import torch

        before = torch.roll(frames, 1, dims=-1)
        before[:, :, 0] = before[:, :, 1]
        scaled = (frames - self.preemphasis * before) * _INT16
        spectra = torch.fft.rfft(_hamming(self.win_length) * scaled.view(-1, self.win_length), n=self.n_fft, dim=1)
        power = torch.abs(spectra.view(1, -1, spectra.shape[-1]).to(torch.complex64)) ** 2
        return torch.log(torch.clamp(power @ self._filters(), min=1.0))

    def masked(self, windows: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        first = self.frames_of(layout.kept_samples)
        silent = layout.kept_samples // self.hop_length - 1 - first
        kept = windows.clone()
        kept[:, : max(0, silent)] = 0
        return kept

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        recordings = [audio for sample in samples for audio in sample]
        frames = [audio.layout.num_frames for audio in recordings]
        made: dict[str, Any] = {
            "audio_input_features": self.padded_rows(recordings),
            "audio_embed_sizes": torch.tensor([audio.num_tokens for audio in recordings], dtype=torch.int64),
        }
        if len(recordings) > 1:
            made["audio_attention_mask"] = spectrogram.frame_mask(frames, max(frames), torch.bool)
        return made


@dataclass(frozen=True, kw_only=True)
class Lasr(KaldiFrames):
    """LASR: features in double precision. Tokens: positions, of four frames each."""

    num_mels: int = 128

    family: ClassVar[str] = "lasr"
    processors: ClassVar[tuple[str, ...]] = ("LasrFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "attention_mask")
    in_text: ClassVar[bool] = False
    default_mels: ClassVar[int] = 128

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return cls(**take_windows(config, cls.default_mels))

    def layout(self, num_samples: int) -> AudioLayout:
        frames = self.frames_of(num_samples)
        return AudioLayout(num_samples, num_samples, frames, -(-frames // 4))

    def log_mel(self, frames: torch.Tensor) -> torch.Tensor:
        import torch

        spectra = torch.fft.rfft(_symmetric_hann(self.win_length) * frames.double(), n=self.n_fft)
        power = torch.abs(spectra) ** 2
        filters = _lasr_filters(self.n_fft // 2 + 1, self.num_mels, self.sampling_rate)
        return torch.log(torch.clamp(power @ filters, min=1e-5)).to(torch.float32)

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        recordings = [audio for sample in samples for audio in sample]
        frames = [audio.layout.num_frames for audio in recordings]
        rows = self.padded_rows(recordings)
        return {
            "input_features": rows,
            "attention_mask": spectrogram.frame_mask(frames, rows.shape[1], torch.bool),
        }


@lru_cache(maxsize=8)
def _hamming(length: int) -> torch.Tensor:
    import torch

    return torch.hamming_window(length, periodic=False, dtype=torch.float64)


@lru_cache(maxsize=8)
def _symmetric_hann(length: int) -> torch.Tensor:
    import torch

    return torch.hann_window(length, periodic=False, dtype=torch.float64)


@lru_cache(maxsize=8)
def _lasr_filters(num_frequencies: int, num_mels: int, sampling_rate: int) -> torch.Tensor:
    """Returns the weights of the bands from 125 to 7,500 Hz, without the lowest frequency: float64[frequencies, bands].

    As tf.signal.linear_to_mel_weight_matrix has them.
    """
    import torch

    frequencies = np.linspace(0.0, sampling_rate / 2.0, num_frequencies)[1:]
    mels = 1127.0 * np.log(1.0 + (frequencies / 700.0))[:, None]
    low, high = (1127.0 * np.log(1.0 + (hertz / 700.0)) for hertz in (125.0, 7500.0))
    edges = np.linspace(low, high, num_mels + 2)[None]
    rising = (mels - edges[:, :-2]) / (edges[:, 1:-1] - edges[:, :-2])
    falling = (edges[:, 2:] - mels) / (edges[:, 2:] - edges[:, 1:-1])
    weights = np.maximum(0.0, np.minimum(rising, falling))
    return torch.from_numpy(np.concatenate([np.zeros((1, num_mels)), weights]))
