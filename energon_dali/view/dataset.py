"""One dataset by number: its samples, where their parts are, and the bytes of a part."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from energon_dali.decode.part_kind import find_part_kind
from energon_dali.plan.rng import Int64Array
from energon_dali.shards import ShardExtents

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
    """Format by its header, "" if the index does not know it."""
    width: int = 0
    """Width in pixels; 0 if the index does not know it."""
    height: int = 0
    """Height in pixels; 0 if the index does not know it."""

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


class Rows:
    """A list of sample numbers made of ranges, which takes no memory per sample.

    Args:
        starts: int64[n]: number of the first sample of each range.
        lengths: int64[n]: number of samples in each range.
    """

    def __init__(self, starts: Int64Array, lengths: Int64Array) -> None:
        self.starts = starts
        self.lengths = lengths
        self._ends = np.cumsum(lengths)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, start: int, stop: int) -> Int64Array:
        """Returns the sample numbers of some rows, int64[at most stop - start]."""
        rows = np.arange(max(0, start), min(stop, len(self)), dtype=np.int64)
        ranges = np.searchsorted(self._ends, rows, "right")
        result: Int64Array = self.starts[ranges] + rows - (self._ends[ranges] - self.lengths[ranges])
        return result

    def position(self, index: int) -> int | None:
        """Returns the first row of a sample; None if it is not among them."""
        found = np.flatnonzero((self.starts <= index) & (index < self.starts + self.lengths))
        if not len(found):
            return None
        number = int(found[0])
        return int(self._ends[number] - self.lengths[number] + index - self.starts[number])


class ViewedDataset(Protocol):
    """A dataset whose samples are found by number. Thread-safe."""

    path: str
    """Local path or URL."""
    num_samples: int
    """Number of samples, whatever the split."""
    shard_names: list[str]
    """Paths of the shards within the dataset."""
    shard_starts: list[int]
    """Number of the first sample of each shard, and the number of samples."""
    split_parts: tuple[str, ...]
    """Names of the parts of the split; empty if there are none."""
    identity: str
    """Changes when the samples do."""
    knows_image_sizes: bool
    """Whether the index has format, width and height of all images and videos."""

    def rows(self, split_part: str | None) -> Rows:
        """Returns the samples of a part of the split; None takes all samples.

        Raises:
            ConfigError: There is no such part.
            DatasetError: The split or an index is damaged.
            StorageError: A file cannot be read.
        """

    def sample(self, index: int) -> ViewedSample:
        """Returns what the index has on a sample.

        Raises:
            DatasetError: There is no such sample, or an index is damaged.
            StorageError: A file cannot be read.
        """

    def extents(self, shard: int) -> ShardExtents | None:
        """Returns the columns of a shard; None if the dataset has none.

        Raises:
            DatasetError: An index is damaged.
            StorageError: A file cannot be read.
        """

    def find_key(self, key: str) -> int | None:
        """Returns the number of the sample with a key; None if only reading all keys would find it.

        Raises:
            DatasetError: An index is damaged.
            StorageError: A file cannot be read.
        """

    def sample_bytes(self, start: int, stop: int) -> Int64Array:
        """Returns the sizes of samples start to stop (exclusive) in bytes, int64[stop - start]; within one shard.

        Raises:
            DatasetError: An index is damaged.
            StorageError: A file cannot be read.
        """

    def read(self, sample: ViewedSample, part: ViewedPart, start: int = 0, size: int | None = None) -> bytes:
        """Returns bytes of a part, after checking that the shard is what was indexed.

        Args:
            sample: The sample.
            part: One of its parts.
            start: Offset within the part.
            size: Number of bytes; None takes the rest of the part.

        Raises:
            DatasetError: The shard changed since it was indexed, or is missing.
            StorageError: It cannot be read.
        """

    def restore_command(self, sample: ViewedSample) -> str:
        """Returns a shell command that makes the sample as a loader does, prints it, and leaves it in `sample`."""

    def close(self) -> None:
        """Closes all files."""


def literal(text: str) -> str:
    """Returns a Python literal in double quotes, which need no escape within the single quotes of a shell."""
    return json.dumps(text, ensure_ascii=False)


def python_command(*statements: str) -> str:
    """Returns a shell command that runs statements and leaves Python open."""
    return f"python -i -c {shlex.quote('; '.join(statements))}"
