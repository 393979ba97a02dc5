"""The nodes of a metadataset: datasets, joins, and what puts several of them together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from energon_dali.metadataset.document import Document, Keys
from energon_dali.metadataset.inherit import inner_context, inner_subset
from energon_dali.metadataset.join.node import open_join
from energon_dali.metadataset.reference import AuxReference, LeafReference
from energon_dali.metadataset.schema import (
    BlendRecord,
    ConcatRecord,
    EpochizedRecord,
    FileStoreRecord,
    JoinRecord,
    ManyRecord,
    ReferenceRecord,
    RepeatedJoin,
    RepeatedReference,
    V1Record,
    V1Split,
    WeightedJoin,
    WeightedReference,
    check_mapping,
    parse_record,
)
from energon_dali.metadataset.tree import YAML_SUFFIXES, Context, Part, Tree, resolve_path

_NODES = ("path", "join", "blend", "blend_epochized", "concat")
_LEGACY_SUBFLAVOR = "__subflavor__"


def open_v1_split(tree: Tree, document: Document, keys: Keys, value: Any, context: Context) -> Part:
    """Returns what a split of the first form stands for: a blend by weight.

    Raises:
        DatasetFormatError: It cannot be understood.
        ConfigError: A nested metadataset has no such split.
        StorageError: A file cannot be read.
    """
    split = parse_record(V1Split, value, document, keys)
    parts = []
    for number, item in enumerate(split.datasets):
        here = (*keys, "datasets", number)
        record = parse_record(V1Record, item, document, here)
        subflavors = dict(record.subflavors or {})
        if record.subflavor is not None:
            warnings.warn(
                f"{document.place((*here, 'subflavor'))}: subflavor is deprecated: write `subflavors: "
                f"{{{_LEGACY_SUBFLAVOR}: {record.subflavor}}}`, or names of your own.",
                DeprecationWarning,
                stacklevel=2,
            )
            subflavors.setdefault(_LEGACY_SUBFLAVOR, record.subflavor)
        inner = inner_context(context, record, subflavors, document, here)
        parts.append((_dataset(tree, document, here, record, inner, {}), record.weight))
    return _weighted(tree, parts, document, (*keys, "datasets"))


def open_v2_split(tree: Tree, document: Document, keys: Keys, value: Any, context: Context) -> Part:
    """Returns what a split of the second form stands for.

    Raises:
        DatasetFormatError: It cannot be understood.
        ConfigError: A nested metadataset has no such split.
        StorageError: A file cannot be read.
    """
    kind = _kind(value, document, keys, _NODES)
    if kind == "path":
        return _reference(tree, document, keys, parse_record(ReferenceRecord, value, document, keys), context)
    if kind == "join":
        return open_join(tree, document, keys, parse_record(JoinRecord, value, document, keys), context)
    kinds: dict[str, type[ManyRecord]] = {
        "blend": BlendRecord,
        "blend_epochized": EpochizedRecord,
        "concat": ConcatRecord,
    }
    record = parse_record(kinds[kind], value, document, keys)
    inner = replace(context, subset=inner_subset(record.subset, context.subset, document, keys))
    parts = [
        _item(tree, document, (*keys, kind, number), item, kind, inner)
        for number, item in enumerate(getattr(record, kind))
    ]
    if kind == "blend":
        return _weighted(tree, parts, document, (*keys, kind))
    return _repeated(parts, document, (*keys, kind), "concat" if kind == "concat" else "repetitions")


def _kind(value: Any, document: Document, keys: Keys, allowed: tuple[str, ...]) -> str:
    """Returns which kind of node a mapping is."""
    if not isinstance(value, Mapping):
        check_mapping(value, document, keys, list(allowed))
    kinds = [name for name in allowed if name in value]
    if len(kinds) != 1:
        found = " and ".join(kinds) if kinds else f"none of them, but {', '.join(map(str, value)) or 'nothing'}"
        raise document.error(keys, f"one of {', '.join(allowed)} has to stand here, and there is {found}.")
    return kinds[0]


def _item(tree: Tree, document: Document, keys: Keys, value: Any, above: str, context: Context) -> tuple[Part, float]:
    """Returns (what an entry of a blend stands for, its weight or repetitions)."""
    kind = _kind(value, document, keys, ("path", "join"))
    records: dict[str, tuple[type[ReferenceRecord], type[JoinRecord]]] = {
        "blend": (WeightedReference, WeightedJoin),
        "blend_epochized": (RepeatedReference, RepeatedJoin),
        "concat": (ReferenceRecord, JoinRecord),
    }
    of_dataset, of_join = records[above]
    if kind == "path":
        record: Any = parse_record(of_dataset, value, document, keys)
        part = _reference(tree, document, keys, record, context)
    else:
        record = parse_record(of_join, value, document, keys)
        part = open_join(tree, document, keys, record, context)
    return part, float(getattr(record, "weight", getattr(record, "repetitions", 1.0)))


def _reference(tree: Tree, document: Document, keys: Keys, record: ReferenceRecord, context: Context) -> Part:
    inner = inner_context(context, record, record.subflavors or {}, document, keys)
    aux = {name: _aux(value, document, (*keys, "aux", name)) for name, value in (record.aux or {}).items()}
    return _dataset(tree, document, keys, record, inner, aux)


def _dataset(
    tree: Tree,
    document: Document,
    keys: Keys,
    record: V1Record | ReferenceRecord,
    context: Context,
    aux: Mapping[str, AuxReference],
) -> Part:
    """Returns the leaf, or what the nested metadataset, at a path stands for."""
    path = resolve_path(record.path, document, (*keys, "path"))
    place = document.place((*keys, "path"))
    nested = path.url.endswith(YAML_SUFFIXES)
    if nested or path.url.endswith(".jsonl"):
        for name in ("dataset_config", "split_config", *(("aux",) if nested else ())):
            if getattr(record, name, None) is not None:
                what = "a metadataset" if nested else "a JSONL file"
                raise document.error((*keys, name), f"{name} belongs to a prepared folder, and {path} is {what}.")
    part = tree.open_path(path, context, place)
    if nested:
        return part
    ((leaf, factor),) = part.leaves
    leaf = replace(leaf, dataset_config=record.dataset_config, split_config=record.split_config, aux=aux)
    return replace(part, leaves=((leaf, factor),))


def _aux(value: Any, document: Document, keys: Keys) -> AuxReference:
    """Returns an auxiliary store, of any of Energon's forms."""
    if isinstance(value, str):
        text = value
    else:
        record = parse_record(FileStoreRecord, value, document, keys)
        if (record.path is None) == (record.fs_path is None):
            raise document.error(keys, "either path or fs_path has to stand here, and not both.")
        if record.fs_path is not None:
            return AuxReference(resolve_path(record.fs_path, document, (*keys, "fs_path")).url, "filesystem")
        text = record.path or ""
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "filesystem":
        return AuxReference(resolve_path(rest, document, keys).url, "filesystem")
    if separator and "+" in scheme:
        kind, _, inner = scheme.partition("+")
        if kind != "filesystem" or "+" in inner:
            raise document.error(
                keys, f"{text!r} begins with {scheme}://. Known is filesystem+SCHEME://, or SCHEME://."
            )
        return AuxReference(resolve_path(f"{inner}://{rest}", document, keys).url, "filesystem")
    return AuxReference(resolve_path(text, document, keys).url)


