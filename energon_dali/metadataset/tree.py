"""Walks over metadatasets, file by file, down to the datasets that are read."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from energon_dali.errors import ConfigError, DatasetFormatError, StorageError
from energon_dali.metadataset.document import Document, Keys, Place, document_of_dict, read_document
from energon_dali.metadataset.reference import LeafReference, ResolvedBlend
from energon_dali.metadataset.schema import check_mapping, unknown_name
from energon_dali.metadataset.subset import Subset
from energon_dali.shards import StoragePath

MAX_LEAVES = 10_000
"""Datasets below one metadataset; files that name each other twice and twice again would never end."""
YAML_SUFFIXES = (".yaml", ".yml")
_FORMS = {"Metadataset": ("megatron.energon", "energon_dali"), "MetadatasetV2": ("megatron.energon", "energon_dali")}

Mode = Literal["none", "weights", "repetitions", "concat"]


@dataclass(frozen=True)
class Context:
    """What the levels above a place say."""

    split_part: str
    """Part of the split, unless a level below names another."""
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    """They win over those below."""
    shuffle_over_epochs_multiplier: int | None = 1
    """Multiplied down."""
    subset: Subset | None = None
    """Share of what lies below."""
    chain: tuple[str, ...] = ()
    """The files that lead here."""


@dataclass(frozen=True)
class Part:
    """What a node of a metadataset stands for: leaves, each with its weight or repetitions inside the node."""

    mode: Mode
    """How the leaves are put together."""
    leaves: tuple[tuple[LeafReference, float], ...]
    """Leaf, and its weight (adding up to 1) or repetitions."""
    place: Place
    """Where the node stands."""


class Tree:
    """One walk; remembers the files that it read.

    Args:
        count_samples: Returns the number of samples of a leaf; asked only for `concat` inside `blend`.
    """

    def __init__(self, count_samples: Callable[[LeafReference], int]) -> None:
        self.count_samples = count_samples
        self._documents: dict[str, Document] = {}
        self._leaves = 0

    def open_path(self, path: StoragePath, context: Context, place: Place | None = None) -> Part:
        """Returns what a path stands for: a metadataset, or a leaf.

        Raises:
            DatasetFormatError: A metadataset cannot be understood.
            ConfigError: A metadataset has no such split.
            StorageError: A file cannot be read.
        """
        here = place or Place(path.url, None, ())
        if not path.url.endswith(YAML_SUFFIXES):
            leaf = LeafReference(
                path.url,
                context.split_part,
                context.subflavors,
                subset=context.subset,
                place=place,
                shuffle_over_epochs_multiplier=context.shuffle_over_epochs_multiplier,
            )
            return Part("none", ((self.counted(leaf, here), 1.0),), here)
        if path.url in context.chain:
            ways = " -> ".join((*context.chain, path.url))
            raise DatasetFormatError(f"{here}: the metadataset contains itself: {ways}. Take it out of one of them.")
        document = self._documents.get(path.url)
        if document is None:
            document = self._documents[path.url] = read_nested(path, place)
        return self.open_document(document, replace(context, chain=(*context.chain, path.url)))

    def open_document(self, document: Document, context: Context) -> Part:
        """Returns what the context's split of a metadataset stands for.

        Raises:
            DatasetFormatError: It cannot be understood.
            ConfigError: It has no such split.
            StorageError: A file below cannot be read.
        """
        from energon_dali.metadataset.node import open_v1_split, open_v2_split

        splits, version = read_splits(document)
        name = context.split_part
        if name not in splits:
            above = f" (reached from {context.chain[0]})" if len(context.chain) > 1 else ""
            raise ConfigError(
                f"{document.place(('splits',))}{above}: {unknown_name('split', name, list(splits))} Give one of them "
                "as split_part, or write the split into the file."
            )
        open_split = open_v2_split if version == 2 else open_v1_split
        return open_split(self, document, ("splits", name), splits[name], context)

    def counted(self, leaf: LeafReference, place: Place) -> LeafReference:
        """Returns the leaf, unless there are too many.

        Raises:
            DatasetFormatError: There are.
        """
        self._leaves += 1
        if self._leaves > MAX_LEAVES:
            raise DatasetFormatError(
                f"{place}: more than {MAX_LEAVES:,} datasets are named here and above. Look for metadatasets that name "
                "each other over and over."
            )
        return leaf


def read_nested(path: StoragePath, place: Place | None) -> Document:
    """Returns a metadataset file; errors name where it was named.

    Raises:
        DatasetFormatError: It cannot be understood.
        StorageError: It cannot be read.
    """
    try:
        return read_document(path)
    except DatasetFormatError as error:
        if place is None:
            raise
        raise DatasetFormatError(f"{place}: {error}") from error
    except StorageError as error:
        raise StorageError(f"{place or path}: {error}") from error


def read_splits(document: Document) -> tuple[Mapping[str, Any], Literal[1, 2]]:
    """Returns (the splits of a metadataset, whether it is of the first or the second form).

    Raises:
        DatasetFormatError: It is neither.
    """
    value = document.value
    check_mapping(value, document, (), ["__class__", "__module__", "path", "splits"])
    name, module = value.get("__class__", "Metadataset"), value.get("__module__", "megatron.energon")
    known = isinstance(name, str) and isinstance(module, str) and name in _FORMS
    if not known or not (module in _FORMS[name] or module.startswith(tuple(f"{m}." for m in _FORMS[name]))):
        raise document.error(
            ("__class__",),
            f"{module}.{name} is no metadataset. Write `__module__: megatron.energon` and `__class__: "
            "MetadatasetV2` (or Metadataset for the first form).",
        )
    splits = value.get("splits")
    if not isinstance(splits, Mapping) or not splits:
        raise document.error(
            ("splits",), f"splits is {splits!r}, and has to name at least one split, such as `splits: {{train: ...}}`."
        )
    return splits, 2 if name == "MetadatasetV2" else 1


def resolve_path(text: str, document: Document, keys: Keys) -> StoragePath:
    """Returns the place of a path in a metadataset: as it is if absolute or a URL, else from the file's folder.

    Raises:
        DatasetFormatError: It is empty, or its scheme is not known.
    """
    if not text:
        raise document.error(keys, "the path is empty. Give the path or URL of a dataset.")
    try:
        if "://" in text or text.startswith(("/", "~")):
            return StoragePath.of(text)
        if document.base.is_local:
            return StoragePath.of(f"{document.base.url}/{text}")
        scheme, _, way = document.base.url.partition("://")
        host, _, folder = way.partition("/")
        return StoragePath.of(f"{scheme}://{host}{posixpath.normpath('/' + f'{folder}/{text}'.lstrip('/'))}")
    except StorageError as error:
        raise document.error(keys, str(error)) from error


def make_context(
    split_part: str,
    subflavors: Mapping[str, Any] | None = None,
    shuffle_over_epochs_multiplier: int | None = 1,
    subset: object = None,
    chain: tuple[str, ...] = (),
) -> Context:
    """Returns what a call says of all datasets.

    Raises:
        ConfigError: The subset cannot be understood.
    """
    chosen = None if subset is None else Subset.of(subset)
    return Context(split_part, dict(subflavors or {}), shuffle_over_epochs_multiplier, chosen, chain)


def resolve(
    path: str | StoragePath | Mapping[str, Any],
    split_part: str,
    *,
    subflavors: Mapping[str, Any] | None = None,
    shuffle_over_epochs_multiplier: int | None = 1,
    subset: object = None,
) -> ResolvedBlend:
    """Returns the datasets that a path stands for.

    Args:
        path: A prepared folder, a .jsonl file, a metadataset (.yaml), or a metadataset as a dict.
        split_part: Part of the split.
        subflavors: Put into every sample; they win over all others.
        shuffle_over_epochs_multiplier: Combined with what the files say.
        subset: Range of all samples, as `Subset.of` takes it.

    Raises:
        DatasetFormatError: A metadataset cannot be understood; the message names file, line and key.
        ConfigError: There is no such split, or the subset cannot be understood.
        StorageError: A file cannot be read.
    """
    from energon_dali.metadataset.leaf_size import count_samples

    context = make_context(split_part, subflavors, shuffle_over_epochs_multiplier, subset)
    tree = Tree(count_samples)
    if isinstance(path, Mapping):
        return blend_of(tree.open_document(document_of_dict(path), context))
    return blend_of(tree.open_path(StoragePath.of(path), context))


def blend_of(part: Part) -> ResolvedBlend:
    """Returns the whole of a walk."""
    if part.mode == "none":
        return ResolvedBlend("none", tuple(leaf for leaf, _ in part.leaves))
    if part.mode == "weights":
        return ResolvedBlend("weights", tuple(replace(leaf, weight=factor) for leaf, factor in part.leaves))
    return ResolvedBlend("repetitions", tuple(replace(leaf, repetitions=factor) for leaf, factor in part.leaves))
