"""The result of resolving a metadataset: the datasets that are read, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from energon_dali.metadataset.document import Location
from energon_dali.metadataset.subset import Subset
from energon_dali.plan.scheduled import Schedule
from energon_dali.shards import StoragePath


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
