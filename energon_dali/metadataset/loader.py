"""Datasets and metadatasets that are named but not opened: what they contain, and the preparation of their joins."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import Unpack

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.metadataset.context import CallOptions, Context, combine_shuffle_over_epochs
from energon_dali.metadataset.document import YAML_SUFFIXES, Document, document_from_dict, read_document
from energon_dali.metadataset.join.prepare import prepare_joins
from energon_dali.metadataset.reference import (
    DatasetBlendMode,
    ResolvedBlend,
    SourceReference,
    TraversedDatasetReference,
)
from energon_dali.metadataset.resolve import Resolver
from energon_dali.metadataset.schema import read_splits
from energon_dali.shards import StoragePath

PathLike = str | os.PathLike[str] | StoragePath
BLEND_MODES = {
    "none": DatasetBlendMode.NONE,
    "weights": DatasetBlendMode.DATASET_WEIGHT,
    "repetitions": DatasetBlendMode.SAMPLE_REPETITIONS,
}


@dataclass(frozen=True, slots=True)
class LoadedDataset:
    """One dataset of a metadataset, with its weight or repetitions."""

    dataset: Any
    """The dataset that is read: a SourceReference, or the factory of one that is open."""
    weight: float | None = None
    """Share of the draws; None if datasets are not blended by weight."""
    repetitions: float | None = None
    """How often its samples are repeated in an epoch; None if that is not given."""
    aux: Mapping[str, Any] | None = None
    """Its auxiliary stores by name; None if it has none."""

    def __iter__(self) -> Iterator[Any]:
        """Yields the dataset, and its weight or repetitions: what older versions of Energon had as a pair."""
        return iter((self.dataset, self.repetitions if self.weight is None else self.weight))


@dataclass(frozen=True, slots=True)
class LoadedDatasetList:
    """The datasets of a metadataset, in the order of its files."""

    datasets: tuple[LoadedDataset, ...]
    """Each with its weight or repetitions, as `blend_mode` says."""
    blend_mode: DatasetBlendMode = DatasetBlendMode.NONE
    """How they are put together."""


class DatasetLoaderInterface(ABC):
    """A dataset or metadataset that is known by its files and not opened yet."""

    @abstractmethod
    def resolve(self, split_part: str, **options: Unpack[CallOptions]) -> ResolvedBlend:
        """Returns the datasets that are read for a split part.

        Args:
            split_part: Such as "train".
            **options: See `CallOptions`.

        Raises:
            DatasetFormatError: A metadataset is malformed; the message names file, line and key.
            ConfigError: There is no such split, or the subset is invalid.
            StorageError: A file cannot be read.
        """

    def prepare(self, split_part: str | None = None) -> list[str]:
        """Builds the join indices that are missing, and returns the paths of all.

        Args:
            split_part: Builds only the indices that this split uses; None builds those of all splits.

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
        **options: Unpack[CallOptions],
    ) -> LoadedDatasetList:
        """Returns the datasets of a split part with their weights or repetitions; arguments as in `resolve`.

        They are references; `get_train_dataset` and `get_val_dataset` open them.

        Raises:
            DatasetFormatError: A metadataset is malformed; the message names file, line and key.
            ConfigError: There is no such split, or the subset is invalid.
            StorageError: A file cannot be read.
        """
        blend = self.resolve(split_part, **options)
        return LoadedDatasetList(
            tuple(
                LoadedDataset(source, source.weight, source.repetitions, source.aux or None) for source in blend.sources
            ),
            BLEND_MODES[blend.mode],
        )

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        """Returns the flattened datasets of a split part, which must have no joins.

        Raises:
            ConfigError: There is no such split, or it holds a join, which is not a single dataset.
            DatasetFormatError: A metadataset is malformed; the message names file, line and key.
            StorageError: A file cannot be read.
        """
        sources = self.resolve(split_part).sources
        for source in sources:
            if source.join is not None:
                raise ConfigError(
                    f"{source.location}: a join is several datasets at once, which traverse_metadataset cannot name. "
                    "Use load_dataset(path).get_datasets(split_part=...), whose references have a `join`."
                )
        return [
            TraversedDatasetReference(
                source.path,
                source.split_part,
                {name: aux.path for name, aux in source.aux.items()},
                dict(source.subflavors),
            )
            for source in sources
        ]

    def post_initialize(self, mds_path: PathLike | None = None) -> None:  # noqa: B027 - not abstract: most subclasses need nothing
        """Does nothing, since references are resolved when they are asked for; Energon's programs call it."""


