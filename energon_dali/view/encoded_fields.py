"""Describes an encoded sample or batch for people: images, tokens next to text, numbers, and coloured strips.

Strips show where the samples of a pack begin and end, and which positions a mask selects; `templates/drawings.html`
draws them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.decode.audio_front_ends import AudioInput
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.plan.rng import Int64Array
from energon_dali.samples.description import describe
from energon_dali.samples.transfer import attributes_of
from energon_dali.view.pixels import MAX_IMAGES, Normalisation, ShownImage, find_images, vision_images

MAX_FIELDS = 200
"""Fields that are shown of one sample or batch."""
MAX_TOKENS = 32_768
"""Tokens that are shown of one field, where runs of the same token count as one."""
FOLDED_FROM = 8
"""Tokens of one kind in a row from which they are shown as one, with their number: those of an image are thousands."""
_MAX_ROWS = 32
_MAX_TEXT = 1_000_000
_MAX_VALUES = 64
_MAX_DEPTH = 5
_MAX_ITEMS = 32
_TOKENS = re.compile(r"tokens?$|(^|_)ids$|input_ids|labels?$|targets?$")
_NO_TOKENS = re.compile(r"position|segment|document|doc_|seq_|type_ids|modality|num_|_len")
_IGNORED = -100
MAX_STRIPS = 16
"""Strips that are shown of one field."""
_MAX_RUNS = 2000

_BOUNDARIES = re.compile(r"cu_?seq|cu_?len|cumulative_|boundaries")
_POSITIONS = re.compile(r"position_?ids$|positions$|pos_ids$")
_LENGTHS = re.compile(r"(seq|sample|pack|segment)_?len(gth)?s?$|^lengths$|^seqlens?")
_LABELLED = re.compile(r"mask$|segment|document_?ids|doc_?ids|seq_?ids|token_type|modality")


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive positions that belong together."""

    start: int
    """First position."""
    stop: int
    """Position after the last."""
    label: str
    """What they have in common."""
    colour: int
    """Number of their colour; -1 draws none."""


@dataclass(frozen=True, slots=True)
class Strip:
    """A row of positions, divided into runs."""

    title: str
    """What it shows."""
    length: int
    """Number of positions."""
    runs: tuple[Run, ...]
    """The runs, in order."""
    note: str = ""
    """What is left out; "" if nothing."""


@dataclass(slots=True)
class ShownToken:
    """One token."""

    id: int
    """Its number in the vocabulary."""
    text: str
    """Its text; "" if there is no tokenizer, or it has none for this number."""
    ignored: bool = False
    """Whether the loss ignores it (-100)."""
    position: int = 0
    """Its position in the row, from 0; of a run, that of the first."""
    count: int = 1
    """How often it follows itself; above 1, it is shown for the whole run."""

    @property
    def word(self) -> str:
        """The word that it is, or begins: what a search for its samples needs; "" if it is none."""
        word = self.text.strip().strip("\u2581\u0120").rstrip(".,;:!?")  # the first two: how tokenizers write a space
        return word if len(word) > 1 and word.isalnum() else ""

    @property
    def name(self) -> str:
        """Its text without the marks of a placeholder, for a run: "image" of "<|image_pad|>"; its number without."""
        plain = re.sub(r"[<>|\[\]\u2581\u0120]|_?(pad|token|patch|placeholder)$", "", self.text.strip().strip("<>|[]"))
        return plain or self.text.strip() or f"token {self.id}"


@dataclass(slots=True)
class TokenRow:
    """A sequence of tokens."""

    title: str
    """Which row of the field it is."""
    tokens: list[ShownToken]
    """Its tokens, in order; runs of one token are folded."""
    length: int
    """Number of tokens."""

    @property
    def num_shown(self) -> int:
        """Number of tokens that `tokens` covers."""
        return sum(token.count for token in self.tokens)


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
            num_rows = array.size // max(1, array.shape[-1]) if array.ndim else 0
            for found, most in ((shown.strips, MAX_STRIPS), (shown.rows, _MAX_ROWS)):
                if len(found) == most < num_rows:
                    shown.note = f"Only the first {most} of {num_rows:,} rows are shown."
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
        most = MAX_TOKENS // min(len(rows), _MAX_ROWS)
        for number, row in enumerate(rows[:_MAX_ROWS]):
            tokens = list(itertools.islice(self._folded(row), most))
            yield TokenRow(name if len(rows) == 1 else f"{name}, row {number}", tokens, len(row))

    def _folded(self, row: npt.NDArray[Any]) -> Iterator[ShownToken]:
        """Yields the tokens of a row, those of a long run as one."""
        edges = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
        for start, stop in itertools.pairwise(edges):
            token, is_folded = int(row[start]), stop - start >= FOLDED_FROM
            text = "" if token == _IGNORED else self._text_of(token)
            for position in [start] if is_folded else range(start, stop):
                yield ShownToken(token, text, token == _IGNORED, position, stop - start if is_folded else 1)

    def _text_of(self, token: int) -> str:
        if self._token_text is None or token < 0:
            return ""
        try:
            return str(self._token_text(token))
        except Exception:  # a number without a token, such as a placeholder of an image
            return ""


