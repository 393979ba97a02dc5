"""Reads the YAML and JSON files of a dataset, and checks their form."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Set
from typing import Any

import yaml

from energon_dali.errors import DatasetFormatError
from energon_dali.shards.storage import StoragePath

META = ".nv-meta"
"""Folder of everything that was prepared."""


def parse_document(content: bytes, path: StoragePath, root: StoragePath) -> dict[str, Any]:
    """Returns a YAML or JSON file (by its name) as a dict.

    YAML is read by the safe loader: it makes plain values and runs no code.

    Raises:
        DatasetFormatError: The file cannot be parsed, or is no mapping.
    """
    try:
        text = content.decode("utf-8")
        value = json.loads(text) if path.name.endswith(".json") else yaml.load(text, _Loader)
    except (ValueError, yaml.YAMLError) as error:
        raise DatasetFormatError(
            f"{path} cannot be parsed: {' '.join(str(error).split())}. Correct it, or make it anew with `energon-dali "
            f"prepare {shlex.quote(str(root))}`."
        ) from error
    if not isinstance(value, dict):
        raise DatasetFormatError(
            f"{path} holds {type(value).__name__}, and should hold a mapping (key: value). Correct it, or make it "
            "anew with "
            f"`energon-dali prepare {shlex.quote(str(root))}`."
        )
    return value


class _Loader(yaml.SafeLoader):
    """The safe loader, in C where it is built: a split of 10,000 shards takes seconds otherwise."""


if hasattr(yaml, "CSafeLoader"):
    _Loader = yaml.CSafeLoader  # type: ignore[misc, assignment]


def check_keys(document: Mapping[str, Any], allowed: Set[str], path: StoragePath) -> None:
    """Refuses keys that nobody would read.

    Raises:
        DatasetFormatError: There is a key that is not allowed.
    """
    unknown = sorted(str(key) for key in document if key not in allowed)
    if unknown:
        raise DatasetFormatError(
            f"{path} has {', '.join(unknown)}; allowed are {', '.join(sorted(allowed))}. Correct the name or remove it."
        )