class DatasetLoader(DatasetLoaderInterface):
    """A single dataset.

    Args:
        path: A prepared folder or a .jsonl file.
        split_part: Part of its split; None takes the part that the caller asks for.
        subflavors: They override those of its dataset.yaml.
        shuffle_over_epochs_multiplier: Combined with that of the caller.
        dataset_config: File in .nv-meta that defines the samples.
        split_config: File in .nv-meta that divides the shards into parts.
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

    def resolve(self, split_part: str, **options: Unpack[CallOptions]) -> ResolvedBlend:
        call = Context.of_call(self.split_part or split_part, **options)
        multiplier = combine_shuffle_over_epochs(
            call.shuffle_over_epochs_multiplier, self.shuffle_over_epochs_multiplier
        )
        source = SourceReference(
            self.path.url,
            call.split_part,
            {**self.subflavors, **call.subflavors},
            shuffle_over_epochs_multiplier=multiplier,
            subset=call.subset,
            dataset_config=self.dataset_config,
            split_config=self.split_config,
        )
        return ResolvedBlend("none", (source,))

    def __repr__(self) -> str:
        return f"DatasetLoader({self.path.url})"


class _MetadatasetLoader(DatasetLoaderInterface):
    """A metadataset of the first or second form."""

    def __init__(self, document: Document) -> None:
        self.document = document
        read_splits(document)

    @property
    def path(self) -> str:
        """Path or URL of the file; "dict" if there is none."""
        return self.document.file

    @property
    def split_parts(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(read_splits(self.document)[0])

    def resolve(self, split_part: str, **options: Unpack[CallOptions]) -> ResolvedBlend:
        context = Context.of_call(split_part, chain=(self.document.file,), **options)
        return Resolver().blend(self.document, context)

    def prepare(self, split_part: str | None = None) -> list[str]:
        def joins_of(part: str) -> list[SourceReference]:
            # The shares of a concatenation depend on counts, which a join has only after it is prepared.
            context = Context.of_call(part, chain=(self.document.file,))
            sources = Resolver(lambda source: 1).blend(self.document, context).sources
            return [source for source in sources if source.join is not None]

        parts = self.split_parts if split_part is None else (split_part,)
        return prepare_joins([join for part in parts for join in joins_of(part)], self.document, split_part is None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.document.file}, splits={list(self.split_parts)})"


class Metadataset(_MetadatasetLoader):
    """A metadataset of Energon's first form: a list of weighted `datasets` for each split.

    Args:
        path: The file that it replaces; relative paths start from its folder.
        splits: The value of `splits` in such a file.

    Raises:
        DatasetFormatError: It is malformed.
    """

    @explain_call
    def __init__(self, path: PathLike, splits: Mapping[str, Any]) -> None:
        super().__init__(_document_of(path, splits, "Metadataset"))


class MetadatasetV2(_MetadatasetLoader):
    """A metadataset of Energon's second form: a dataset, join, blend, blend_epochized or concat for each split.

    Args:
        path: The file that it replaces; relative paths start from its folder.
        splits: The value of `splits` in such a file.

    Raises:
        DatasetFormatError: It is malformed.
    """

    @explain_call
    def __init__(self, *, path: PathLike, splits: Mapping[str, Any]) -> None:
        super().__init__(_document_of(path, splits, "MetadatasetV2"))


def _document_of(path: PathLike, splits: Mapping[str, Any], form: str) -> Document:
    file = StoragePath.of(path)
    base = StoragePath(file.url.rpartition("/")[0] or "/")
    document = document_from_dict({"__module__": "megatron.energon", "__class__": form, "splits": splits}, base)
    return Document(file.url, base, document.value)


def load_dataset(path: PathLike | Mapping[str, Any], **kwargs: Any) -> DatasetLoaderInterface:
    """Returns the loader of a path.

    Args:
        path: A metadataset (.yaml), or one as a dict; a prepared folder; a .jsonl file.
        **kwargs: Arguments of `DatasetLoader`, for a folder or a .jsonl file.

    Raises:
        DatasetFormatError: A metadataset is malformed; the message names file, line and key.
        ConfigError: The path is invalid, or arguments were given that a metadataset does not take.
        StorageError: A file cannot be read.
    """
    if not isinstance(path, (str, os.PathLike, StoragePath, Mapping)) or path == "":
        raise ConfigError(
            f"load_dataset was given {path!r}, which is not the path of a dataset. Give the path or URL of a prepared "
            "folder, a metadataset (.yaml) or a .jsonl file, or a metadataset as a dict."
        )
    if not isinstance(path, Mapping) and not StoragePath.of(path).url.endswith(YAML_SUFFIXES):
        return DatasetLoader(path=path, **kwargs)
    if kwargs:
        raise ConfigError(
            f"load_dataset was given {', '.join(sorted(kwargs))} for a metadataset, whose file has them at each "
            "of its datasets. Write them into the file."
        )
    document = document_from_dict(path) if isinstance(path, Mapping) else read_document(StoragePath.of(path))
    _, version = read_splits(document)
    loader = object.__new__(MetadatasetV2 if version == 2 else Metadataset)
    _MetadatasetLoader.__init__(loader, document)
    return loader


def prepare_metadataset(path: PathLike) -> list[str]:
    """Builds the join indices of a metadataset and of those nested in it, and returns their paths.

    Args:
        path: The .yaml file.

    Raises:
        DatasetError: It is malformed, or its datasets cannot be joined.
        StorageError: A file cannot be read or written.
    """
    return _metadataset(path).prepare()


def traverse_metadataset(path: PathLike, *, split_part: str) -> list[TraversedDatasetReference]:
    """Returns the flattened datasets of a split of a metadataset.

    Args:
        path: The .yaml file.
        split_part: Such as "train".

    Raises:
        ConfigError: There is no such split, or it holds a join.
        DatasetFormatError: It is malformed; the message names file, line and key.
        StorageError: A file cannot be read.
    """
    return _metadataset(path).traverse(split_part=split_part)


def _metadataset(path: PathLike) -> DatasetLoaderInterface:
    loader = load_dataset(path)
    if not isinstance(loader, _MetadatasetLoader):
        raise DatasetFormatError(f"{path} is not a metadataset. Give a file that ends in .yaml.")
    return loader