def _leaves(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of the fields of a nested value."""
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from _leaves(f"{name}.{key}" if name else str(key), inner, depth + 1)
            return
        if is_dataclass(value) and not isinstance(value, (type, VisionInput, AudioInput)):
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


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def to_array(value: Any) -> npt.NDArray[Any] | None:
    """Returns the numbers of a tensor, array, image or list of numbers as an array; None for anything else.

    A tensor on a GPU is copied to the CPU; types that NumPy lacks (bfloat16) become float32.
    """
    if isinstance(value, (VisionInput, AudioInput)):
        return to_array(value.values)
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
    if isinstance(value, (VisionInput, AudioInput)):
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


# --- strips -----------------------------------------------------------------------------------------------------------


def find_strips(name: str, array: npt.NDArray[Any]) -> list[Strip]:
    """Returns the strips of a field, by its name and values; none if it has neither boundaries nor marks.

    Args:
        name: Name of the field, such as "cu_seqlens" or "loss_mask".
        array: (L,), or with leading dimensions, of which each row is a strip.
    """
    if array.ndim == 0 or array.size == 0 or (array.shape[-1] < 2 and array.ndim > 1) or array.ndim > 3:
        return []
    if not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool or _is_whole(array)):
        return []
    last = name.rpartition(".")[2].lower()
    last = re.sub(r"\[\d+\]$", "", last)
    rows = array.reshape(-1, array.shape[-1])
    strips = []
    for number, row in enumerate(rows[:MAX_STRIPS]):
        title = name if len(rows) == 1 else f"{name}, row {number}"
        found = _strip(last, row.astype(np.int64))
        if found is not None:
            length, runs = found
            note = f"Only the first {_MAX_RUNS:,} of {len(runs):,} runs are drawn." if len(runs) > _MAX_RUNS else ""
            strips.append(Strip(title, length, tuple(runs[:_MAX_RUNS]), note))
    return strips


def _is_whole(array: npt.NDArray[Any]) -> bool:
    """Returns whether floats are whole numbers, as in loss masks."""
    if not np.issubdtype(array.dtype, np.floating) or not np.isfinite(array).all():
        return False
    return bool((array == np.rint(array)).all()) and float(np.abs(array).max()) < 2**31


def _strip(name: str, row: Int64Array) -> tuple[int, list[Run]] | None:
    """Returns (number of positions, runs) of one row; None if its name or values are not those of a strip."""
    if _BOUNDARIES.search(name):
        kept = row[: int(np.argmax(np.diff(row) <= 0)) + 1] if (np.diff(row) <= 0).any() else row  # padded at its end
        if len(kept) < 2 or kept[0] != 0:
            return None
        return int(kept[-1]), list(_segments(kept))
    if _LENGTHS.search(name):
        lengths = row[row > 0]
        if not len(lengths):
            return None
        edges = np.concatenate([[0], np.cumsum(lengths)])
        return int(edges[-1]), list(_segments(edges))
    if _POSITIONS.search(name):
        starts = np.flatnonzero(np.diff(row, prepend=row[0] + 1) < 0)
        edges = np.concatenate([starts if len(starts) and starts[0] == 0 else [0, *starts], [len(row)]])
        return len(row), list(_segments(edges.astype(np.int64)))
    if _LABELLED.search(name):
        edges = np.concatenate([[0], np.flatnonzero(np.diff(row)) + 1, [len(row)]])
        return len(row), [
            Run(int(start), int(stop), f"value {row[start]}", -1 if row[start] == 0 else int(row[start]) - 1)
            for start, stop in itertools.pairwise(edges)
        ]
    return None


def _segments(edges: Int64Array) -> Iterator[Run]:
    for number, (start, stop) in enumerate(itertools.pairwise(edges.tolist())):
        yield Run(start, stop, f"segment {number}", number)
