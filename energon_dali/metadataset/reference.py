"""What a metadataset comes down to: the datasets that are read, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from energon_dali.metadataset.document import Place
from energon_dali.metadataset.subset import Subset
from energon_dali.shards import StoragePath


class DatasetBlendMode(Enum):
    """How the datasets of a metadataset are put together; the values are Energon's."""

    NONE = "none"
    """There is one dataset."""
    DATASET_WEIGHT = "dataset_weight"
    """Each dataset repeats for ever, and is drawn from in proportion to its weight."""
    SAMPLE_REPETITIONS = "sample_repetitions"
    """An epoch holds the samples of each dataset a given number of times."""


@dataclass(frozen=True, slots=True)
class AuxReference:
    """A store of files that the cookers of a dataset read from."""

    path: str
    """Local path or URL: of a prepared dataset, or of a plain folder."""
    kind: Literal["dataset", "filesystem"] = "dataset"
    """Whether files are found by the index of a prepared dataset, or by their paths in a folder."""

    @property
    def form(self) -> dict[str, str]:
        """The reference as Energon writes it: `{path: ...}` or `{fs_path: ...}`."""
        return {"path" if self.kind == "dataset" else "fs_path": self.path}


@dataclass(frozen=True, slots=True)
class JoinerReference:
    """What makes one sample of the joined ones."""

    name: str
    """Name of the class or function."""
    module: str | None = None
    """Module that it is imported from; None are the samples of this package."""
    is_function: bool = False
    """A function is called with the samples; a Sample class makes them one by `from_joined`."""
    given: Callable[..., Any] | None = None
    """The class or function itself, where a program gave it in a dict."""


@dataclass(frozen=True, slots=True)
class JoinColumn:
    """One of the datasets that are joined."""

    path: str
    """Local path or URL of a prepared folder."""
    split_part: str
    """Part of its split."""
    nonmatch: Literal["error", "skip", "none"] = "error"
    """What happens to a primary sample that has no match here."""
    name: str | None = None
    """Name of the joiner's argument; None passes samples by position."""
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    """Put over those of its dataset.yaml."""
    dataset_config: str | None = None
    """File in .nv-meta that says what a sample is; None is dataset.yaml."""
    split_config: str | None = None
    """File in .nv-meta that says which shards are in which part; None is split.yaml or split.json."""


@dataclass(frozen=True, slots=True)
class JoinReference:
    """Datasets whose samples with equal keys become one sample."""

    columns: tuple[JoinColumn, ...]
    """The datasets, the primary one first."""
    joiner: JoinerReference
    """Makes one sample of them."""
    index_folder: StoragePath
    """Folder of the prepared join indices, beside the metadataset."""


@dataclass(frozen=True, slots=True)
class LeafReference:
    """One dataset that is read, with everything that the levels above it say."""

    path: str
    """Local path or URL of a prepared folder or .jsonl file; the primary one's for a join."""
    split_part: str
    """Part of its split."""
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    """Put over those of its dataset.yaml; the outer levels win."""
    weight: float | None = None
    """Share of the draws, where datasets are blended by weight; all leaves together have 1."""
    repetitions: float | None = None
    """How often its samples come in an epoch, where that is given."""
    shuffle_over_epochs_multiplier: int | None = 1
    """Product of all levels; -1 draws with replacement, None keeps file order."""
    subset: Subset | None = None
    """Range of its samples; None takes all."""
    dataset_config: str | None = None
    """File in .nv-meta that says what a sample is; None is dataset.yaml."""
    split_config: str | None = None
    """File in .nv-meta that says which shards are in which part; None is split.yaml or split.json."""
    aux: Mapping[str, AuxReference] = field(default_factory=dict)
    """Stores that its cookers read from, by name."""
    join: JoinReference | None = None
    """Set where the leaf is several datasets joined by key."""
    place: Place | None = field(default=None, compare=False)
    """Where it is named, for messages; None where the user gave its path."""

    @property
    def is_jsonl(self) -> bool:
        """Whether it is a JSONL file."""
        return self.path.endswith(".jsonl")


@dataclass(frozen=True, slots=True)
class ResolvedBlend:
    """What a path stands for."""

    mode: Literal["none", "weights", "repetitions"]
    """How the leaves are put together."""
    leaves: tuple[LeafReference, ...]
    """The datasets that are read, in the order of the files."""


@dataclass(frozen=True, slots=True)
class TraversedDatasetReference:
    """One dataset below a metadataset, as `traverse_metadataset` gives it."""

    path: str
    """Local path or URL."""
    split_part: str
    """Part of its split."""
    aux: Mapping[str, str]
    """Paths of its auxiliary stores, by name."""
    subflavors: Mapping[str, Any]
    """Of all levels."""


def combine_shuffle_over_epochs(outer: int | None, inner: int | None) -> int | None:
    """Returns what two levels say together: None (file order) wins over -1 (with replacement) over the product."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner
