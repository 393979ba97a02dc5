"""The description of what a model wants of a recording: its length as integers, and how to make its features."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from typing_extensions import Self

from energon_dali.calls import check_number
from energon_dali.decode.audio_front_ends.audio_layout import AudioLayout
from energon_dali.decode.front_ends.processor_family import (
    ProcessorFamily,
    check_text,
    checked_layouts,
    expand_placeholders,
)
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

FeatureDtype = Literal["float32", "bfloat16", "float16"]

_TOLERANCE_SAMPLES = 1e-6
"""A duration that misses a whole number of samples by less has that number: sums of floats miss it slightly."""


@dataclass(frozen=True, kw_only=True)
class AudioFrontEnd(ProcessorFamily):
    """What a model wants of a recording, declared on a decoder; `from_processor` makes one.

    It has two halves. `layout` computes frames, masks and number of tokens from the number of samples, which a file's
    packets determine. `render` makes the features of decoded samples. Values are frozen, hashable and picklable.

        front_end = AudioFrontEnd.from_processor("folder/of/a/processor", dtype="bfloat16")
        front_end.layout_of(12.5).num_tokens
        decoder = DaliDecoder(audio_front_end=front_end)      # recordings become AudioInput

    Raises:
        ConfigError: A field has an invalid value.
    """

    sampling_rate: int = 16_000
    """Samples per second that the model takes; recordings are resampled to it when they are decoded."""
    channels: int = 1
    """Channels that the model takes; recordings are mixed to them when they are decoded."""
    dtype: FeatureDtype = "float32"
    """Type of the values: "float32", "bfloat16" or "float16"."""
    audio_token: str = "<audio>"
    """Placeholder of a recording in the text, and of each of its features after `expand_text`."""
    audio_token_id: int | None = None
    """Id of a recording's features in the expanded text, by which token counts recognise an expanded text.
    `from_processor` takes it from a processor that has a tokenizer, or from the config.json of a model's folder."""

    in_text: ClassVar[bool] = True
    """Whether the model has audio in its text. If not, recordings add no tokens to a text."""

    def __post_init__(self) -> None:
        for name in ("sampling_rate", "channels"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self._invalid(name, "It is a whole number of at least 1")
        if self.dtype not in get_args(FeatureDtype):
            raise self._invalid("dtype", f"Give one of {', '.join(get_args(FeatureDtype))}")
        if not isinstance(self.audio_token, str) or not self.audio_token:
            raise self._invalid("audio_token", "It is the text of a token, such as <audio>")
        number = self.audio_token_id
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise self._invalid("audio_token_id", "It is a whole number of at least 0, or None")

    @classmethod
    def from_processor(cls, processor: object, *, dtype: FeatureDtype = "float32", **fields: Any) -> Self:
        """Returns the front end that makes what a Hugging Face feature extractor makes.

        Args:
            processor: A feature extractor, or a processor that has one; or the folder (or JSON file) that it was saved
                to, for which transformers need not be installed; or the values of such a file.
            dtype: Type of the values.
            **fields: Further fields of the family's front end, which some extractors do not hold.

        Raises:
            ConfigError: No front end covers this extractor, or one of its values. The message names the nearest one.
        """
        from energon_dali.decode.audio_front_ends.registry import make_audio_front_end

        return make_audio_front_end(cls, processor, dtype, fields)

    # --- lengths ---------------------------------------------------------------------------------------------------

    @property
    def max_samples(self) -> int | None:
        """Most samples of a recording that are used; the rest is cut off. None if there is no limit."""
        return None

    @property
    def max_seconds(self) -> float | None:
        """Likewise in seconds."""
        return None if self.max_samples is None else self.max_samples / self.sampling_rate

    @abstractmethod
    def layout(self, num_samples: int) -> AudioLayout:
        """Returns what a recording of this length becomes.

        Args:
            num_samples: Samples in each channel, at `sampling_rate`.

        Raises:
            DecodeError: The extractor refuses recordings of this length.
        """

    def layout_of(self, duration_seconds: float) -> AudioLayout:
        """Returns what a recording of this duration becomes.

        Args:
            duration_seconds: Of the decoded samples, such as `AudioInput.duration_seconds`, or those of a media index.

        Raises:
            ConfigError: It is negative or not finite.
            DecodeError: The extractor refuses recordings of this length.
        """
        return self.layout(self.samples_of(duration_seconds))

    def samples_of(self, duration_seconds: float) -> int:
        """Returns the samples that a recording of this duration has at `sampling_rate`: a started one does not count.

        Args:
            duration_seconds: At least 0.

        Raises:
            ConfigError: It is not a number, or negative.
        """
        seconds = check_number("duration_seconds", duration_seconds)
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"duration_seconds={duration_seconds!r} is invalid: give a finite number of at least 0.")
        return math.floor(seconds * self.sampling_rate + _TOLERANCE_SAMPLES)

    def segments(self, num_samples: int, most_samples: int | None = None) -> list[tuple[int, int]]:
        """Returns (start, stop) of the segments into which a long recording is cut, in samples.

        They follow from the length alone: all but the last have the largest length. A rest at the end that is too short
        for the extractor is left out.

        Args:
            num_samples: Of the recording, at `sampling_rate`.
            most_samples: Of a segment; None for `max_samples`.

        Raises:
            ConfigError: There is no largest length, or the extractor uses less of a segment.
            DecodeError: The extractor refuses the whole recording, because it is too short.
        """
        most = self.max_samples if most_samples is None else most_samples
        if most is None or most < 1:
            raise ConfigError(
                f"{type(self).__name__} takes recordings of any length. Give most_samples, the length of a segment."
            )
        if self.max_samples is not None and most > self.max_samples:
            raise ConfigError(
                f"{type(self).__name__} uses {self.max_samples} samples of a segment, so the rest of segments of "
                f"{most} would be lost. Give at most that as most_samples, or None."
            )
        found = [(start, min(start + most, num_samples)) for start in range(0, max(1, num_samples), most)]
        try:
            self.layout(found[-1][1] - found[-1][0])
        except DecodeError:
            if len(found) == 1:
                raise
            del found[-1]
        return found

    def attention_groups(self, layout: AudioLayout) -> list[tuple[int, int]]:
        """Returns (number of groups, positions of each): which positions of the model's encoder attend to each other.

        By default the frames of a recording are one group. Numbers for balancing, not for shapes.

        Args:
            layout: Of the recording.
        """
        return [(1, layout.num_frames)]

    # --- text ------------------------------------------------------------------------------------------------------

    def audio_text(self, layout: AudioLayout) -> str:
        """Returns the text that stands for one recording: its placeholder tokens, and markers around them.

        Args:
            layout: Of the recording.
        """
        return self.audio_token * layout.num_tokens

    def text_tokens(self, layout: AudioLayout) -> int:
        """Returns the tokens of `audio_text`, of which each marker is one in the tokenizers of the published models.

        Args:
            layout: Of the recording.
        """
        return layout.num_tokens if self.in_text else 0

    def expand_text(self, text: str, layouts: Iterable[AudioLayout]) -> str:
        """Returns a text with each audio token replaced by the tokens of its recording, as the processor expands it.

        Args:
            text: With one `audio_token` per recording.
            layouts: Of the recordings (`handle.layout`, or `AudioInput.layout`), in the order of the text.

        Raises:
            ConfigError: The text has more or fewer audio tokens than there are recordings, the model has no audio in
                its text, or an argument is of another type.
        """
        if not self.in_text:
            raise ConfigError(f"The text of {type(self).__name__} has no audio in it, so there is nothing to expand.")
        check_text(text)
        texts = [self.audio_text(layout) for layout in checked_layouts(layouts, AudioLayout)]
        return expand_placeholders(text, self.audio_token, texts, "audio parts")

    # --- features --------------------------------------------------------------------------------------------------

    def render(
        self, waveform: torch.Tensor | NDArray[np.float32], layout: AudioLayout | None = None, *, seed: int = 0
    ) -> AudioInput:
        """Returns a recording as the model takes it.

        Args:
            waveform: float32[samples] in [-1, 1] at `sampling_rate`, or float32[channels, samples], a tensor or array.
            layout: Of its length; None computes it. The samples after its `kept_samples` may be left out.
            seed: Determines what extractors draw at random (CLAP, UnivNet), a function of (seed, sample, epoch).

        Raises:
            ConfigError: It is not floating-point, or has another number of channels, or the layout has another length.
            DecodeError: The extractor refuses recordings of this length.
        """
        samples = self._checked(waveform)
        if layout is None:
            layout = self.layout(samples.shape[-1])
        elif samples.shape[-1] not in (layout.num_samples, layout.kept_samples):
            raise ConfigError(
                f"{type(self).__name__} was given {samples.shape[-1]} samples, and the layout of a recording of "
                f"{layout.num_samples}, of which {layout.kept_samples} are used. Give the layout of this recording, or "
                "none."
            )
        kept = self.choose(samples[..., : layout.kept_samples], seed)
        return AudioInput(self.arrange(kept, layout), layout, self, self.ending(kept, layout), seed)

    def choose(self, samples: torch.Tensor, seed: int) -> torch.Tensor:
        """Returns the samples of a recording that are used, where the extractor draws them at random; else all.

        Args:
            samples: float32[kept samples]; float32[channels, kept samples] if `channels` is above 1.
            seed: Determines which.
        """
        return samples

    @abstractmethod
    def arrange(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor:
        """Returns what is kept of a recording, from which `finish` makes the values.

        Args:
            samples: float32[kept samples]; float32[channels, kept samples] if `channels` is above 1.
            layout: Of the recording.

        Returns:
            float32, of any shape: features without padding, or before a last step that depends on all of them.
        """

    def ending(self, samples: torch.Tensor, layout: AudioLayout) -> torch.Tensor | None:
        """Returns the last samples if `collate` needs them: where padding in a batch changes the last frames.

        Args:
            samples: As in `arrange`.
            layout: Of the recording.

        Returns:
            float32[some samples], a copy; None if padding changes nothing, as by default.
        """
        return None

    def finish(self, audio: AudioInput) -> torch.Tensor:
        """Returns the values of a recording, as the extractor returns them for it alone, without the batch axis.

        By default its features in the front end's dtype.

        Args:
            audio: What `render` made.
        """
        return audio.features.to(self.torch_dtype)

    @abstractmethod
    def collate(self, samples: Sequence[Sequence[AudioInput]]) -> dict[str, Any]:
        """Returns what the processor returns for these recordings: its keys, shapes, dtypes and masks.

        Args:
            samples: The recordings of each sample.

        Raises:
            ConfigError: They cannot form one batch.
        """

    def _checked(self, waveform: torch.Tensor | NDArray[np.float32]) -> torch.Tensor:
        """Returns samples as float32[samples], or float32[channels, samples] if there are several channels."""
        import torch

        given = torch.as_tensor(waveform)
        if not given.is_floating_point() or given.ndim not in (1, 2):
            raise ConfigError(
                f"{type(self).__name__} was given {given.dtype}{list(given.shape)}. It takes floating-point samples in "
                "[-1, 1], with the samples in the last axis. Divide integers by the largest of their type first."
            )
        channels = 1 if given.ndim == 1 else len(given)
        if channels != self.channels:
            raise ConfigError(
                f"{type(self).__name__} was given {channels} channels, and takes {self.channels}. Mix them first: the "
                "mean of all channels, or ClipAudio(channels=...)."
            )
        return given.to(torch.float32).reshape(-1) if channels == 1 else given.to(torch.float32)

    def _invalid(self, name: str, allowed: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__}({name}={getattr(self, name)!r}) is invalid. {allowed}.")


@dataclass(eq=False)
class AudioInput:
    """One recording as a model takes it. `batch_audio` makes a batch of several."""

    features: torch.Tensor
    """What the front end keeps of the recording, on the CPU; `values` are made of it."""
    layout: AudioLayout
    """Length of the recording, frames and number of tokens."""
    front_end: AudioFrontEnd
    """What made it; one object for all recordings of a decoder within a process."""
    ending: torch.Tensor | None = None
    """Its last samples, if their frames change when the recording shares a batch with longer ones; else None."""
    seed: int = 0
    """Determines what the extractor draws at random."""

    @property
    def values(self) -> torch.Tensor:
        """What the extractor returns for this recording alone, in the front end's dtype, computed now."""
        return self.front_end.finish(self)

    @property
    def num_tokens(self) -> int:
        """Tokens of this recording in the text, as the processor counts them."""
        return self.layout.num_tokens

    @property
    def duration_seconds(self) -> float:
        """Duration of the whole recording, of which the extractor may have cut off the end."""
        return self.layout.num_samples / self.front_end.sampling_rate

    @property
    def batches_none(self) -> bool:
        """Whether a batch may have samples without a recording: their texts have no placeholder for one.

        A model without placeholders takes one row per sample, so that rows would belong to other samples.
        """
        return self.front_end.in_text

    @classmethod
    def from_samples(cls, samples: Sequence[AudioInput | None]) -> dict[str, Any]:
        """Returns what `batch_audio` makes of one recording per sample: this is how the default `batch` uses it.

        Args:
            samples: The recording of each sample; None for a sample without one, which adds nothing.

        Raises:
            ConfigError: As `batch_audio`.
        """
        from energon_dali.decode.audio_front_ends.audio_batch import batch_audio

        return batch_audio([[] if sample is None else [sample] for sample in samples])

    def __repr__(self) -> str:
        return (
            f"AudioInput({self.front_end.family}: {self.duration_seconds:g} s -> {self.layout.num_frames} frames "
            f"{self.front_end.dtype}, {self.num_tokens} tokens)"
        )


def check_long_enough(layout_samples: int, least: int, why: str) -> None:
    """Checks that an extractor takes recordings of this length.

    Args:
        layout_samples: Samples of the recording.
        least: Fewest samples that the extractor takes.
        why: What it needs them for, for the message.

    Raises:
        DecodeError: There are fewer.
    """
    if layout_samples < least:
        raise DecodeError(f"The recording has {layout_samples} samples, and the extractor needs {least}: {why}")
