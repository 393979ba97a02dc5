"""A prepared folder of tar shards."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.plan.slices import Slices
from energon_dali.shards.documents.content import excerpt, is_inner_path
from energon_dali.shards.documents.opening import Wanted
from energon_dali.shards.index.extent_index import ExtentIndex, read_uuid
from energon_dali.shards.meta.dataset_config import DEFAULT_NAME, read_dataset_config, split_config_of
from energon_dali.shards.meta.document import META, read_meta_document
from energon_dali.shards.meta.info import INFO_NAMES, read_shard_counts
from energon_dali.shards.meta.sample_loader import load_function
from energon_dali.shards.meta.splits import SplitConfig, read_split, split_names
from energon_dali.shards.storage import StoragePath


class WebdatasetFolder:
    """A prepared dataset on disk or in an object store: its shards, its split, its configuration.

    Small files are read on first use. Picklable.

    Args:
        path: Folder that holds the shards and `.nv-meta`; a local path or a URL.
        dataset_config: Name of dataset.yaml.
        split_config: Name of the split file; None takes split.yaml or else split.json. If `dataset.yaml` names one,
            that one is used, as in Energon.
        allow_imports: Accept the names of classes of other packages in `dataset.yaml`, which are imported later.
        allow_code: Run the Python code in the dataset.

    Raises:
        DatasetFormatError: The folder is not prepared.
        StorageError: It cannot be read.
    """

    def __init__(
        self,
        path: str | StoragePath,
        *,
        dataset_config: str = DEFAULT_NAME,
        split_config: str | None = None,
        allow_imports: bool = False,
        allow_code: bool = False,
    ) -> None:
        self.root = StoragePath.of(path)
        self.allow_imports = allow_imports
        self.allow_code = allow_code
        self._dataset_config_name = dataset_config
        self._dataset_config_path = self.root / META / dataset_config
        self._split_config_name = split_config
        self._shard_counts = read_shard_counts(self.root)
        self._shard_names = list(self._shard_counts)
        self._index = ExtentIndex(self.root, self._shard_counts)
        self._dataset_config: dict[str, Any] | None = None
        self._split: SplitConfig | None = None
        self._uuid: str | None = None

    @property
    def path(self) -> str:
        """Local path or URL of the folder."""
        return self.root.url

    @property
    def shard_names(self) -> list[str]:
        """Paths of the shards within the folder, in the order of the index."""
        return self._shard_names

    @property
    def shard_counts(self) -> list[int]:
        """Number of samples in each shard."""
        return list(self._shard_counts.values())

    @property
    def num_samples(self) -> int:
        """Number of samples in all shards, whatever the split."""
        return sum(self._shard_counts.values())

    @property
    def index(self) -> ExtentIndex:
        """Where the parts of all samples are stored."""
        return self._index

    @property
    def dataset_config(self) -> dict[str, Any]:
        """The content of `dataset.yaml`, after checks.

        Raises:
            DatasetFormatError: It is missing or cannot be understood.
            UntrustedCodeError: It names a class of another package, and `allow_imports` is False.
            StorageError: It cannot be read.
        """
        if self._dataset_config is None:
            self._dataset_config = read_dataset_config(
                self.root, self._dataset_config_name, allow_imports=self.allow_imports
            )
        return self._dataset_config

    def unchecked_config(self) -> dict[str, Any]:
        """Returns the content of `dataset.yaml`, which may name code that is not allowed; empty if there is no file.

        Raises:
            DatasetFormatError: It cannot be parsed.
            StorageError: It cannot be read.
        """
        if self._dataset_config is not None:
            return self._dataset_config
        return read_meta_document(self._dataset_config_path, self.root) or {}

    @property
    def uuid(self) -> str:
        """Identity of the index, kept when the same samples are prepared again with the same split; "" without one."""
        if self._uuid is None:
            self._uuid = read_uuid(self.root)
        return self._uuid

    @property
    def split(self) -> SplitConfig:
        """The shards of each part, and what is excluded.

        Raises:
            DatasetFormatError: The split file is missing or cannot be understood.
            StorageError: It cannot be read.
        """
        if self._split is None:
            self._split = read_split(self.root, self._split_name())
        return self._split

    def _split_name(self) -> str | None:
        """Returns the name of the split file; dataset.yaml may be missing if nothing else needs it."""
        return split_config_of(self.unchecked_config(), self._dataset_config_path) or self._split_config_name

    @property
    def split_parts(self) -> tuple[str, ...]:
        """Names of the parts, such as ("train", "val", "test")."""
        return tuple(self.split.split_parts)

    def split_ranges(self, split_part: str) -> Slices:
        """Returns the sample ranges of a part, in the order of the split file, without what is excluded.

        Args:
            split_part: Such as "train".

        Returns:
            Slices whose `shard` is an index into `shard_names`; none is empty.

        Raises:
            ConfigError: There is no such part.
            DatasetFormatError: The split names a shard that is not in the index, or an index is damaged.
            StorageError: A file cannot be read.
        """
        split = self.split
        if not isinstance(split_part, str) or split_part not in split.split_parts:
            raise ConfigError(
                f"{self.path} has no split part {split_part!r}; it has {', '.join(map(repr, split.split_parts))}. "
                "Give one of them as split_part, or add it to the split file."
            )
        numbers = {name: number for number, name in enumerate(self._shard_names)}
        excluded = set(split.exclude)
        keys = self._excluded_keys(split, numbers)
        rows: list[tuple[int, int, int]] = []
        for name in split.split_parts[split_part]:
            if name in excluded:
                continue
            if name not in numbers:
                raise DatasetFormatError(
                    f"{split.path} names the shard {name!r} in {split_part!r}, which is not in the index. Correct the "
                    f"split, or run `energon-dali prepare {shlex.quote(str(self.path))}`."
                )
            rows += self._ranges_of_shard(numbers[name], keys.get(name))
        shards, starts, stops = zip(*rows, strict=True) if rows else ((), (), ())
        # Counts were checked when they were read, and ranges are between them.
        return Slices.trusted(np.array(shards, np.int32), np.array(starts, np.int64), np.array(stops, np.int64))

    def _excluded_keys(self, split: SplitConfig, numbers: Mapping[str, int]) -> dict[str, set[str]]:
        """Returns the excluded keys of each shard; entries are `SHARD/KEY`, and both may contain slashes."""
        keys: dict[str, set[str]] = {}
        for entry in split.exclude:
            if entry in numbers:
                continue
            for slash in (index for index, letter in enumerate(entry) if letter == "/"):
                if entry[:slash] in numbers:
                    keys.setdefault(entry[:slash], set()).add(entry[slash + 1 :])
        return keys

    def _ranges_of_shard(self, number: int, excluded: set[str] | None) -> list[tuple[int, int, int]]:
        count = self._shard_counts[self._shard_names[number]]
        holes = sorted(self._index.shard(number).indices_of_keys(excluded).values()) if excluded else []
        rows = []
        first = 0
        for hole in (*holes, count):
            if hole > first:
                rows.append((number, first, hole))
            first = hole + 1
        return rows

    def __repr__(self) -> str:
        return f"WebdatasetFolder({self.path}, {len(self._shard_names)} shards, {self.num_samples} samples)"


_SPLIT_CONFIG = re.compile(rb"""^["']?split_config["']?\s*:\s*["']?([^"'\s#]+)""", re.MULTILINE)
_CODE_FILE = re.compile(rb"([\w./-]+\.py):\w")


def files_of_folder(
    root: StoragePath, dataset_config: str, split_config: str | None, *, allow_code: bool = False
) -> list[Wanted]:
    """Returns the files that opening a folder takes; one that is left out here is read when it is needed.

    Args:
        root: The folder.
        dataset_config: Name of dataset.yaml.
        split_config: Name of the split file; None for the usual names.
        allow_code: Also the files with code that `dataset.yaml` names.
    """
    meta = root / META

    def named(config: bytes) -> list[StoragePath]:
        found = _SPLIT_CONFIG.findall(config) + (_CODE_FILE.findall(config) if allow_code else [])
        names = [name.decode("utf-8", "replace") for name in dict.fromkeys(found)]
        return [meta / name for name in names if is_inner_path(name)]

    return [
        Wanted(tuple(meta / name for name in INFO_NAMES)),
        Wanted((meta / dataset_config,), named),
        Wanted(tuple(meta / name for name in split_names(split_config))),
    ]


@dataclass(frozen=True, slots=True)
class PartList:
    """A part filter that keeps the parts in a list; picklable."""

    names: frozenset[str]

    def __call__(self, name: str) -> bool:
        return name in self.names


def resolve_sample_loader(folder: WebdatasetFolder) -> tuple[Callable[..., Any], Callable[[str], bool]] | None:
    """Returns the (sample_loader, part_filter) of `dataset.yaml`, None if it has a field map or is crude.

    Both are picklable. The part filter may also be a list of part names.

    Raises:
        UntrustedCodeError: They are code of the dataset, and the folder was opened without allow_code=True.
        DatasetFormatError: They are missing or do not run.
        StorageError: They cannot be read.
    """
    reference = folder.dataset_config.get("sample_loader")
    if reference is None:
        return None
    loader = load_function(folder.root, reference, allow_code=folder.allow_code)
    parts = resolve_part_filter(folder)
    assert parts is not None, "a sample_loader without part_filter is refused"
    return loader, parts


def resolve_part_filter(folder: WebdatasetFolder) -> Callable[[str], bool] | None:
    """Returns the part filter of `dataset.yaml`, a function or a list of part names; None if it has none.

    Raises:
        UntrustedCodeError: It is code of the dataset, and the folder was opened without allow_code=True.
        DatasetFormatError: It is missing or does not run.
        StorageError: It cannot be read.
    """
    parts = folder.dataset_config.get("part_filter")
    if parts is None:
        return None
    if isinstance(parts, str):
        return load_function(folder.root, parts, allow_code=folder.allow_code)
    if isinstance(parts, list) and all(isinstance(part, str) for part in parts):
        return PartList(frozenset(parts))
    raise DatasetFormatError(
        f"{folder.path} has part_filter={excerpt(parts)} in its dataset.yaml. Write sample_loader.py:part_filter, or a "
        "list of part names."
    )
