"""A join in a metadataset: datasets whose samples with equal keys become one sample."""

from __future__ import annotations

from typing import Any

from energon_dali.metadataset.document import Document, Keys
from energon_dali.metadataset.inherit import inner_context
from energon_dali.metadataset.join.joiner import read_joiner
from energon_dali.metadataset.reference import JoinColumn, JoinReference, LeafReference
from energon_dali.metadataset.schema import JoinedRecord, JoinRecord, parse_record
from energon_dali.metadataset.tree import YAML_SUFFIXES, Context, Part, Tree, resolve_path
from energon_dali.shards import StoragePath


def open_join(tree: Tree, document: Document, keys: Keys, record: JoinRecord, context: Context) -> Part:
    """Returns the leaf that joined datasets are.

    Args:
        tree: The walk.
        document: The metadataset.
        keys: The way to the join.
        record: The join.
        context: What the levels above say.

    Raises:
        DatasetFormatError: It cannot be understood.
    """
    for name in ("dataset_config", "split_config"):
        if getattr(record, name) is not None:
            raise document.error((*keys, name), f"{name} belongs to the datasets of a join. Write it at each of them.")
    inner = inner_context(context, record, record.subflavors or {}, document, keys)
    items = record.join.items() if isinstance(record.join, dict) else enumerate(record.join)
    columns = tuple(_column(document, (*keys, "join", key), value, inner) for key, value in items)
    if not columns:
        raise document.error((*keys, "join"), "no dataset stands here. Name the primary one and those joined to it.")
    if columns[0].nonmatch != "error":
        raise document.error(
            (*keys, "join", next(iter(record.join)) if isinstance(record.join, dict) else 0, "nonmatch"),
            "the first dataset is the primary one, whose samples are matched. Leave nonmatch out, or write error.",
        )
    if document.file == "dict":
        raise document.error((*keys, "join"), "a join needs an index beside its file. Write the metadataset to a file.")
    joiner = read_joiner(record.joiner, document, (*keys, "joiner"))
    joined = JoinReference(columns, joiner, StoragePath(f"{document.file}.cache"))
    place = document.place((*keys, "join"))
    leaf = LeafReference(
        columns[0].path,
        inner.split_part,
        inner.subflavors,
        subset=inner.subset,
        join=joined,
        place=place,
        shuffle_over_epochs_multiplier=inner.shuffle_over_epochs_multiplier,
    )
    return Part("none", ((tree.counted(leaf, place), 1.0),), place)


def _column(document: Document, keys: Keys, value: Any, context: Context) -> JoinColumn:
    record = parse_record(JoinedRecord, value, document, keys)
    path = resolve_path(record.path, document, (*keys, "path"))
    if path.url.endswith((*YAML_SUFFIXES, ".jsonl")):
        raise document.error((*keys, "path"), f"{path} cannot be joined: only prepared folders of tar shards can.")
    for name in ("aux", "subset"):
        if getattr(record, name) is not None:
            raise document.error((*keys, name), f"{name} cannot stand inside a join.")
    key = keys[-1]
    return JoinColumn(
        path=path.url,
        split_part=record.split_part or context.split_part,
        nonmatch=record.nonmatch,
        name=key if isinstance(key, str) else None,
        subflavors={**(record.subflavors or {}), **context.subflavors},
        dataset_config=record.dataset_config,
        split_config=record.split_config,
    )
