"""CLAP: log-mel spectra of ten seconds; of longer recordings a random part, or three parts and a view of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from typing_extensions import Self

from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, AudioInput, check_long_enough
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.audio_front_ends.framed_spectrum import FramedSpectrum
from energon_dali.decode.audio_front_ends.mel_bank import MelBank
from energon_dali.decode.front_ends.extractor_config import take_sampling_rate
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.plan.rng import uniform

if TYPE_CHECKING:
    import torch

LongRule = Literal["fusion", "rand_trunc"]
ShortRule = Literal["repeatpad", "repeat", "pad"]
_FUSED_MELS = 64
"""Mel bins of the view of the whole, whatever the extractor's."""
_DRAWS = 0x636C6170
"""Part of the key of CLAP's random numbers, so that they differ from other draws."""


@dataclass(frozen=True, kw_only=True)
class Clap(AudioFrontEnd):
    """CLAP. Values: dtype[4, frames, num_mels] with "fusion", dtype[1, frames, num_mels] with "rand_trunc".

    What the extractor draws from NumPy's global generator is drawn from the seed of the recording, a function of
    (seed, sample, epoch). As the extractor, a batch in which no recording is longer marks one as longer; it is drawn
    from the seed of the first.
    """

    sampling_rate: int = 48_000
    num_mels: int = 64
    """Mel bins (feature_size)."""
    n_fft: int = 1024
    """Samples of a frame (fft_window_size)."""
    hop_length: int = 480
    """Samples from one frame to the next."""
    window_samples: int = 480_000
    """Samples that the model takes (max_length_s)."""
    min_frequency: float = 0.0
    """Hz where the first mel filter begins (frequency_min)."""
    max_frequency: float = 14_000.0
    """Hz where the last mel filter ends (frequency_max)."""
    longer: LongRule = "fusion"
    """What is taken of longer recordings (truncation): three random parts and the whole, or a random part."""
    shorter: ShortRule = "repeatpad"
    """How shorter ones are padded (padding): repeated as often as they fit, repeated and cut, or not repeated."""

    family: ClassVar[str] = "clap"
    processors: ClassVar[tuple[str, ...]] = ("ClapFeatureExtractor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "is_longer")
    unused_keys: ClassVar[frozenset[str]] = frozenset(
        {"chunk_length_s", "n_fft", "nb_frequency_bins", "nb_max_frames", "nb_max_samples", "padding_side"}
        | {"padding_value", "return_attention_mask", "top_db"}
    )
    in_text: ClassVar[bool] = False

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        rate = take_sampling_rate(config, 48_000)
        longer, shorter = config.take("truncation", "fusion"), config.take("padding", "repeatpad")
        for name, value, allowed in (("truncation", longer, LongRule), ("padding", shorter, ShortRule)):
            if value not in get_args(allowed):
                raise config.invalid(name, value, f"It is one of {', '.join(get_args(allowed))}")
        return cls(
            sampling_rate=rate,
            num_mels=config.take_integer("feature_size", 64, most=1024),
            n_fft=config.take_integer("fft_window_size", 1024, least=2, most=1 << 16),
            hop_length=config.take_integer("hop_length", 480, most=1 << 16),
            window_samples=config.take_integer("max_length_s", 10, most=3600) * rate,
            min_frequency=config.take_number("frequency_min", 0.0, least=0.0, most=rate / 2),
            max_frequency=config.take_number("frequency_max", 14_000.0, least=1.0, most=float(rate)),
            longer=longer,
            shorter=shorter,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longer == "fusion" and self.num_mels != _FUSED_MELS:
            raise self._invalid("num_mels", f"The extractor's view of the whole has {_FUSED_MELS} bins, with fusion")
        if self.window_samples <= self.n_fft // 2:
            raise self._invalid("window_samples", "It must be more than half a frame")

    @property
    def spectrum(self) -> FramedSpectrum:
        """How waveforms become log-mel spectra."""
        slaney = self.longer != "fusion"
        bank = MelBank(
            num_bins=self.n_fft // 2 + 1,
            num_filters=self.num_mels,
            low_hz=self.min_frequency,
            high_hz=self.max_frequency,
            sampling_rate=self.sampling_rate,
            scale="slaney" if slaney else "htk",
            area=slaney,
        )
        return FramedSpectrum(
            frame_length=self.n_fft, hop_length=self.hop_length, fft_length=self.n_fft, mel=bank, log="dB"
        )

    @property
    def window_frames(self) -> int:
        """Frames that the model takes."""
        return self.window_samples // self.hop_length + 1

    def layout(self, num_samples: int) -> AudioLayout:
        check_long_enough(num_samples, 1, "it repeats them")
        return AudioLayout(num_samples, num_samples, self.window_frames, 0)

    def choose(self, samples: torch.Tensor, seed: int) -> torch.Tensor:
        overflow = samples.shape[-1] - self.window_samples
        if self.longer == "fusion" or overflow <= 0:
            return samples
        start = _draw(seed, 0, overflow + 1)
        return samples[start : start + self.window_samples]

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        waveform, window = samples.numpy(), self.window_samples
        if len(waveform) < window:
            times = window // len(waveform)
            if self.shorter == "repeat":
                waveform = np.tile(waveform, times + 1)[:window]
            elif self.shorter == "repeatpad":
                waveform = np.tile(waveform, times)
            waveform = np.pad(waveform, (0, window - len(waveform)))
        return torch.from_numpy(np.ascontiguousarray(self.spectrum.compute(waveform)))

    def finish(self, audio: AudioInput) -> torch.Tensor:
        import torch

        mel = audio.features
        if self.longer != "fusion":
            return mel[None].to(self.torch_dtype)
        if len(mel) == self.window_frames:
            return mel.to(self.torch_dtype).expand(4, -1, -1)
        size = [self.window_frames, _FUSED_MELS]
        whole = torch.nn.functional.interpolate(mel[None, None], size=size, mode="bilinear", align_corners=False)
        parts = [mel[start : start + self.window_frames] for start in self.starts_of(audio)]
        return torch.stack([whole[0, 0], *parts]).to(self.torch_dtype)

    def starts_of(self, audio: AudioInput) -> list[int]:
        """Returns the first frames of the parts of a longer recording: one in each third of the possible ones.

        Args:
            audio: The recording, with "fusion".
        """
        thirds = np.array_split(np.arange(len(audio.features) - self.window_frames + 1), 3)
        return [
            int(third[_draw(audio.seed, number, len(third))]) if len(third) else 0
            for number, third in enumerate(thirds, 1)
        ]

    def marked_of(self, recordings: Sequence[AudioInput]) -> int:
        """Returns which recording is marked as longer, if none is."""
        return _draw(recordings[0].seed, 4, len(recordings))

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        recordings = [audio for sample in samples for audio in sample]
        if self.longer == "fusion":
            longer = [len(audio.features) > self.window_frames for audio in recordings]
            if not any(longer):
                longer[self.marked_of(recordings)] = True
        else:
            longer = [audio.layout.num_samples > self.window_samples for audio in recordings]
        return {
            "input_features": torch.stack([audio.values for audio in recordings]),
            "is_longer": torch.tensor(longer)[:, None],
        }


def _draw(seed: int, number: int, count: int) -> int:
    """Returns a random number below `count`: the draw of that number of a recording."""
    return int(uniform(number, number + 1, _DRAWS, seed)[0] * count)
