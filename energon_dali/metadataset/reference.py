"""The result of resolving a metadataset: the datasets that are read, how they are put together, and their subsets.

A subset is a range of the samples of a dataset, as numbers or as shares, the samples that a file names by their keys,
or those whose measures fulfil a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

import numpy as np

from energon_dali.errors import ConfigError, StorageError
from energon_dali.metadataset.condition import Condition
from energon_dali.metadataset.document import Location
from energon_dali.plan.scheduled import Schedule
from energon_dali.plan.slices import Slices
from energon_dali.shards import StoragePath
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.subset_file import check_subset_path

_FORM = 'Write two percentages, such as ["0%", "25%"], or two sample numbers, such as [100, 200] or [100, end].'
_KEYS = {"range", "keys", "where"}


@dataclass(frozen=True, slots=True)
class Subset:
    """A range of the samples of a split part, in file order. The shares are taken of the range that the numbers leave.

    Of the range, a file of keys and a condition on measures may choose samples.

    Raises:
        ConfigError: A range ends before it starts, or is outside the whole.
    """

    share: tuple[float, float] = (0.0, 1.0)
    """(start, stop) as shares of the whole, 0 to 1."""
    numbers: tuple[int, int | None] | None = None
    """(start, stop) as sample numbers, stop exclusive; a stop of None is the end. Only for a single dataset."""
    where: Condition | None = None
    """What the measures of a sample have to be; None takes all."""
    keys: StoragePath | None = None
    """File that names the samples, as `read_subset_file` takes it; None takes all. Only for a single dataset."""

    def __post_init__(self) -> None:
        begin, end = self.share
        if not 0 <= begin <= end <= 1:
            raise ConfigError(f"A subset from {begin:.4%} to {end:.4%} is invalid. {_FORM}")
        if self.numbers is not None:
            first, last = self.numbers
            if first < 0 or (last is not None and last < first):
                raise ConfigError(f"A subset from sample {first} to {last} is invalid. {_FORM}")

    @property
    def is_range(self) -> bool:
        """Whether it takes every sample of a range, so that their number is known without an index or measures."""
        return self.where is None and self.keys is None

    @classmethod
    def of(cls, value: Any) -> Subset:
        """Returns the subset that a user wrote.

        Args:
            value: A Subset, [begin, end], or a mapping with one or more of `range: [begin, end]`, `keys: path` and
                `where: condition`.

        Raises:
            ConfigError: It has another form, or is invalid.
        """
        if isinstance(value, Subset):
            return value
        if isinstance(value, Mapping):
            if not value or not value.keys() <= _KEYS:
                keys = sorted(map(str, value))
                raise ConfigError(f"subset has the keys {keys}, and needs some of `range`, `keys` and `where`. {_FORM}")
            subset = cls() if "range" not in value else cls.of(value["range"])
            if "keys" in value:
                subset = replace(subset, keys=_keys_path(value["keys"]))
            return replace(subset, where=Condition.parse(value["where"])) if "where" in value else subset
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            raise ConfigError(f"subset has the range {value!r}. {_FORM}")
        begin, end = (_bound(bound) for bound in value)
        if isinstance(begin, int) and (isinstance(end, int) or end is None):
            return cls(numbers=(begin, end))
        if isinstance(begin, float) and not isinstance(end, int):
            return cls(share=(begin, 1.0 if end is None else end))
        raise ConfigError(f"subset has the range {list(value)!r}, which mixes shares and numbers. {_FORM}")

    def within(self, outer: Subset | None) -> Subset:
        """Returns the part of this subset that an outer level takes.

        Args:
            outer: Share that the outer level takes; None takes all.

        Raises:
            ConfigError: The outer one counts or names samples, which only the innermost one can.
        """
        if outer is None:
            return self
        if outer.keys is not None:
            raise ConfigError(
                f"subset names samples by the file {outer.keys}, and is given for a blend or a metadataset. Keys are "
                "those of a single dataset: give each dataset a file of its own."
            )
        if outer.numbers is not None:
            raise ConfigError(
                f"subset {list(outer.numbers)} counts samples, and is given for a blend or a metadataset. Sample "
                "numbers are allowed at a single dataset; for several datasets write percentages."
            )
        begin, end = self.share
        length = end - begin
        where = self.where or outer.where
        if self.where is not None and outer.where is not None:
            where = Condition((*self.where.comparisons, *outer.where.comparisons))
        return Subset(
            (begin + outer.share[0] * length, begin + outer.share[1] * length), self.numbers, where, self.keys
        )

    def bounds(self, total: int) -> tuple[int, int]:
        """Returns (start, stop) for a dataset of `total` samples, stop exclusive.

        Raises:
            ConfigError: The numbers reach beyond the samples.
        """
        first, last = 0, total
        if self.numbers is not None:
            first, last = self.numbers[0], total if self.numbers[1] is None else self.numbers[1]
            if not first <= last <= total:
                raise ConfigError(
                    f"subset {[first, last]} reaches beyond the {total} samples of the split. Give a range inside 0 to "
                    f"{total}, or percentages."
                )
        length = last - first
        return first + int(length * self.share[0]), first + int(length * self.share[1])


def _keys_path(value: Any) -> StoragePath:
    """Returns the path of a file of keys.

    Raises:
        ConfigError: It is not a path, or has another ending than such files have.
    """
    try:
        return check_subset_path(StoragePath.of(value))
    except StorageError as error:
        raise ConfigError(f"subset has keys={excerpt(value)}: {error}") from error


def _bound(value: Any) -> int | float | None:
    """Returns a sample number, a share, or None for the end."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if text == "end":
        return None
    if text.endswith("%"):
        try:
            return float(text[:-1]) / 100.0
        except ValueError:
            pass
    raise ConfigError(f"subset has the bound {value!r}. {_FORM}")


