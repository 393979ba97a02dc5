"""A sample by number: where its parts are, and lists of such numbers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from energon_dali.decode.part_kind import find_part_kind
from energon_dali.plan.rng import Int64Array

ViewedKind = Literal["image", "av", "json", "text", "binary"]
"""How a part is shown."""

_TEXT_SUFFIXES = frozenset(
    ("caption", "cls", "css", "csv", "htm", "html", "idx", "js", "log", "md", "py", "srt", "svg", "text", "transcript")
) | {"tsv", "txt", "vtt", "xml", "yaml", "yml"}


@dataclass(frozen=True, slots=True)
class ViewedPart:
    """One part of a sample, with what the index has on it."""

    number: int
    """Its position among the parts of the sample."""
    name: str
    """What follows the first dot of its file name."""
    offset: int
    """Where its content begins in the shard, in bytes."""
    size: int
    """Size of its content in bytes."""
    format: str = ""
    """Format by its header, "" if the index does not have it."""
    width: int = 0
    """Width in pixels; 0 if the index does not have it."""
    height: int = 0
    """Height in pixels; 0 if the index does not have it."""

    @property
    def kind(self) -> ViewedKind:
        """How it is shown, by its name."""
        kind, suffix = find_part_kind(self.name)
        suffix = (suffix or self.name.rpartition(".")[2]).lower()
        if kind != "basic":
            return kind
        if suffix in ("json", "jsonl"):
            return "json"
        return "text" if suffix in _TEXT_SUFFIXES else "binary"


@dataclass(frozen=True, slots=True)
class ViewedSample:
    """One sample, with what the index has on it."""

    index: int
    """Its number in the dataset, with shards in the order of the index."""
    key: str
    """Its key."""
    shard: str
    """Path of its shard within the dataset."""
    shard_number: int
    """Number of its shard."""
    sample_number: int
    """Its number within the shard."""
    parts: tuple[ViewedPart, ...]
    """Its parts, in the order of the shard."""

    @property
    def size(self) -> int:
        """Size of all parts in bytes."""
        return sum(part.size for part in self.parts)

    @property
    def thumbnail(self) -> ViewedPart | None:
        """The part that stands for it in the grid: its first image, or else its first video or audio."""
        return next((part for kind in ("image", "av") for part in self.parts if part.kind == kind), None)


@dataclass(frozen=True, slots=True)
class Page:
    """Samples of one page."""

    indices: Int64Array
    """int64[n]: their numbers in the dataset."""
    found: int
    """Number of samples that are known to meet the conditions."""
    searched: float
    """Share of the samples that was looked at, 0 to 1; at 1, `found` is final."""
    error: str = ""
    """Why the search ended early; "" if it did not."""


def digest_of(*arrays: npt.NDArray[Any]) -> str:
    """Returns a digest of the content of some arrays."""
    found = hashlib.blake2b(digest_size=8)
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


class Rows:
    """A list of sample numbers made of ranges, which takes no memory per sample.

    Args:
        starts: int64[n]: number of the first sample of each range.
        lengths: int64[n]: number of samples in each range.
    """

    def __init__(self, starts: Int64Array, lengths: Int64Array) -> None:
        self.waits_for_scan = False
        """Whether a scan finds the samples, and not the index."""
        self.starts = starts
        self.lengths = lengths
        self._ends = np.cumsum(lengths)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(start, stop) of each range."""
        return list(zip(self.starts.tolist(), (self.starts + self.lengths).tolist(), strict=True))

    @property
    def digest(self) -> str:
        """A digest that differs between lists of different samples."""
        return digest_of(self.starts, self.lengths)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, start: int, stop: int) -> Int64Array:
        """Returns the sample numbers of some rows, int64[at most stop - start]."""
        rows = np.arange(max(0, start), min(stop, len(self)), dtype=np.int64)
        ranges = np.searchsorted(self._ends, rows, "right")
        result: Int64Array = self.starts[ranges] + rows - (self._ends[ranges] - self.lengths[ranges])
        return result

    def page(self, start: int, stop: int) -> Page:
        """Returns the samples at positions start to stop (exclusive)."""
        return Page(self.take(start, stop), len(self), 1.0)

    def position(self, index: int) -> int | None:
        """Returns the position of a sample, which is its first row; None if it is not among them."""
        found = np.flatnonzero((self.starts <= index) & (index < self.starts + self.lengths))
        if not len(found):
            return None
        number = int(found[0])
        return int(self._ends[number] - self.lengths[number] + index - self.starts[number])
