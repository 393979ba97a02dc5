"""Reads a metadataset file into plain values, and remembers the line of each of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from energon_dali.errors import DatasetFormatError
from energon_dali.shards import StoragePath
from energon_dali.shards.documents.content import read_content
from energon_dali.shards.documents.yaml_text import Keys, parse_yaml

__all__ = ["Document", "Keys", "Place", "document_of_dict", "read_document"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a metadataset."""

    file: str
    """Path or URL of the file; "dict" where none was read."""
    line: int | None
    """Line in the file, from 1."""
    keys: Keys
    """Way to the value."""

    def __str__(self) -> str:
        steps = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys).lstrip(".")
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file}{line}" + (f" ({steps})" if steps else "")


@dataclass(frozen=True)
class Document:
    """A metadataset as it was written: plain values, and the lines where they stand."""

    file: str
    """Path or URL of the file, for messages; "dict" where the program gave a dict."""
    base: StoragePath
    """Folder that relative paths start from."""
    value: Any
    """Dicts, lists, text, numbers, bools and None."""
    lines: Mapping[Keys, int] = field(default_factory=dict, repr=False)
    """Line of every value, from 1."""

    def place(self, keys: Keys) -> Place:
        """Returns where a value stands; the line is the nearest one known."""
        for length in range(len(keys), -1, -1):
            if keys[:length] in self.lines:
                return Place(self.file, self.lines[keys[:length]], keys)
        return Place(self.file, None, keys)

    def error(self, keys: Keys, text: str) -> DatasetFormatError:
        """Returns the error for something wrong at a place."""
        return DatasetFormatError(f"{self.place(keys)}: {text}")


def document_of_dict(value: Mapping[str, Any], base: StoragePath | None = None) -> Document:
    """Returns a metadataset that a program made as a dict.

    Args:
        value: What a file would hold.
        base: Folder that relative paths start from; None is the working directory.
    """
    return Document("dict", base or StoragePath.of("."), _plain(value))


def _plain(value: Any) -> Any:
    """Returns a value of the program's with dicts, lists and text in place of their kin."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, StoragePath):
        return value.url
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def read_document(path: StoragePath) -> Document:
    """Returns a metadataset file as plain values.

    What its scalars mean is told at `parse_yaml`. Nothing of the file is run.

    Raises:
        DatasetFormatError: The file is missing, is not YAML, uses a key twice or a tag, or is too deep or too large.
        StorageError: It cannot be read.
    """
    content = read_content(path)
    if content is None:
        raise DatasetFormatError(f"{path} is missing. Give the path of a metadataset, a file that ends in .yaml.")
    base = StoragePath(path.url.rpartition("/")[0] or "/")
    lines: dict[Keys, int] = {}
    return Document(path.url, base, parse_yaml(content, path.url, lines), lines)
