"""Describes an encoded sample or batch for people: images, strips, tokens beside text, numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.error_handlers import describe
from energon_dali.samples.transfer import attributes_of
from energon_dali.view.pixels import MAX_IMAGES, Normalisation, ShownImage, find_images, vision_images
from energon_dali.view.strips import Strip, find_strips

MAX_FIELDS = 200
"""Fields that are shown of one sample or batch."""
MAX_TOKENS = 4096
"""Tokens that are shown of one row."""
_MAX_ROWS = 8
_MAX_TEXT = 20_000
_MAX_VALUES = 64
_MAX_DEPTH = 5
_MAX_ITEMS = 32
_TOKENS = re.compile(r"tokens?$|(^|_)ids$|input_ids|labels?$|targets?$")
_NO_TOKENS = re.compile(r"position|segment|document|doc_|seq_|type_ids|modality|num_|_len")
_IGNORED = -100


@dataclass(slots=True)
class ShownToken:
    """One token."""

    id: int
    """Its number in the vocabulary."""
    text: str
    """Its text; "" if there is no tokenizer, or it has none for this number."""
    ignored: bool = False
    """Whether the loss ignores it (-100)."""


@dataclass(slots=True)
class TokenRow:
    """A sequence of tokens."""

    title: str
    """Which row of the field it is."""
    tokens: list[ShownToken]
    """The first `MAX_TOKENS` tokens."""
    length: int
    """Number of tokens."""


@dataclass(slots=True)
class ShownField:
    """One field of an encoded sample or batch."""

    name: str
    """Its name; parts of nested values are joined by dots."""
    summary: str
    """Type, shape, dtype and range."""
    text: str = ""
    """Text, or the first values."""
    images: list[ShownImage] = field(default_factory=list)
    """The images that it holds."""
    strips: list[Strip] = field(default_factory=list)
    """Boundaries and masks, as coloured strips."""
    rows: list[TokenRow] = field(default_factory=list)
    """Its tokens."""
    note: str = ""
    """What is left out, or what went wrong; "" if nothing."""


class FieldDescriber:
    """Describes encoded samples and batches.

    Args:
        token_text: Returns the text of a token; None if there is no tokenizer.
        normalisation: Mean and standard deviation that the encoder's decoder applies, if known.
    """

    def __init__(
        self, token_text: Callable[[int], str] | None = None, normalisation: Normalisation | None = None
    ) -> None:
        self._token_text = token_text
        self._normalisation = normalisation

    def describe(self, value: Any) -> list[ShownField]:
        """Returns the fields of an encoded sample or batch, in their order.

        Args:
            value: A dataclass, a dict, a tensor, or anything else.
        """
        leaves = list(_leaves("", value, 0))
        arrays = {name: array for name, leaf in leaves if (array := to_array(leaf)) is not None}
        arrays |= {name: array for name, leaf in leaves if (array := _values_of(leaf)) is not None}
        shown = [self._field(name, leaf, arrays) for name, leaf in leaves[:MAX_FIELDS]]
        if len(leaves) > MAX_FIELDS:
            shown.append(ShownField("...", f"{len(leaves) - MAX_FIELDS:,} more fields are not shown"))
        return shown

    def _field(self, name: str, value: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> ShownField:
        array = arrays.get(name)
        if array is None:
            text = value if isinstance(value, str) else ""
            shown = ShownField(name, describe(value), text[:_MAX_TEXT])
            if len(text) > _MAX_TEXT:
                shown.note = f"Only the first {_MAX_TEXT:,} of {len(text):,} characters are shown."
            return shown
        shown = ShownField(name, summarise(value, array), first_values(array))
        try:
            others = {other: found for other, found in arrays.items() if other != name}
            if isinstance(value, VisionInput):
                shown.images = vision_images(value, array)
            else:
                shown.images = find_images(name, array, others, self._normalisation)
            shown.strips = [] if shown.images else find_strips(name, array)
            if not shown.images and not shown.strips:
                shown.rows = list(self._token_rows(name, array))
        except Exception as error:  # an array that only looks like one of these must not hide the others
            shown.note = f"It cannot be drawn: {type(error).__name__}: {error}"
        if len(shown.images) == MAX_IMAGES:
            shown.note = f"At most {MAX_IMAGES} images are shown."
        return shown

    def _token_rows(self, name: str, array: npt.NDArray[Any]) -> Iterator[TokenRow]:
        last = re.sub(r"\[\d+\]$", "", name.rpartition(".")[2].lower())
        if not np.issubdtype(array.dtype, np.integer) or not _TOKENS.search(last) or _NO_TOKENS.search(last):
            return
        if array.ndim not in (1, 2) or array.size < 2:
            return
        rows = array.reshape(-1, array.shape[-1])
        for number, row in enumerate(rows[:_MAX_ROWS]):
            tokens = [
                ShownToken(token, "" if token == _IGNORED else self._text_of(token), token == _IGNORED)
                for token in row[:MAX_TOKENS].tolist()
            ]
            yield TokenRow(name if len(rows) == 1 else f"{name}, row {number}", tokens, len(row))

    def _text_of(self, token: int) -> str:
        if self._token_text is None or token < 0:
            return ""
        try:
            return str(self._token_text(token))
        except Exception:  # a number that the tokenizer does not know, such as a placeholder of an image
            return ""


def _leaves(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of the fields of a nested value."""
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from _leaves(f"{name}.{key}" if name else str(key), inner, depth + 1)
            return
        if is_dataclass(value) and not isinstance(value, (type, VisionInput)):
            for one, inner in attributes_of(value).items():
                yield from _leaves(f"{name}.{one}" if name else one, inner, depth + 1)
            return
        is_list = isinstance(value, (list, tuple)) and bool(value)
        if (
            is_list
            and any(to_array(item) is not None or _is_nested(item) for item in value)
            and not _are_numbers(value)
        ):
            for number, inner in enumerate(value[:_MAX_ITEMS]):
                yield from _leaves(f"{name}[{number}]", inner, depth + 1)
            if len(value) > _MAX_ITEMS:
                yield f"{name}[...]", f"{len(value) - _MAX_ITEMS:,} more items are not shown"
            return
    yield name or "value", value


