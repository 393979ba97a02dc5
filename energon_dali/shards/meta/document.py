"""Reads the YAML and JSON files of a dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.shards.documents.content import excerpt, excerpt_names, read_content
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.documents.yaml_text import parse_yaml
from energon_dali.shards.storage import StoragePath

META = ".nv-meta"
"""Folder of all files that preparing a dataset writes."""


def read_meta_document(path: StoragePath, root: StoragePath) -> dict[str, Any] | None:
    """Reads a YAML or JSON file, depending on its suffix, into a dict of plain values; None if there is no such file.

    Args:
        path: The file.
        root: Folder of its dataset, for messages.

    Raises:
        DatasetFormatError: The file cannot be parsed, is too large, or is not a mapping.
        StorageError: It cannot be read.
    """
    content = read_content(path)
    if content is None:
        return None
    if path.name.endswith(".json"):
        try:
            value = parse_json(content)
        except ValueError as error:
            raise DatasetFormatError(f"{path} cannot be parsed: {str(error)[:500]}. {_remedy(root)}") from error
    else:
        value = parse_yaml(content, str(path))
    if not isinstance(value, dict):
        raise DatasetFormatError(
            f"{path} holds {type(value).__name__}, and should hold a mapping (key: value). {_remedy(root)}"
        )
    return value


def read_first_document(root: StoragePath, names: Sequence[str]) -> tuple[StoragePath, dict[str, Any]] | None:
    """Returns (path, content) of the first of several files in `.nv-meta` that exists; None if none does.

    Raises:
        DatasetFormatError: It cannot be parsed, is too large, or is not a mapping.
        StorageError: It cannot be read.
    """
    for name in names:
        document = read_meta_document(root / META / name, root)
        if document is not None:
            return root / META / name, document
    return None


def _remedy(root: StoragePath) -> str:
    return f"Correct it, or write it again with `energon-dali prepare {root.quoted}`."


def check_new_name(name: str, suffixes: tuple[str, ...], taken: Collection[str]) -> None:
    """Refuses names for a new document in `.nv-meta` that would end up elsewhere, or replace another file.

    Args:
        name: Such as "split2.yaml".
        suffixes: The endings that it may have.
        taken: Names of other documents.

    Raises:
        ConfigError: It is not a plain name with one of the endings, or is one of `taken`.
    """
    if "/" in name or "\0" in name or name.startswith(".") or not name.endswith(suffixes):
        raise ConfigError(
            f"{excerpt(name)} cannot be written into {META}: give the name of a file without a folder, which ends in "
            f"{' or '.join(suffixes)} and does not begin with a full stop."
        )
    if name in taken:
        raise ConfigError(f"{name!r} is the name of another file in {META}: give a different one.")


def check_keys(document: Mapping[str, Any], allowed: Set[str], path: StoragePath) -> None:
    """Rejects unknown keys.

    Raises:
        DatasetFormatError: There is a key that is not allowed.
    """
    unknown = sorted(key for key in document if key not in allowed)
    if unknown:
        raise DatasetFormatError(
            f"{path} has {excerpt_names(unknown)}; allowed are {', '.join(sorted(allowed))}. Correct the name or "
            "remove it."
        )
