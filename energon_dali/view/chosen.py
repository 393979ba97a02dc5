"""The samples that the user chose on the page, and tags: lists of samples in the user's folder.

Neither is in the dataset. A tag is a file of keys, so that it can be given to `subset: {keys: FILE}` as it is.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError, DatasetError, StorageError
from energon_dali.plan.rng import Int64Array
from energon_dali.shards.sample_keys import find_samples, is_among
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.atomic_file import atomic_file
from energon_dali.shards.subset_file import (
    LINES_SUFFIX,
    SampleName,
    parse_subset,
    read_subset_file,
    subset_lines,
    text_lines,
)
from energon_dali.view.dataset import JsonlDataset, ViewedDataset
from energon_dali.view.viewed_sample import Rows

VARIABLE = "ENERGON_DALI_TAGS"
"""Folder for tags."""
_TAG = re.compile(r"[^\W_][\w.-]{0,63}")
_MAX_TAG_BYTES = 240
"""What a file system takes as the name of a file, less its suffix."""
_LINES_AT_ONCE = 10_000


class ChosenSamples:
    """Numbers of samples of a dataset that the user chose. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Int64Array = np.zeros(0, np.int64)
        self.version = 0
        """Raised by every change."""

    @property
    def numbers(self) -> Int64Array:
        """int64[n]: ascending, all different."""
        return self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def change(self, action: str, numbers: Int64Array) -> None:
        """Changes what is chosen.

        Args:
            action: "add" adds samples, "remove" removes them, "toggle" removes those that are chosen and adds the
                others, and "only" chooses no others.
            numbers: Numbers of the samples.

        Raises:
            ConfigError: There is no such action.
        """
        given = np.unique(np.asarray(numbers, np.int64))
        with self._lock:
            if action == "add":
                changed = np.union1d(self._numbers, given)
            elif action == "remove":
                changed = np.setdiff1d(self._numbers, given, assume_unique=True)
            elif action == "toggle":
                changed = np.setxor1d(self._numbers, given, assume_unique=True)
            elif action == "only":
                changed = given
            else:
                raise ConfigError(f"{action!r} does nothing to samples: give add, remove, toggle or only.")
            self._numbers = changed
            self.version += 1

    def among(self, numbers: Int64Array) -> npt.NDArray[np.bool_]:
        """Returns bool[n]: which of some samples are chosen."""
        return is_among(numbers, self._numbers)


def rows_among(rows: Rows, numbers: Int64Array) -> Rows:
    """Returns those of some rows that are in a list.

    Args:
        rows: The rows.
        numbers: int64[n]: numbers of samples, ascending, all different.
    """
    order = np.argsort(rows.starts, kind="stable")
    starts, ends = rows.starts[order], (rows.starts + rows.lengths)[order]
    at = np.searchsorted(starts, numbers, "right") - 1
    kept = numbers[(at >= 0) & (numbers < ends[at])] if len(starts) else numbers[:0]
    if not len(kept):
        return Rows(np.zeros(0, np.int64), np.zeros(0, np.int64))
    begins = np.concatenate([[0], 1 + np.flatnonzero(np.diff(kept) > 1)])
    stops = np.concatenate([begins[1:], [len(kept)]])
    return Rows(kept[begins], (stops - begins).astype(np.int64))


def names_of(dataset: ViewedDataset, numbers: Int64Array) -> Iterator[SampleName]:
    """Yields the names of samples, by number.

    Args:
        dataset: The dataset.
        numbers: Numbers of the samples, ascending.

    Raises:
        DatasetError: An index is damaged.
        StorageError: It cannot be read.
    """
    borders = np.asarray(dataset.shard_starts)
    cuts = np.searchsorted(numbers, borders)
    for shard in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
        name, extents = dataset.shard_names[shard], dataset.extents(shard)
        for number in (numbers[cuts[shard] : cuts[shard + 1]] - borders[shard]).tolist():
            yield SampleName(str(number), name) if extents is None else SampleName(extents.key(number), name)


def export_lines(dataset: ViewedDataset, numbers: Int64Array, *, as_text: bool) -> Iterator[str]:
    """Yields the content of a file of keys, many lines at once.

    Args:
        dataset: The dataset.
        numbers: Numbers of the samples, ascending.
        as_text: Keys alone, one per line; otherwise JSON lines, which have the shard too.

    Raises:
        ConfigError: A key cannot be a line of plain text.
        DatasetError: An index is damaged.
        StorageError: It cannot be read.
    """
    for start in range(0, len(numbers), _LINES_AT_ONCE):
        names = names_of(dataset, numbers[start : start + _LINES_AT_ONCE])
        yield text_lines(names) if as_text else subset_lines(names)


def find_in_file(dataset: ViewedDataset, content: bytes, name: str) -> tuple[Int64Array, list[SampleName]]:
    """Returns (numbers of the samples that a file of keys names, names that the dataset does not have).

    Args:
        dataset: The dataset.
        content: Content of the file.
        name: Its name, whose ending says which form it has.

    Raises:
        ConfigError: Its name has another ending.
        DatasetError: A line is malformed, or an index is damaged.
        StorageError: An index cannot be read.
    """
    return _found(dataset, parse_subset(content, name))