def take_subset(ranges: Slices, shard_counts: Sequence[int], subset: Subset | None) -> Slices:
    """Returns the ranges of a split, cut to a subset.

    Samples are counted over whole shards, including samples that the split excludes, as Energon does.

    Args:
        ranges: Of the split, in file order; ranges of one shard follow each other.
        shard_counts: Number of samples in each shard.
        subset: None takes all.

    Raises:
        ConfigError: The subset reaches beyond the samples.
    """
    if subset is None or not len(ranges):
        if subset is not None:
            subset.bounds(0)
        return ranges
    counts = np.asarray(shard_counts, np.int64)
    follows = (ranges.shard[1:] == ranges.shard[:-1]) & (ranges.start[1:] >= ranges.stop[:-1])
    begins_shard = np.concatenate([[True], ~follows])  # [n]; a split may name a shard twice
    lengths = np.where(begins_shard, counts[ranges.shard], 0)
    origin = (np.cumsum(lengths) - counts[ranges.shard]).astype(np.int64)  # [n]: first sample of the shard
    first, last = subset.bounds(int(lengths.sum()))
    cut_first = np.clip(first - origin, ranges.start, ranges.stop)
    cut_last = np.clip(last - origin, ranges.start, ranges.stop)
    kept = np.flatnonzero(cut_last > cut_first)
    return Slices(ranges.shard[kept], cut_first[kept], cut_last[kept])


class DatasetBlendMode(Enum):
    """How the datasets of a metadataset are put together; the values are Energon's."""

    NONE = "none"
    """There is one dataset."""
    DATASET_WEIGHT = "dataset_weight"
    """Each dataset repeats indefinitely, and is drawn from in proportion to its weight."""
    SAMPLE_REPETITIONS = "sample_repetitions"
    """An epoch holds the samples of each dataset a given number of times."""


@dataclass(frozen=True, slots=True)
class AuxReference:
    """A store of files that the cookers of a dataset read from."""

    path: str
    """Local path or URL of a prepared dataset or a plain folder."""
    kind: Literal["dataset", "filesystem"] = "dataset"
    """Whether files are found by the index of a prepared dataset, or by their paths in a folder."""

    @property
    def form(self) -> dict[str, str]:
        """The reference as Energon writes it: `{path: ...}` or `{fs_path: ...}`."""
        return {"path" if self.kind == "dataset" else "fs_path": self.path}


