"""Reads a metadataset file into plain values, and remembers the line of each of them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from energon_dali.errors import ConfigError, DatasetFormatError, StorageError, UntrustedCodeError
from energon_dali.shards import StoragePath
from energon_dali.shards.documents.content import read_content
from energon_dali.shards.documents.yaml_text import Keys, parse_yaml

YAML_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Location:
    """The position of a value in a metadataset."""

    file: str
    """Path or URL of the file; "dict" if no file was read."""
    line: int | None
    """Line in the file, from 1."""
    keys: Keys
    """Keys and list indices that lead to the value."""

    def __str__(self) -> str:
        steps = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys).lstrip(".")
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file}{line}" + (f" ({steps})" if steps else "")


@contextmanager
def located(location: Location | None) -> Iterator[None]:
    """Adds a location to errors that have none.

    Args:
        location: Where the metadataset names what is being opened; None if the user gave its path.

    Raises:
        ConfigError: One was raised inside.
        DatasetFormatError: One was raised inside.
        UntrustedCodeError: One was raised inside.
        StorageError: One was raised inside.
    """
    try:
        yield
    except (ConfigError, DatasetFormatError, UntrustedCodeError, StorageError) as error:
        error.location = error.location or location
        raise


@dataclass(frozen=True)
class Document:
    """A metadataset as it was written: plain values and their lines."""

    file: str
    """Path or URL of the file, for messages; "dict" if the program passed a dict."""
    base: StoragePath
    """Folder that relative paths start from."""
    value: Any
    """Dicts, lists, text, numbers, bools and None."""
    lines: Mapping[Keys, int] = field(default_factory=dict, repr=False)
    """Line of every value, from 1."""

    @property
    def root(self) -> Node:
        """The whole document."""
        return Node(self, (), self.value)


@dataclass(frozen=True, slots=True)
class Node:
    """A value in a document, and how to get there."""

    document: Document
    """The document that holds the value."""
    keys: Keys
    """Keys and list indices that lead to the value."""
    value: Any
    """The value; None if the keys lead nowhere."""

    def at(self, *keys: str | int) -> Node:
        """Returns the node that further keys lead to."""
        value = self.value
        for key in keys:
            known = value if isinstance(value, Mapping) else range(len(value)) if isinstance(value, list) else ()
            value = value[key] if key in known else None
        return Node(self.document, (*self.keys, *keys), value)

    @property
    def location(self) -> Location:
        """Where the value is; its line is that of the nearest value above whose line is known."""
        lines = self.document.lines
        known = (self.keys[:length] for length in range(len(self.keys), -1, -1) if self.keys[:length] in lines)
        nearest = next(known, None)
        return Location(self.document.file, None if nearest is None else lines[nearest], self.keys)

    def error(self, text: str) -> DatasetFormatError:
        """Returns the error for a mistake at this node."""
        error = DatasetFormatError(text)
        error.location = self.location
        return error

    def resolve_path(self, text: str) -> StoragePath:
        """Returns a path that is written at this node: unchanged if it is absolute or a URL, else relative to the file.

        Raises:
            DatasetFormatError: It is empty, or its scheme is not known.
        """
        if not text:
            raise self.error("the path is empty. Give the path or URL of a dataset.")
        base = self.document.base
        try:
            if "://" in text or text.startswith(("/", "~")):
                return StoragePath.of(text)
            if base.is_local:
                return StoragePath.of(f"{base.url}/{text}")
            scheme, _, rest = base.url.partition("://")
            host, _, folder = rest.partition("/")
            return StoragePath.of(f"{scheme}://{host}{posixpath.normpath('/' + f'{folder}/{text}'.lstrip('/'))}")
        except StorageError as error:
            raise self.error(str(error)) from error


def document_from_dict(value: Mapping[str, Any], base: StoragePath | None = None) -> Document:
    """Returns a metadataset that a program passed as a dict.

    Args:
        value: The content that a file would have.
        base: Folder that relative paths start from; None is the working directory.
    """
    return Document("dict", base or StoragePath.of("."), _plain(value))


def _plain(value: Any) -> Any:
    """Returns a value with its mappings, sequences and paths as dicts, lists and text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, StoragePath):
        return value.url
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def read_document(path: StoragePath) -> Document:
    """Returns a metadataset file as plain values; `parse_yaml` says how scalars are read. Runs no code of the file.

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