def _found(dataset: ViewedDataset, names: list[SampleName]) -> tuple[Int64Array, list[SampleName]]:
    found = find_samples(dataset.file if isinstance(dataset, JsonlDataset) else dataset.folder, names)
    return found.numbers, found.missing


@dataclass(frozen=True, slots=True)
class _TaggedSamples:
    """What the file of a tag holds."""

    version: tuple[int, int, int]
    """Number, size and time of the file."""
    numbers: Int64Array
    """int64[n], ascending: the samples."""
    missing: list[SampleName]
    """Names that the dataset does not have any more."""


class Tags:
    """The tags of one dataset. Thread-safe.

    Args:
        dataset: The dataset.
        folder: Folder of all tags; None is that of the user: `ENERGON_DALI_TAGS`, or `energon-dali/tags` in
            `XDG_DATA_HOME`.
    """

    def __init__(self, dataset: ViewedDataset, folder: Path | None = None) -> None:
        self._dataset = dataset
        given = os.environ.get(VARIABLE)
        home = Path(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"))
        root = folder or (Path(given) if given else home / "energon-dali" / "tags")
        path = dataset.path.rstrip("/")
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", path.rpartition("/")[2])[:64]
        self.folder = root / f"{stem}-{hashlib.blake2b(path.encode(), digest_size=8).hexdigest()}"
        """The folder of this dataset's tags; it need not exist."""
        self._lock = threading.Lock()
        self._kept: dict[str, _TaggedSamples] = {}

    def names(self) -> list[str]:
        """Returns the names of the tags, sorted."""
        try:
            files = [entry.name for entry in os.scandir(self.folder)]
        except OSError:  # there are none
            return []
        stems = [name.removesuffix(LINES_SUFFIX) for name in files if name.endswith(LINES_SUFFIX)]
        return sorted(stem for stem in stems if _TAG.fullmatch(stem))

    def path(self, name: str) -> Path:
        """Returns the file of a tag.

        Raises:
            ConfigError: A tag cannot have this name.
        """
        if not _TAG.fullmatch(name) or len(name.encode()) > _MAX_TAG_BYTES:
            raise ConfigError(
                f"{name[:80]!r} cannot be the name of a tag. Begin with a letter or digit, and use at most 64 letters, "
                f"digits, dots, hyphens and underscores, of at most {_MAX_TAG_BYTES} bytes together."
            )
        return self.folder / f"{name}{LINES_SUFFIX}"

    def samples(self, name: str) -> Int64Array:
        """Returns int64[n], ascending: the numbers of the samples that have a tag. Unknown keys are left out.

        Raises:
            ConfigError: There is no such tag.
            DatasetError: Its file is malformed, or an index is damaged.
            StorageError: A file cannot be read.
        """
        return self._read(name).numbers

    def version(self, name: str) -> object:
        """Returns what differs after every change of a tag; raises as `samples`."""
        return self._read(name).version

    def change(self, name: str, action: str, numbers: Int64Array) -> None:
        """Changes which samples have a tag. A tag that no sample has any more is removed.

        Args:
            name: The tag.
            action: As in `ChosenSamples.change`.
            numbers: Numbers of the samples.

        Raises:
            ConfigError: A tag cannot have this name, or there is no such action.
            StorageError: The file cannot be written.
        """
        chosen = ChosenSamples()
        missing: list[SampleName] = []
        with self._lock:
            path = self.path(name)
            if path.exists():
                known = self._read(name)
                chosen.change("only", known.numbers)
                missing = known.missing
            chosen.change(action, numbers)
            if not len(chosen) and not missing:
                self.remove(name)
                return
            with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
                file.writelines(export_lines(self._dataset, chosen.numbers, as_text=False))
                file.write(subset_lines(missing))  # the dataset may have them again

    def remove(self, name: str) -> None:
        """Removes a tag; does nothing if there is none.

        Raises:
            ConfigError: A tag cannot have this name.
            StorageError: The file cannot be removed.
        """
        try:
            self.path(name).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"The tag {name} cannot be removed: {error}.") from error

    def of(self, index: int) -> list[str]:
        """Returns the tags of a sample; those whose file is damaged are left out."""
        found = []
        for name in self.names():
            try:
                if is_among(np.array([index]), self.samples(name))[0]:
                    found.append(name)
            except (ConfigError, DatasetError, StorageError):
                continue
        return found

    def _read(self, name: str) -> _TaggedSamples:
        path = self.path(name)
        try:
            status = path.stat()
        except OSError as error:
            raise ConfigError(f"There is no tag {name!r}.") from error
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._kept.get(name)
        if known is None or known.version != version:
            numbers, missing = _found(self._dataset, read_subset_file(StoragePath.of(path)))
            known = self._kept[name] = _TaggedSamples(version, numbers, missing)
        return known