def _is_nested(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(to_array(item) is not None or _is_nested(item) for item in value)
    return isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, type))


def _values_of(value: Any) -> npt.NDArray[Any] | None:
    return to_array(value.values) if isinstance(value, VisionInput) else None


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def to_array(value: Any) -> npt.NDArray[Any] | None:
    """Returns the numbers of a tensor, array, image or list of numbers as an array; None for anything else.

    A tensor on a GPU is copied to the CPU; types that NumPy lacks (bfloat16) become float32.
    """
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "biuf" else None
    if hasattr(value, "detach") and hasattr(value, "numpy"):  # a torch tensor
        plain = value.detach()
        if plain.is_floating_point() and str(plain.dtype) not in ("torch.float16", "torch.float32", "torch.float64"):
            plain = plain.float()
        found: npt.NDArray[Any] = plain.cpu().numpy()
        return found
    if hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "convert"):  # an image of PIL
        return np.asarray(value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB"))
    if isinstance(value, (list, tuple)) and len(value) > 1 and _are_numbers(value):
        array = np.array(value)
        return array if array.dtype.kind in "biuf" else None
    return None


def summarise(value: Any, array: npt.NDArray[Any]) -> str:
    """Returns type, shape, dtype and range of numbers, such as "Tensor float32 [3, 224, 224], 0 to 1, mean 0.44"."""
    if isinstance(value, VisionInput):
        return f"{value!r}, from {summarise(value.values, array)}"
    dtype = str(getattr(value, "dtype", array.dtype)).removeprefix("torch.")
    device = f" on {value.device}" if str(getattr(value, "device", "cpu")) != "cpu" else ""
    shape = ", ".join(map(str, array.shape))
    text = f"{type(value).__name__} {dtype} [{shape}]{device}"
    if not array.size:
        return f"{text}, empty"
    if array.dtype == bool:
        return f"{text}, {int(array.sum()):,} of {array.size:,} true"
    numbers = array.astype(np.float64) if array.dtype.kind == "f" else array
    finite = numbers[np.isfinite(numbers)] if array.dtype.kind == "f" else numbers
    strange = array.size - finite.size
    extra = f", {strange:,} not finite" if strange else ""
    if not finite.size:
        return text + extra
    return f"{text}, {_short(finite.min())} to {_short(finite.max())}, mean {_short(finite.mean())}{extra}"


def first_values(array: npt.NDArray[Any]) -> str:
    """Returns the first values of an array."""
    values = array.reshape(-1)[:_MAX_VALUES].tolist()
    more = ", ..." if array.size > _MAX_VALUES else ""
    return ", ".join(map(_short, values)) + more


def _short(number: Any) -> str:
    if isinstance(number, bool) or not isinstance(number, (float, np.floating)):
        return str(number)
    return f"{number:.4g}" if math.isfinite(number) else str(float(number))
