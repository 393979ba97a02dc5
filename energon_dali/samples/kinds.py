"""The kinds of samples that datasets name in `dataset.yaml`, and the clips of a video that a field of them may hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError
from energon_dali.samples.base import CrudeSample, Sample, edataclass
from energon_dali.samples.batching import batch_pad_stack

if TYPE_CHECKING:
    import torch


@edataclass
class TextSample(Sample):
    """A text."""

    text: str
    """The text."""


@edataclass
class ImageSample(Sample):
    """An image."""

    image: torch.Tensor
    """Image (C, H, W), in the dtype of the decoder."""


@edataclass
class CaptioningSample(Sample):
    """An image and its caption."""

    image: torch.Tensor
    """Image (C, H, W)."""
    caption: str
    """What it shows."""


@edataclass
class ImageClassificationSample(Sample):
    """An image and its class."""

    image: torch.Tensor
    """Image (C, H, W)."""
    label: int | None = None
    """Index of its class."""
    label_name: str | None = None
    """Name of its class."""


@edataclass
class VQASample(Sample):
    """An image, a question about it, and answers."""

    image: torch.Tensor
    """Image (C, H, W)."""
    context: str
    """The question."""
    answers: list[str] | None = None
    """Possible answers."""
    answer_weights: torch.Tensor | None = None
    """Weight (A,) of each answer."""


@edataclass
class MultiChoiceVQASample(Sample):
    """An image, a question about it, and answers to choose from."""

    image: torch.Tensor
    """Image (C, H, W)."""
    context: str
    """The question."""
    choices: list[str] | None = None
    """The answers to choose from."""
    correct_choice_idx: int = 0
    """Index of the right choice."""


@edataclass
class VidQASample(Sample):
    """A video, a question about it, and answers."""

    video: Any
    """The video: an AVDecoder, `Clips`, or another type, depending on `av_decode`."""
    context: str
    """The question."""
    answers: list[str] | None = None
    """Possible answers."""
    answer_weights: torch.Tensor | None = None
    """Weight (A,) of each answer."""


@edataclass
class InterleavedSample(Sample):
    """Images and texts in order, as on a web page."""

    sequence: list[torch.Tensor | str]
    """Images (C, H, W) and texts."""


@edataclass
class SimilarityInterleavedSample(Sample):
    """Images and texts of one document, and how well they match."""

    images: list[torch.Tensor]
    """Images (C, H, W)."""
    texts: list[str]
    """Texts."""
    audio: Any = None
    """Audio, if there is any."""
    video: Any = None
    """Video, if there is any."""
    similarity_matrix: torch.Tensor | None = None
    """Similarity (images, texts)."""
    matched_text_indices: list[int] | None = None
    """Index of the text that matches each image."""


@edataclass
class OCRSample(Sample):
    """An image of a document, with its text and boxes at several levels."""

    image: torch.Tensor
    """Image (C, H, W)."""
    text: str
    """The whole text."""
    block_boxes: torch.Tensor | None = None
    """Boxes of the text blocks (B, 4 or more)."""
    block_classes: torch.Tensor | None = None
    """Class of each text block (B,)."""
    block_text: list[str] | None = None
    """Text of each text block."""
    lines_boxes: torch.Tensor | None = None
    """Boxes of the lines (L, 4 or more)."""
    lines_text: list[str] | None = None
    """Text of each line."""
    words_boxes: torch.Tensor | None = None
    """Boxes of the words (W, 4 or more)."""
    words_text: list[str] | None = None
    """Text of each word."""
    chars_boxes: torch.Tensor | None = None
    """Boxes of the characters (C, 4 or more)."""
    chars_text: list[str] | None = None
    """Each character."""


@edataclass
class VQAOCRSample(Sample):
    """An image of a document, its text, a question about it, and answers."""

    image: torch.Tensor
    """Image (C, H, W)."""
    context: str
    """The question."""
    text: str
    """The text in the image."""
    answers: list[str] | None = None
    """Possible answers."""
    answer_weights: torch.Tensor | None = None
    """Weight (A,) of each answer."""
    words_boxes: torch.Tensor | None = None
    """Boxes of the words (W, 4 or more)."""
    words_text: list[str] | None = None
    """Text of each word."""


@dataclass(eq=False)
class Clips:
    """The clips of one video; or of a batch of videos, with one more leading dimension in every field."""

    frames: torch.Tensor | None
    """Frames (clips, frames, C, H, W) in RGB, or in the layout of the spec; None for a file without video."""
    timestamps: torch.Tensor | None
    """Presentation time of each frame in seconds, float64 (clips, frames), on the CPU."""
    audio: torch.Tensor | None = None
    """Audio in [-1, 1], float32 (clips, C, S), on the CPU; silence where the media stream has none."""
    audio_timestamps: torch.Tensor | None = None
    """Start and end of the audio of each clip in seconds, float64 (clips, 2), without added silence."""
    audio_sample_rate: int | list[int] | None = None
    """Audio samples per second; a list in a batch."""
    audio_features: torch.Tensor | None = None
    """Features of the audio (clips, bands, frames), where the spec has them made in place of the audio."""

    @classmethod
    def from_samples(cls, samples: Sequence[Clips]) -> Clips:
        """Stacks the clips of several videos field by field; smaller ones are padded with zeros at their ends.

        Args:
            samples: At least one; a field that is None in all of them stays None.

        Raises:
            ConfigError: A field is None in only some samples, or has different numbers of dimensions.
        """
        return cls(
            **{
                field.name: _stack(field.name, [getattr(clips, field.name) for clips in samples])
                for field in fields(cls)
            }
        )

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{field.name}={tuple(value.shape) if hasattr(value, 'shape') else value}"
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        )
        return f"Clips({shapes})"


def _stack(name: str, column: list[Any]) -> Any:
    missing = sum(value is None for value in column)
    if missing == len(column):
        return None
    if missing:
        raise ConfigError(
            f"{missing} of {len(column)} Clips of a batch have no {name}, so it cannot be stacked. Batch files of the "
            "same kind together (batch_group_criterion), or keep them in lists with batch_list."
        )
    return column if name == "audio_sample_rate" else batch_pad_stack(column)


def sample_kind(name: str) -> type[Any] | None:
    """Returns the class of samples of this package that has a name, as `dataset.yaml` gives it; None if none has."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, (Sample, CrudeSample)) else None