def _weighted(tree: Tree, parts: list[tuple[Part, float]], document: Document, keys: Keys) -> Part:
    """Returns the blend by weight of what stands at `keys`."""
    total = sum(weight for _, weight in parts)
    if not parts or total <= 0:
        raise document.error(keys, "there is nothing to draw from. Name at least one dataset with a positive weight.")
    if math.isinf(total):  # huge weights: only their ratios count
        largest = max(weight for _, weight in parts)
        parts = [(part, weight / largest) for part, weight in parts]
        total = sum(weight for _, weight in parts)
    leaves: list[tuple[LeafReference, float]] = []
    for part, weight in parts:
        _refuse(part, "repetitions", "weights", document, keys)
        shares = [factor for _, factor in part.leaves]
        if part.mode == "concat":
            counts = [tree.count_samples(leaf) for leaf, _ in part.leaves]
            shares = [count / max(1, sum(counts)) for count in counts]
        leaves += [(leaf, share * weight / total) for (leaf, _), share in zip(part.leaves, shares, strict=True)]
    return Part("weights", tuple(leaves), document.place(keys))


def _repeated(
    parts: list[tuple[Part, float]], document: Document, keys: Keys, mode: Literal["concat", "repetitions"]
) -> Part:
    """Returns the epochized blend, or the chain, of what stands at `keys`."""
    leaves: list[tuple[LeafReference, float]] = []
    if not parts:
        raise document.error(keys, "no dataset stands here. Name at least one.")
    for part, repetitions in parts:
        _refuse(part, "weights", "repetitions", document, keys)
        leaves += [(leaf, factor * repetitions) for leaf, factor in part.leaves]
        mode = "repetitions" if part.mode == "repetitions" else mode
    return Part(mode, tuple(leaves), document.place(keys))


def _refuse(part: Part, mode: str, here: str, document: Document, keys: Keys) -> None:
    if part.mode == mode:
        raise document.error(
            keys,
            f"datasets are put together by {here} here, and by {mode} at {part.place}, which lies below. The two "
            "cannot be nested: use blend (or the first form) at every level, or blend_epochized and concat.",
        )
