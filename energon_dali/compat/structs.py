"""The records of Energon that describe a prepared folder, and how they are read from it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypedDict

from energon_dali.compat.epath import EPath
from energon_dali.errors import ConfigError, DatasetFormatError, EmptyDatasetError
from energon_dali.metadataset.reference import Subset
from energon_dali.samples.base import SourceInfo, edataclass
from energon_dali.shards import WebdatasetFolder
from energon_dali.shards.index.extent_index import SQLITE_NAME
from energon_dali.shards.meta.document import META, read_first_document
from energon_dali.shards.meta.info import INFO_NAMES, info_present, read_shard_counts


@edataclass
class WebdatasetInfo:
    """The content of `.info.json`."""

    energon_version: str | None = None
    """Version of the library that prepared the folder."""
    shard_counts: dict[str, int]
    """Number of samples of each shard."""


@edataclass
class WebdatasetSplits:
    """The content of `split.yaml`."""

    split_parts: dict[str, list[str]]
    """Shards of each part; braces stand for several names."""
    exclude: list[str] = field(default_factory=list)
    """Shards and samples (SHARD/KEY) that are left out."""


@edataclass
class ShardInfo:
    """One shard."""

    name: str
    """Path relative to the folder."""
    path: EPath
    """The shard."""
    count: int
    """Number of samples."""


class FilteredSample(TypedDict):
    """What `load_sample` of a factory takes: these keys, and the content of each part by its name."""

    __key__: str
    __shard__: str
    __restore_key__: tuple[str, int]
    __sources__: tuple[SourceInfo, ...]


@edataclass
class DatasetSubset:
    """A part of a dataset's samples: the absolute range is taken first, then the relative one of what is left."""

    range: tuple[float, float] | None = None
    """Share of the samples, such as (0.0, 0.25)."""
    absolute_range: tuple[int, int | None] | None = None
    """Samples from the first to the second number, exclusive; None is the end."""

    def compute_subset(self, total_samples: int) -> tuple[int, int]:
        """Returns the range of samples (start, stop).

        Raises:
            ConfigError: A range does not fit into the samples.
        """
        start, stop = self.absolute_range or (0, None)
        stop = total_samples if stop is None else stop
        if not 0 <= start <= stop <= total_samples:
            raise ConfigError(f"The subset {self.absolute_range} does not fit into {total_samples} samples.")
        low, high = self.range or (0.0, 1.0)
        if not 0.0 <= low <= high <= 1.0:
            raise ConfigError(f"The subset {self.range} is not a range inside (0.0, 1.0).")
        count = stop - start
        return start + int(count * low), start + int(count * high)

    def to_subset(self) -> Subset:
        """Returns the same as this package's own class.

        Raises:
            ConfigError: A range is invalid.
        """
        return Subset(self.range or (0.0, 1.0), self.absolute_range)

    def config(self) -> dict[str, Any]:
        """Returns both ranges as plain values."""
        return {"range": self.range, "absolute_range": self.absolute_range}


class EnergonDatasetType(Enum):
    """What a path names."""

    METADATASET = "metadataset"
    WEBDATASET = "webdataset"
    JSONL = "jsonl"
    FILESYSTEM = "filesystem"
    INVALID = "invalid"


@dataclass
class WebdatasetMeta:
    """The shards of one part of a split."""

    sample_excludes: set[str]
    """Samples that are left out, as SHARD/KEY."""
    shards: list[ShardInfo]
    """The shards that are read."""
    split_part_files: list[str]
    """The shards of the part by name, excluded ones too."""
    info_shard_files: list[str]
    """All shards of the folder by name."""

    @staticmethod
    def from_config(path: EPath, *, split_part: str, split_config: str | None = None) -> WebdatasetMeta:
        """Reads the split of a folder.

        Args:
            path: The folder.
            split_part: Such as "train".
            split_config: Name of the split file; None takes split.yaml or split.json.

        Raises:
            DatasetFormatError: The folder is not prepared, or has no such split part.
            EmptyDatasetError: The part has no shards.
        """
        folder = WebdatasetFolder(EPath(path).storage_path, split_config=split_config)
        counts = dict(zip(folder.shard_names, folder.shard_counts, strict=True))
        split = folder.split
        if split_part not in split.split_parts:
            raise DatasetFormatError(
                f"{path} has no split part {split_part!r}: its parts are {', '.join(split.split_parts)}."
            )
        files = list(split.split_parts[split_part])
        excluded = set(split.exclude)
        kept = [name for name in files if name not in excluded]
        if not kept:
            raise EmptyDatasetError(f"{path} has no shards in the split part {split_part!r}.")
        return WebdatasetMeta(
            sample_excludes={name for name in excluded if name not in counts},
            shards=[ShardInfo(name=name, path=EPath(path) / name, count=counts[name]) for name in kept],
            split_part_files=files,
            info_shard_files=list(counts),
        )


def get_dataset_info(path: EPath) -> dict[str, Any]:
    """Returns the content of `.info.json`, or of an older `.info.yaml`.

    Raises:
        DatasetFormatError: There is neither.
    """
    found = read_first_document(EPath(path).storage_path, INFO_NAMES)
    if found is None:
        raise DatasetFormatError(
            f"{path} has no {' or '.join(INFO_NAMES)} in {META}. Run `energon-dali prepare {shlex.quote(str(path))}`."
        )
    return found[1]


def check_dataset_info_present(path: EPath) -> bool:
    """Returns whether a folder is prepared."""
    return info_present(EPath(path).storage_path)


def get_info_shard_files(path: EPath) -> list[str]:
    """Returns the names of all shards of a prepared folder."""
    return list(read_shard_counts(EPath(path).storage_path))


def get_dataset_type(path: EPath) -> EnergonDatasetType:
    """Returns what a path names."""
    path = EPath(path)
    if path.is_file():
        kinds = {".jsonl": EnergonDatasetType.JSONL, ".yaml": EnergonDatasetType.METADATASET}
        return kinds.get(path.internal_path.suffix, EnergonDatasetType.INVALID)
    if check_dataset_info_present(path):
        return EnergonDatasetType.WEBDATASET
    if (path / META / SQLITE_NAME).is_file():
        return EnergonDatasetType.FILESYSTEM
    return EnergonDatasetType.INVALID
