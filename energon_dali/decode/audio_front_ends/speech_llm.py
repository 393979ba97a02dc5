"""Language models with Whisper's features of audio: Qwen2-Audio, Qwen-Omni, Voxtral, Audio Flamingo 3, GLM-ASR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.audio_front_ends import spectrogram
from energon_dali.decode.audio_front_ends.audio_front_end import AudioInput, check_long_enough
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.audio_front_ends.whisper import ChunkFeatures, LongestFeatures, WhisperFeatures
from energon_dali.decode.front_ends.processor_config import ProcessorConfig

if TYPE_CHECKING:
    import torch

MOST_CHUNKS = 4096


def pooled_tokens(frames: int) -> int:
    """Returns the tokens of Whisper's frames after its second convolution, and a mean of two positions each."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def windowed_tokens(frames: int, window_frames: int) -> int:
    """Returns the tokens of frames after three convolutions of stride 2, in windows of their own.

    Args:
        frames: Of the recording.
        window_frames: Half the frames of a window (n_window).
    """
    windows, rest = divmod(frames, 2 * window_frames)
    halved = (rest - 1) // 2 + 1
    return ((halved - 1) // 2 + 1 - 1) // 2 + 1 + windows * 13


@dataclass(frozen=True, kw_only=True)
class Qwen2Audio(ChunkFeatures):
    """Qwen2-Audio and Qwen2.5-Omni: 30 seconds of features for each recording, of which a mask says what was heard."""

    audio_token: str = "<|AUDIO|>"

    family: ClassVar[str] = "qwen2_audio"
    around: ClassVar[tuple[str, ...]] = ("Qwen2AudioProcessor", "Qwen2_5OmniProcessor")
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "feature_attention_mask")
    mask_key: ClassVar[str] = "feature_attention_mask"

    def tokens_of(self, frames: int) -> int:
        return pooled_tokens(frames)


@dataclass(frozen=True, kw_only=True)
class Qwen3Omni(LongestFeatures):
    """Qwen3-Omni: features as long as the recording, padded to the longest of a batch.

    A frame that a recording has only started does not count, as in the processor's `_get_num_multimodal_tokens`. In a
    batch with longer recordings the processor itself counts it.
    """

    num_mels: int = 128
    audio_token: str = "<|audio_pad|>"
    window_frames: int = 50
    """Half the frames of a window of the encoder (n_window)."""

    family: ClassVar[str] = "qwen3_omni"
    around: ClassVar[tuple[str, ...]] = ("Qwen3OmniMoeProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "feature_attention_mask")
    mask_key: ClassVar[str] = "feature_attention_mask"

    def layout(self, num_samples: int) -> AudioLayout:
        self.check_window(num_samples)
        frames = num_samples // self.hop_length
        return AudioLayout(num_samples, num_samples, frames, windowed_tokens(frames, self.window_frames))

    def attention_groups(self, layout: AudioLayout) -> list[tuple[int, int]]:
        return [(1, layout.num_tokens)]


@dataclass(frozen=True, kw_only=True)
class AudioFlamingo3(WhisperFeatures):
    """Audio Flamingo 3: windows of 30 seconds, each with its own features. Values: dtype[windows, num_mels, frames]."""

    num_mels: int = 128
    audio_token: str = "<sound>"
    longest_seconds: int = 600
    """Longest recording (max_audio_len); the rest of it is cut off."""

    family: ClassVar[str] = "audio_flamingo3"
    around: ClassVar[tuple[str, ...]] = ("AudioFlamingo3Processor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features", "input_features_mask")
    mask_key: ClassVar[str] = "input_features_mask"

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        longest = config.outer_integer("max_audio_len", cls.longest_seconds, least=1)
        return cls(**cls.fields_of(config), longest_seconds=longest)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest_seconds < self.chunk_seconds:
            raise self._invalid("longest_seconds", "It must be at least chunk_seconds")

    @property
    def max_samples(self) -> int | None:
        return self.longest_seconds // self.chunk_seconds * self.chunk_samples

    def layout(self, num_samples: int) -> AudioLayout:
        assert self.max_samples is not None
        kept = min(num_samples, self.max_samples)
        chunks = max(1, -(-kept // self.chunk_samples))
        frames = sum(self._frames_of(kept, chunk) for chunk in range(chunks))
        return AudioLayout(num_samples, kept, frames, self.tokens_of(frames), chunks)

    def tokens_of(self, frames: int) -> int:
        """Returns the tokens of a recording of this many frames, in all its windows."""
        return pooled_tokens(frames)

    def _frames_of(self, kept: int, chunk: int) -> int:
        samples = min(self.chunk_samples, kept - chunk * self.chunk_samples)
        return min(-(-samples // self.hop_length), self.chunk_frames)

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        import torch

        size = self.chunk_samples
        chunks = [
            self.logs(samples[size * chunk : size * (chunk + 1)], self.chunk_samples)
            for chunk in range(layout.num_chunks)
        ]
        width = max(logs.shape[1] for logs in chunks)
        return torch.stack([spectrogram.padded_to(logs, width, spectrogram.LOG10_FLOOR) for logs in chunks])

    def finish(self, audio: AudioInput) -> torch.Tensor:
        import torch

        return torch.stack([self.scaled(logs, self.chunk_frames) for logs in audio.features])

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        recordings = [audio for sample in samples for audio in sample]
        frames = [
            self._frames_of(audio.layout.kept_samples, chunk)
            for audio in recordings
            for chunk in range(audio.layout.num_chunks)
        ]
        return {
            "input_features": torch.cat([audio.values for audio in recordings]),
            self.mask_key: spectrogram.frame_mask(frames, self.chunk_frames, torch.int32),
        }


@dataclass(frozen=True, kw_only=True)
class GlmAsr(AudioFlamingo3):
    """GLM-ASR: the windows of Audio Flamingo 3, of which four positions of the encoder become a token."""

    audio_token: str = "<|pad|>"
    longest_seconds: int = 655

    family: ClassVar[str] = "glm_asr"
    around: ClassVar[tuple[str, ...]] = ("GlmAsrProcessor",)

    def tokens_of(self, frames: int) -> int:
        return ((frames - 1) // 2 + 1 - 4) // 4 + 1


@dataclass(frozen=True, kw_only=True)
class Voxtral(WhisperFeatures):
    """Voxtral: recordings padded to whole chunks of 30 seconds. Values: dtype[chunks, num_mels, frames].

    All chunks of a recording share one loudest value. The tokens are those of mistral-common: 375 for each chunk.
    """

    num_mels: int = 128
    audio_token: str = "[AUDIO]"

    family: ClassVar[str] = "voxtral"
    around: ClassVar[tuple[str, ...]] = ("VoxtralProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_features",)

    def layout(self, num_samples: int) -> AudioLayout:
        check_long_enough(num_samples, 1, "a sample")
        chunks = -(-num_samples // self.chunk_samples)
        frames = min(-(-num_samples // self.hop_length), chunks * self.chunk_frames)
        return AudioLayout(num_samples, num_samples, frames, chunks * (self.chunk_frames // 8), chunks)

    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        return self.logs(samples, layout.num_chunks * self.chunk_samples)

    def finish(self, audio: AudioInput) -> torch.Tensor:
        values = self.scaled(audio.features, audio.layout.num_chunks * self.chunk_frames)
        return values.view(self.num_mels, audio.layout.num_chunks, self.chunk_frames).transpose(0, 1)

    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        import torch

        return {"input_features": torch.cat([audio.values for sample in samples for audio in sample])}
