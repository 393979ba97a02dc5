"""The kinds of samples that datasets name in `dataset.yaml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_dali.samples.base import CrudeSample, Sample, edataclass

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


def sample_kind(name: str) -> type[Any] | None:
    """Returns the class of samples of this package that has a name, as `dataset.yaml` gives it; None if none has."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, (Sample, CrudeSample)) else None
