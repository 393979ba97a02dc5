"""A join as a metadataset declares it: its datasets, and the joiner that makes one sample of theirs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from energon_dali import samples
from energon_dali.errors import DatasetFormatError, UntrustedCodeError
from energon_dali.metadataset.context import Context
from energon_dali.metadataset.document import YAML_SUFFIXES, Node
from energon_dali.metadataset.reference import JoinColumn, JoinerReference, JoinReference, SourceReference
from energon_dali.metadataset.schema import JoinedRecord, JoinRecord, parse_record
from energon_dali.shards import StoragePath
from energon_dali.shards.meta.dataset_config import FOREIGN_MODULES, SAMPLE_TYPES

_FORM = (
    "Write `joiner: {__module__: megatron.energon, __class__: CaptioningSample}` for a Sample class, or `joiner: "
    "{__module__: my_module, __function__: my_function}`."
)


def read_join(node: Node, record: JoinRecord, context: Context) -> SourceReference:
    """Returns the source of a join.

    Args:
        node: The mapping that has the key `join`.
        record: The mapping, checked.
        context: The options that hold for the datasets of the join.

    Raises:
        DatasetFormatError: The join is malformed.
    """
    for name in ("dataset_config", "split_config"):
        if getattr(record, name) is not None:
            raise node.at(name).error(f"{name} belongs to the datasets of a join. Write it at each of them.")
    join = node.at("join")
    keys = list(record.join) if isinstance(record.join, dict) else range(len(record.join))
    columns = tuple(_column(join.at(key), context) for key in keys)
    if not columns:
        raise join.error("no dataset is named here. Name the primary one and those joined to it.")
    if columns[0].nonmatch != "error":
        raise join.at(keys[0], "nonmatch").error(
            "the first dataset is the primary one, whose samples are matched. Leave nonmatch out, or write error."
        )
    file = node.document.file
    if file == "dict":
        raise join.error("a join needs an index next to its file. Write the metadataset to a file.")
    joiner = _read_joiner(node.at("joiner"))
    return SourceReference(
        columns[0].path,
        context.split_part,
        context.subflavors,
        subset=context.subset,
        join=JoinReference(columns, joiner, StoragePath(f"{file}.cache")),
        location=join.location,
        shuffle_over_epochs_multiplier=context.shuffle_over_epochs_multiplier,
    )


def _column(node: Node, context: Context) -> JoinColumn:
    record = parse_record(JoinedRecord, node)
    path = node.at("path").resolve_path(record.path)
    if path.url.endswith((*YAML_SUFFIXES, ".jsonl")):
        raise node.at("path").error(f"{path} cannot be joined: only prepared folders of tar shards can.")
    for name in ("aux", "subset"):
        if getattr(record, name) is not None:
            raise node.at(name).error(f"{name} is not allowed inside a join.")
    key = node.keys[-1]
    return JoinColumn(
        path=path.url,
        split_part=record.split_part or context.split_part,
        nonmatch=record.nonmatch,
        name=key if isinstance(key, str) else None,
        subflavors={**(record.subflavors or {}), **context.subflavors},
        dataset_config=record.dataset_config,
        split_config=record.split_config,
    )


def _read_joiner(node: Node) -> JoinerReference:
    """Returns the joiner that a metadataset names; imports nothing.

    Args:
        node: A mapping with `__class__` or `__function__`; in a program's dict also the class or function itself.
    """
    value = node.value
    if callable(value):
        name = str(getattr(value, "__name__", type(value).__name__))
        return JoinerReference(name, is_function=not isinstance(value, type), given=value)
    names = value if isinstance(value, Mapping) else {}
    kinds = [kind for kind in ("__class__", "__function__") if kind in names]
    text = all(isinstance(part, str) for part in names.values())
    if len(kinds) != 1 or not text or set(names) - {"__module__", kinds[0]}:
        raise node.error(f"{value!r} is not a joiner. {_FORM}")
    return JoinerReference(names[kinds[0]], names.get("__module__"), kinds[0] == "__function__")


def load_joiner(reference: JoinerReference, *, allow_imports: bool) -> Callable[..., Any]:
    """Returns the function that makes one sample of the joined ones.

    Args:
        reference: The joiner that the metadataset names.
        allow_imports: Import classes and functions of other packages.

    Raises:
        UntrustedCodeError: It is of another package, and the user did not allow that.
        DatasetFormatError: It cannot be imported, or is not a Sample class.
    """
    found = reference.given if reference.given is not None else _find(reference, allow_imports)
    if reference.is_function:
        if callable(found):
            return found
    else:
        joiner = getattr(found, "from_joined", None)
        if isinstance(found, type) and callable(joiner):
            return joiner  # type: ignore[no-any-return]
    raise DatasetFormatError(
        f"the joiner {reference.module}.{reference.name} is {found!r}, which is not a "
        f"{'function' if reference.is_function else 'Sample class with from_joined'}. {_FORM}"
    )


def _find(reference: JoinerReference, allow_imports: bool) -> Any:
    module, name = reference.module or FOREIGN_MODULES[0], reference.name
    joinable = SAMPLE_TYPES - {"CrudeSample"}
    ours = module in FOREIGN_MODULES or module.startswith("megatron.energon.")
    if ours and not reference.is_function and name in joinable:
        return getattr(samples, name)
    if not allow_imports:
        raise UntrustedCodeError(
            f"the joiner {module}.{name} is none of {', '.join(sorted(joinable))}. Importing it runs "
            "code that the file chose: look at it, then pass allow_imports=True."
        )
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise DatasetFormatError(
            f"the joiner {module}.{name} cannot be imported ({error}). Install or correct it. {_FORM}"
        ) from error
    return found