@dataclass(frozen=True, slots=True)
class JoinerReference:
    """The class or function that makes one sample of the joined ones."""

    name: str
    """Name of the class or function."""
    module: str | None = None
    """Module that it is imported from; None takes the sample types of this package."""
    is_function: bool = False
    """A function is called with the samples; a Sample class joins them by `from_joined`."""
    given: Callable[..., Any] | None = None
    """The class or function itself, if a program passed it in a dict."""


@dataclass(frozen=True, slots=True)
class JoinColumn:
    """One of the datasets that are joined."""

    path: str
    """Local path or URL of a prepared folder."""
    split_part: str
    """Part of its split."""
    nonmatch: Literal["error", "skip", "none"] = "error"
    """What happens to a primary sample that has no match in this dataset."""
    name: str | None = None
    """Name of the joiner's argument; None passes samples by position."""
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    """They override those of its dataset.yaml."""
    dataset_config: str | None = None
    """File in .nv-meta that defines the samples; None is dataset.yaml."""
    split_config: str | None = None
    """File in .nv-meta that divides the shards into parts; None is split.yaml or split.json."""


@dataclass(frozen=True, slots=True)
class JoinReference:
    """Datasets whose samples with equal keys become one sample."""

    columns: tuple[JoinColumn, ...]
    """The datasets, the primary one first."""
    joiner: JoinerReference
    """Makes one sample of theirs."""
    index_folder: StoragePath
    """Folder of the prepared join indices, next to the metadataset."""


@dataclass(frozen=True, slots=True)
class SourceReference:
    """One dataset or join that is read, with the options of all levels above it."""

    path: str
    """Local path or URL of a prepared folder or .jsonl file; of the primary dataset for a join."""
    split_part: str
    """Part of its split."""
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    """They override those of its dataset.yaml; outer levels override inner ones."""
    weight: float | None = None
    """Share of the draws, if datasets are blended by weight; the weights of all sources add up to 1."""
    repetitions: float | None = None
    """How often its samples are repeated in an epoch, if that is given."""
    shuffle_over_epochs_multiplier: int | None = 1
    """Product of all levels; -1 draws with replacement, None keeps file order."""
    subset: Subset | None = None
    """Range of its samples; None takes all."""
    dataset_config: str | None = None
    """File in .nv-meta that defines the samples; None is dataset.yaml."""
    split_config: str | None = None
    """File in .nv-meta that divides the shards into parts; None is split.yaml or split.json."""
    aux: Mapping[str, AuxReference] = field(default_factory=dict)
    """Stores that its cookers read from, by name."""
    join: JoinReference | None = None
    """Set for several datasets that are joined by key."""
    location: Location | None = field(default=None, compare=False)
    """Where it is named, for messages; None if the user gave its path."""

    @property
    def is_jsonl(self) -> bool:
        """Whether it is a JSONL file."""
        return self.path.endswith(".jsonl")


@dataclass(frozen=True, slots=True)
class ResolvedBlend:
    """The datasets that a path names."""

    mode: Literal["none", "weights", "repetitions"]
    """How the sources are put together."""
    sources: tuple[SourceReference, ...]
    """The datasets that are read, in the order of the files."""
    schedule: Schedule | None = None
    """Their weights over the steps or samples of a job, where these change; `weight` of a source is the first one."""

    @property
    def is_epochized(self) -> bool:
        """Whether an epoch is made of several datasets, or of repetitions of one."""
        return self.mode == "repetitions" and (len(self.sources) > 1 or self.sources[0].repetitions != 1)


@dataclass(frozen=True, slots=True)
class TraversedDatasetReference:
    """One dataset below a metadataset, as `traverse_metadataset` returns it."""

    path: str
    """Local path or URL."""
    split_part: str
    """Part of its split."""
    aux: Mapping[str, str]
    """Paths of its auxiliary stores, by name."""
    subflavors: Mapping[str, Any]
    """Subflavors of all levels."""
