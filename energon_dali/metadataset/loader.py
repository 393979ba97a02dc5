"""What a program holds of a metadataset: its datasets, flattened, and the preparation of its joins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.metadataset.document import Document, document_of_dict, read_document
from energon_dali.metadataset.interface import DatasetLoader, DatasetLoaderInterface, PathLike
from energon_dali.metadataset.join.prepare import prepare_joins
from energon_dali.metadataset.leaf_size import count_samples
from energon_dali.metadataset.reference import LeafReference, ResolvedBlend, TraversedDatasetReference
from energon_dali.metadataset.tree import YAML_SUFFIXES, Tree, blend_of, make_context, read_splits
from energon_dali.shards import StoragePath


class _MetadatasetLoader(DatasetLoaderInterface):
    """A metadataset of either form."""

    def __init__(self, document: Document) -> None:
        self.document = document
        read_splits(document)

    @property
    def path(self) -> str:
        """Path or URL of the file; "dict" where there is none."""
        return self.document.file

    @property
    def split_parts(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(read_splits(self.document)[0])

    def resolve(
        self,
        split_part: str,
        *,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: object = None,
    ) -> ResolvedBlend:
        context = make_context(
            split_part, subflavors, shuffle_over_epochs_multiplier, subset, chain=(self.document.file,)
        )
        return blend_of(Tree(count_samples).open_document(self.document, context))

    def prepare(self, split_part: str | None = None) -> list[str]:
        def joins_of(part: str) -> list[LeafReference]:
            # Shares of a concat want counts, which a join has only once it is prepared.
            context = make_context(part, chain=(self.document.file,))
            leaves = Tree(lambda leaf: 1).open_document(self.document, context).leaves
            return [leaf for leaf, _ in leaves if leaf.join is not None]

        parts = self.split_parts if split_part is None else (split_part,)
        return prepare_joins([leaf for part in parts for leaf in joins_of(part)], self.document, split_part is None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.document.file}, splits={list(self.split_parts)})"


class Metadataset(_MetadatasetLoader):
    """A metadataset of Energon's first form: per split a list of `datasets` with weights.

    Args:
        path: The file that it stands for; relative paths start from its folder.
        splits: What stands under `splits` in such a file.

    Raises:
        DatasetFormatError: It cannot be understood.
    """

    @explain_call
    def __init__(self, path: PathLike, splits: Mapping[str, Any]) -> None:
        super().__init__(_document_of(path, splits, "Metadataset"))


class MetadatasetV2(_MetadatasetLoader):
    """A metadataset of Energon's second form: per split a dataset, join, blend, blend_epochized or concat.

    Args:
        path: The file that it stands for; relative paths start from its folder.
        splits: What stands under `splits` in such a file.

    Raises:
        DatasetFormatError: It cannot be understood.
    """

    @explain_call
    def __init__(self, *, path: PathLike, splits: Mapping[str, Any]) -> None:
        super().__init__(_document_of(path, splits, "MetadatasetV2"))


def _document_of(path: PathLike, splits: Mapping[str, Any], form: str) -> Document:
    file = StoragePath.of(path)
    base = StoragePath(file.url.rpartition("/")[0] or "/")
    document = document_of_dict({"__module__": "megatron.energon", "__class__": form, "splits": splits}, base)
    return Document(file.url, base, document.value)


def load_dataset(path: PathLike | Mapping[str, Any], **kwargs: Any) -> DatasetLoaderInterface:
    """Returns the loader of a path.

    Args:
        path: A metadataset (.yaml), or one as a dict; a prepared folder; a .jsonl file.
        **kwargs: Arguments of `DatasetLoader`, for a folder or a .jsonl file.

    Raises:
        DatasetFormatError: A metadataset cannot be understood; the message names file, line and key.
        ConfigError: The path is none, or arguments were given that a metadataset does not take.
        StorageError: A file cannot be read.
    """
    if not isinstance(path, (str, os.PathLike, StoragePath, Mapping)) or path == "":
        raise ConfigError(
            f"load_dataset was given {path!r}, which is no path of a dataset. Give the path or URL of a prepared "
            "folder, a metadataset (.yaml) or a .jsonl file, or a metadataset as a dict."
        )
    if not isinstance(path, Mapping) and not StoragePath.of(path).url.endswith(YAML_SUFFIXES):
        return DatasetLoader(path=path, **kwargs)
    if kwargs:
        raise ConfigError(
            f"load_dataset was given {', '.join(sorted(kwargs))} for a metadataset, which says that at each of its "
            "datasets. Write it into the file."
        )
    document = document_of_dict(path) if isinstance(path, Mapping) else read_document(StoragePath.of(path))
    _, version = read_splits(document)
    loader = object.__new__(MetadatasetV2 if version == 2 else Metadataset)
    _MetadatasetLoader.__init__(loader, document)
    return loader


def prepare_metadataset(path: PathLike) -> list[str]:
    """Builds the join indices of a metadataset, and of those that it names; returns their paths.

    Args:
        path: The .yaml file.

    Raises:
        DatasetError: It cannot be understood, or its datasets cannot be joined.
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
        DatasetFormatError: It cannot be understood; the message names file, line and key.
        StorageError: A file cannot be read.
    """
    return _metadataset(path).traverse(split_part=split_part)


def _metadataset(path: PathLike) -> DatasetLoaderInterface:
    loader = load_dataset(path)
    if not isinstance(loader, _MetadatasetLoader):
        raise DatasetFormatError(f"{path} is no metadataset. Give a file that ends in .yaml.")
    return loader
