"""Granite Speech: log-mel features of torchaudio, two frames in one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.audio_front_ends import spectrogram
from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, AudioInput, check_long_enough
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.front_ends.extractor_config import take_sampling_rate
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class GraniteSpeech(AudioFrontEnd):
    """Granite Speech. Values: dtype[frames // 2, 2 * num_mels]. Tokens are those of the projector.

    Each recording is relative to its loudest value. In a batch with longer ones it is followed by silence.
    """

    num_mels: int = 80
    """Mel bands (n_mels)."""
    n_fft: int = 512
    """Samples of a transform."""
    win_length: int = 400
    """Samples of a window."""
    hop_length: int = 160
    """Samples from one frame to the next."""
    projector_window_size: int = 15
    """Positions of the encoder in a window of the projector."""
    projector_downsample_rate: int = 5
    """Positions of a window that become a token."""
    audio_token: str = "<|audio|>"

    family: ClassVar[str] = "granite_speech"
    processors: ClassVar[tuple[str, ...]] = ("GraniteSpeechFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "input_features_mask")
    unused_keys: ClassVar[frozenset[str]] = frozenset(
        {"feature_size", "mel_filters", "padding_side", "padding_value", "return_attention_mask"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hop_length <= self.win_length <= self.n_fft:
            raise self._invalid("win_length", "It must be at least hop_length and at most n_fft")
        if self.projector_downsample_rate > self.projector_window_size:
            raise self._invalid("projector_downsample_rate", "It must be at most projector_window_size")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        given = config.take("melspec_kwargs", {})
        saved = given if isinstance(given, dict) else {}
        return cls(
            sampling_rate=take_sampling_rate(config),
            num_mels=config.take_integer("n_mels", saved.get("n_mels", 80), most=1024),
            n_fft=config.take_integer("n_fft", saved.get("n_fft", 512), most=1 << 16),
            win_length=config.take_integer("win_length", saved.get("win_length", 400), most=1 << 16),
            hop_length=config.take_integer("hop_length", saved.get("hop_length", 160), most=1 << 16),
            projector_window_size=config.take_integer("projector_window_size", 15, most=1024),
            projector_downsample_rate=config.take_integer("projector_downsample_rate", 5, most=1024),
            audio_token=config.outer_text("audio_token", cls.audio_token),
        )

    def layout(self, num_samples: int) -> AudioLayout:
        check_long_enough(num_samples, self.n_fft // 2 + 1, "half a window, which it mirrors at both ends")
        check_long_enough(num_samples, self.hop_length, "two frames")
        frames = (num_samples // self.hop_length + 1) // 2 * 2
        blocks = math.ceil(frames // 2 / self.projector_window_size)
        tokens = blocks * (self.projector_window_size // self.projector_downsample_rate)
        return AudioLayout(num_samples, num_samples, frames, tokens)

    def attention_groups(self, layout: AudioLayout) -> list[tuple[int, int]]:
        return [(1, layout.num_frames // 2)]

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        return self._logs(samples[None], center=True)[0]

    def _logs(self, samples: torch.Tensor, *, center: bool) -> torch.Tensor:
        """Returns the logarithms to the base 10 of the powers in the bands: float32[1, frames, num_mels]."""
        import torch

        spectra = torch.stft(
            samples,
            self.n_fft,
            self.hop_length,
            self.win_length,
            window=spectrogram.hann_window(self.win_length),
            center=center,
            pad_mode="reflect",
            return_complex=True,
        )
        filters = torchaudio_filters(self.n_fft // 2 + 1, self.num_mels, self.sampling_rate)
        return torch.matmul(spectra.abs().pow(2.0).transpose(-1, -2), filters).clip_(min=1e-10).log10_()

    def ending(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor | None:
        return spectrogram.ending_of(samples, self.n_fft, self.hop_length)

    def finish(self, audio: AudioInput) -> torch.Tensor:
        return self._stacked(audio.features, len(audio.features))

    def _stacked(self, logs: torch.Tensor, frames: int) -> torch.Tensor:
        """Returns the features of a recording: silence after its frames, on its scale, two frames in one.

        Args:
            logs: float32[some frames, num_mels].
            frames: Of the recording with what follows it.
        """
        import torch

        filled = spectrogram.padded_to(logs.T, frames, spectrogram.LOG10_FLOOR).T[None]
        loudest = filled.amax(dim=(-2, -1), keepdim=True)
        scaled = torch.maximum(filled, loudest - 8.0).div_(4).add_(1)
        return scaled[:, : frames // 2 * 2].reshape(-1, 2 * self.num_mels).to(self.torch_dtype)

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        recordings = [audio for sample in samples for audio in sample]
        tokens = [audio.num_tokens for audio in recordings]
        padded = max(audio.layout.kept_samples for audio in recordings)
        frames = padded // self.hop_length + 1
        rows = [self._stacked(self._padded_logs(audio, padded), frames) for audio in recordings]
        return {
            "input_features": torch.stack(rows),
            "input_features_mask": spectrogram.frame_mask(tokens, max(tokens), torch.bool),
        }

    def _padded_logs(self, audio: AudioInput, padded: int) -> torch.Tensor:
        import torch

        kept = audio.layout.kept_samples
        first = spectrogram.first_padded_frame(kept, self.n_fft, self.hop_length)
        if kept == padded:
            return audio.features
        assert audio.ending is not None
        windows = spectrogram.padded_windows(
            audio.ending, kept, padded, self.n_fft, self.hop_length, frames=padded // self.hop_length + 1
        )
        return torch.cat([audio.features[:first], self._logs(windows[None], center=False)[0]])


@lru_cache(maxsize=8)
def torchaudio_filters(num_frequencies: int, num_mels: int, sampling_rate: int) -> torch.Tensor:
    """Returns the weights of the bands of torchaudio's MelSpectrogram: float32[frequencies, bands], not to be changed.

    Triangles on the HTK scale up to half the sampling rate, computed in single precision as torchaudio does.
    """
    import torch

    frequencies = torch.linspace(0, sampling_rate // 2, num_frequencies)
    most = 2595.0 * math.log10(1.0 + float(sampling_rate // 2) / 700.0)
    edges = 700.0 * (10.0 ** (torch.linspace(0.0, most, num_mels + 2) / 2595.0) - 1.0)
    widths = edges[1:] - edges[:-1]
    distance = edges[None] - frequencies[:, None]
    rising, falling = (-1.0 * distance[:, :-2]) / widths[:-1], distance[:, 2:] / widths[1:]
    return torch.max(torch.zeros(1), torch.min(rising, falling))
