"""What a program may ask of a dataset or metadataset that it has not opened."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.metadataset.reference import (
    DatasetBlendMode,
    LeafReference,
    ResolvedBlend,
    TraversedDatasetReference,
    combine_shuffle_over_epochs,
)
from energon_dali.metadataset.tree import make_context
from energon_dali.shards import StoragePath

PathLike = str | os.PathLike[str] | StoragePath
_MODES = {
    "none": DatasetBlendMode.NONE,
    "weights": DatasetBlendMode.DATASET_WEIGHT,
    "repetitions": DatasetBlendMode.SAMPLE_REPETITIONS,
}


@dataclass(frozen=True, slots=True)
class LoadedDataset:
    """One dataset of a metadataset, with its part in the whole."""

    dataset: LeafReference
    """What is read."""
    weight: float | None = None
    """Share of the draws; None where datasets are not blended by weight."""
    repetitions: float | None = None
    """How often its samples come in an epoch; None where that is not given."""


@dataclass(frozen=True, slots=True)
class LoadedDatasetList:
    """The datasets of a metadataset, in the order of its files."""

    datasets: tuple[LoadedDataset, ...]
    """Each with its weight or repetitions, as `blend_mode` says."""
    blend_mode: DatasetBlendMode = DatasetBlendMode.NONE
    """How they are put together."""


class DatasetLoaderInterface(ABC):
    """A dataset or metadataset, known by its files and not opened yet."""

    @abstractmethod
    def resolve(
        self,
        split_part: str,
        *,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: object = None,
    ) -> ResolvedBlend:
        """Returns the datasets that are read for a split part.

        Args:
            split_part: Such as "train".
            subflavors: Put into every sample; they win over all others.
            shuffle_over_epochs_multiplier: Combined with what the files say.
            subset: Range of all samples, as `Subset.of` takes it.

        Raises:
            DatasetFormatError: A metadataset cannot be understood; the message names file, line and key.
            ConfigError: There is no such split, or the subset cannot be understood.
            StorageError: A file cannot be read.
        """

    def prepare(self, split_part: str | None = None) -> list[str]:
        """Builds the join indices that are missing, and returns the paths of all.

        Args:
            split_part: Only those that this split uses; None takes all splits.

        Raises:
            DatasetError: A dataset cannot be joined.
            StorageError: A file cannot be read or written.
        """
        return []

    def get_datasets(
        self,
        *,
        split_part: str,
        training: bool = True,
        worker_config: object = None,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: object = None,
    ) -> LoadedDatasetList:
        """Returns the datasets of a split part with their weights or repetitions; arguments as in `resolve`.

        They are references: `get_train_dataset` and `get_val_dataset` open them.

        Raises:
            DatasetFormatError: A metadataset cannot be understood; the message names file, line and key.
            ConfigError: There is no such split, or the subset cannot be understood.
            StorageError: A file cannot be read.
        """
        blend = self.resolve(
            split_part,
            subflavors=subflavors,
            shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
            subset=subset,
        )
        return LoadedDatasetList(
            tuple(LoadedDataset(leaf, leaf.weight, leaf.repetitions) for leaf in blend.leaves), _MODES[blend.mode]
        )

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        """Returns the flattened datasets of a split part, joins excepted.

        Raises:
            ConfigError: There is no such split, or it holds a join, which is no single dataset.
            DatasetFormatError: A metadataset cannot be understood; the message names file, line and key.
            StorageError: A file cannot be read.
        """
        leaves = self.resolve(split_part).leaves
        for leaf in leaves:
            if leaf.join is not None:
                raise ConfigError(
                    f"{leaf.place}: a join is several datasets at once, which traverse_metadataset cannot name. Use "
                    "load_dataset(path).get_datasets(split_part=...), whose references have a `join`."
                )
        return [
            TraversedDatasetReference(
                leaf.path, leaf.split_part, {name: aux.path for name, aux in leaf.aux.items()}, dict(leaf.subflavors)
            )
            for leaf in leaves
        ]

    def post_initialize(self, mds_path: PathLike | None = None) -> None:  # noqa: B027 - most have nothing to do
        """Does nothing: references are looked up when they are asked for. Energon's programs call it."""


class DatasetLoader(DatasetLoaderInterface):
    """A single dataset.

    Args:
        path: A prepared folder or a .jsonl file.
        split_part: Part of its split; None takes the one that is asked for.
        subflavors: Put over those of its dataset.yaml.
        shuffle_over_epochs_multiplier: Combined with what is asked for.
        dataset_config: File in .nv-meta that says what a sample is.
        split_config: File in .nv-meta that says which shards are in which part.
    """

    @explain_call
    def __init__(
        self,
        *,
        path: PathLike,
        split_part: str | None = None,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        dataset_config: str | None = None,
        split_config: str | None = None,
    ) -> None:
        self.path = StoragePath.of(path)
        self.split_part = split_part
        self.subflavors = dict(subflavors or {})
        self.shuffle_over_epochs_multiplier = shuffle_over_epochs_multiplier
        self.dataset_config = dataset_config
        self.split_config = split_config

    def resolve(
        self,
        split_part: str,
        *,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: object = None,
    ) -> ResolvedBlend:
        multiplier = combine_shuffle_over_epochs(shuffle_over_epochs_multiplier, self.shuffle_over_epochs_multiplier)
        leaf = LeafReference(
            self.path.url,
            self.split_part or split_part,
            {**self.subflavors, **(subflavors or {})},
            shuffle_over_epochs_multiplier=multiplier,
            subset=make_context(split_part, subset=subset).subset,
            dataset_config=self.dataset_config,
            split_config=self.split_config,
        )
        return ResolvedBlend("none", (leaf,))

    def __repr__(self) -> str:
        return f"DatasetLoader({self.path.url})"
