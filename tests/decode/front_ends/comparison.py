"""Compares what a front end makes of encoded images with what the processor of transformers makes of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image

from energon_dali import DaliDecoder, FrontEnd, SampleDecoder, batch_vision
from energon_dali.decode import Decoded, Decoder
from energon_dali.decode.front_ends.layout import ImageLayout
from energon_dali.decode.front_ends.processor_config import LARGEST_AREA
from energon_dali.errors import ConfigError, DecodeError

Tokens = Callable[[Any, Sequence[tuple[int, int]]], list[int]]
"""Returns the number of tokens of each (width, height), as a processor counts them."""

Texts = Callable[[Any, dict[str, Any], int], list[str]]
"""Returns the text of each of a number of images, from what a processor made of them."""

_TOO_LARGE = f"more than {LARGEST_AREA:,} pixels"
"""In the error for an image that a configuration would enlarge beyond a limit of ours."""
_ROWS_FOR_CHANNELS = "mean must have"
"""In the error of a processor that takes the rows of a resized image of 1 or 3 rows for its channels."""


@dataclass
class Comparison:
    """Counts of images."""

    compared: int = 0
    """Images that went through both."""
    refused: int = 0
    """Those of them that both refused."""
    tokens: int = 0
    """Those whose tokens were compared."""
    texts: int = 0
    """Those whose text was compared."""
    configurations: int = 0
    """Configurations that they went through."""
    routes: dict[str, int] = field(default_factory=dict)
    """Decoders that were used."""
    differences: list[str] = field(default_factory=list)
    """One line for each image or batch that differs."""

    def __iadd__(self, other: Comparison) -> Comparison:
        self.compared += other.compared
        self.refused += other.refused
        self.tokens += other.tokens
        self.texts += other.texts
        self.configurations += other.configurations
        self.differences += other.differences
        for route, count in other.routes.items():
            self.routes[route] = self.routes.get(route, 0) + count
        return self


def open_upright(data: bytes) -> Image.Image:
    """Returns an image as a user gives it to a processor. Its EXIF orientation is not applied, as by the decoders."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """Returns in what two batches differ, in words; None if they are equal bit for bit."""
    if set(ours) != set(theirs):
        return f"keys {sorted(ours)} instead of {sorted(theirs)}"
    for key, expected in theirs.items():
        found = ours[key]
        if isinstance(expected, list):
            if len(found) != len(expected):
                return f"{key}: {len(found)} entries instead of {len(expected)}"
            pairs = list(zip(found, expected, strict=True))
        else:
            pairs = [(found, expected)]
        for one, other in pairs:
            if not isinstance(other, torch.Tensor):
                if one != other:
                    return f"{key}: {one} instead of {other}"
                continue
            if one.shape != other.shape or one.dtype != other.dtype:
                return f"{key}: {one.dtype}{list(one.shape)} instead of {other.dtype}{list(other.shape)}"
            if not torch.equal(one, other):
                wrong = (one != other).float().mean().item()
                return f"{key}: {wrong:.2%} of the values differ, at most by {(one - other).abs().max().item():.3g}"
    return None


def text_difference(front_end: FrontEnd, layout: ImageLayout, text: str) -> str | None:
    """Returns in what the text of an image differs from the processor's, in words; None if they are equal."""
    found = front_end.image_text(layout)
    if found != text:
        return f"text {found[:120]!r}... instead of {text[:120]!r}..."
    features = text.count(getattr(front_end, "feature_token", front_end.image_token))
    if features != layout.num_features:
        return f"{layout.num_features} features instead of {features}"
    if front_end.separate_placeholder and text.count(front_end.image_token) != front_end.kept_placeholders(layout):
        return f"{front_end.kept_placeholders(layout)} placeholders are kept in the text {text[:120]!r}..."
    return None


def decoders(front_end: FrontEnd) -> list[Decoder]:
    """Returns the decoders of the CPU with a front end."""
    return [SampleDecoder(front_end=front_end), DaliDecoder(front_end=front_end, image_decode_device="cpu")]


def compare(
    processor: Any,
    images: Iterable[tuple[str, str, bytes]],
    *,
    front_end: FrontEnd | None = None,
    call: Callable[[Any, list[Image.Image]], dict[str, Any]] | None = None,
    tokens: Tokens | None = None,
    texts: Texts | None = None,
    batch_size: int = 1,
) -> Comparison:
    """Compares a processor and its front end, bit for bit, through both decoders.

    Args:
        processor: An image processor.
        images: (description, part name, file) of each image.
        front_end: Default: the one of the processor.
        call: Runs the processor on images. Default: processor(images, return_tensors="pt").
        tokens: Counts tokens as the processor does.
        texts: Writes the text of images as the processor does.
        batch_size: Images that are batched together, each a sample of its own.
    """
    front_end = front_end or FrontEnd.from_processor(processor)
    run = call or _call
    result = Comparison()
    both = decoders(front_end)
    waiting: list[tuple[str, str, bytes]] = []

    def flush() -> None:
        if waiting:
            _compare_batch(processor, run, both, waiting, result, tokens, texts)
            waiting.clear()

    for image in images:
        waiting.append(image)
        if len(waiting) == batch_size:
            flush()
    flush()
    return result


def _compare_batch(
    processor: Any,
    run: Callable[[Any, list[Image.Image]], dict[str, Any]],
    both: list[Decoder],
    images: list[tuple[str, str, bytes]],
    result: Comparison,
    tokens: Tokens | None,
    texts: Texts | None,
) -> None:
    result.compared += len(images)
    accepted: list[tuple[str, str, bytes, Image.Image]] = []
    expected: Any = None
    for what, name, data in images:
        opened = open_upright(data)
        try:
            expected = run(processor, [opened])
        except Exception as error:
            expected = error
        for decoder in both:
            try:
                handle = decoder.stage(name, data)
            except DecodeError as error:
                if isinstance(expected, Exception):
                    continue
                if _TOO_LARGE in str(error):  # a limit of ours, which processors lack
                    result.refused += 1
                else:
                    result.differences.append(f"{what}: refused from the header: {error}")
                break
            if isinstance(expected, Exception):
                # The mode of an image, such as gray, is known for certain only after decoding.
                (outcome,) = decoder.decode_block([handle])
                if isinstance(outcome, Decoded) and not str(expected).startswith(_ROWS_FOR_CHANNELS):
                    result.differences.append(f"{what}: the processor refuses it: {expected}")
                    break
        else:
            if isinstance(expected, Exception):
                result.refused += 1
            else:
                accepted.append((what, name, data, opened))
    if not accepted:
        return
    theirs: dict[str, Any] | None
    try:
        # An image that is alone has been through the processor.
        theirs = expected if len(images) == 1 else run(processor, [image for *_, image in accepted])
    except ValueError:  # images of different sizes, which the processor does not bring to one
        if len(accepted) == 1:
            raise
        theirs = None
    sizes = [image.size for *_, image in accepted]
    counts = tokens(processor, sizes) if tokens is not None else None
    written = texts(processor, theirs, len(sizes)) if texts is not None and theirs is not None else None
    for decoder in both:
        handles = [decoder.stage(name, data) for _, name, data, _ in accepted]
        if counts is not None:
            result.tokens += len(handles)
            for (what, *_), handle, count in zip(accepted, handles, counts, strict=True):
                if handle.num_tokens != count:
                    result.differences.append(f"{what}: {handle.num_tokens} tokens instead of {count}")
        if written is not None:
            result.texts += len(handles)
            for (what, *_), handle, text in zip(accepted, handles, written, strict=True):
                wrong = text_difference(handle.spec.front_end, handle.layout, text)
                if wrong is not None:
                    result.differences.append(f"{what}: {wrong}")
        inputs = []
        for outcome in decoder.decode_block(handles):
            assert isinstance(outcome, Decoded), outcome
            result.routes[outcome.route] = result.routes.get(outcome.route, 0) + 1
            inputs.append(outcome.value)
        if theirs is None:
            try:
                wrong = f"{list(batch_vision([[value] for value in inputs]))} of images that the processor cannot batch"
            except ConfigError:
                wrong = None
        else:
            wrong = difference(batch_vision([[value] for value in inputs]), theirs)
        if wrong is not None:
            result.differences.append(f"{'; '.join(what for what, *_ in accepted)} ({type(decoder).__name__}): {wrong}")


def _call(processor: Any, images: list[Image.Image]) -> dict[str, Any]:
    return dict(processor(images, return_tensors="pt"))
