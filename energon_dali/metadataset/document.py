"""Reads a metadataset file into plain values, and remembers on which line each of them stands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from energon_dali.errors import DatasetFormatError
from energon_dali.shards import StoragePath

MAX_DEPTH = 64
"""Levels of nesting in one file."""
MAX_VALUES = 1_000_000
"""Values in one file, each alias counted as often as it is used."""

Keys = tuple[str | int, ...]
"""The way to a value: names of a mapping and places in a list."""

_PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{name}" for name in ("bool", "float", "int", "map", "null", "seq", "str"))


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

    Plain scalars mean what they mean to Energon: null and ~ are None; true, yes, false and no (in any case) are bools;
    decimal numbers are numbers; everything else (on, off, dates, 0x1f, 1:30) is text. Aliases stand for what they
    name. Nothing of the file is run.

    Raises:
        DatasetFormatError: The file is missing, is no YAML, uses a key twice or a tag, or is too deep or too large.
        StorageError: It cannot be read.
    """
    content = path.read_if_there()
    if content is None:
        raise DatasetFormatError(f"{path} is missing. Give the path of a metadataset, a file that ends in .yaml.")
    base = StoragePath(path.url.rpartition("/")[0] or "/")
    builder = _Builder(path.url)
    try:
        # Events, not nodes: composing recurses in C, where a deeply nested file would overflow the stack.
        for event in yaml.parse(content.decode("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            builder.take(event)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DatasetFormatError(f"{path} cannot be parsed: {' '.join(str(error).split())}. Correct it.") from error
    return Document(path.url, base, builder.result, builder.lines)


@dataclass
class _Open:
    """A mapping or list that is being read."""

    value: dict[str, Any] | list[Any]
    keys: Keys
    anchor: str | None
    first: int
    key: str | None = None
    key_line: int = 0


class _Builder:
    """Makes plain values of YAML events."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.result: Any = None
        self.lines: dict[Keys, int] = {}
        self.values = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._documents = 0

    def take(self, event: Any) -> None:
        """Goes on by one event.

        Raises:
            DatasetFormatError: It cannot be accepted.
        """
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._error(line, "a second document begins here. Write one document per file, without ---")
        elif isinstance(event, yaml.ScalarEvent):
            if self._awaits_key():
                self._take_key(event.value, line)
            else:
                self._check_tag(event.tag, line)
                self._put(_scalar(event), line, event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._take_alias(str(event.anchor), line)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._check_tag(event.tag, line)
            self._begin({} if isinstance(event, yaml.MappingStartEvent) else [], event.anchor, line)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            done = self._open.pop()
            if done.anchor is not None:
                self._anchors[done.anchor] = (done.value, self.values - done.first)

    def _awaits_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._open[-1].key is None

    def _take_key(self, key: str, line: int) -> None:
        inner = self._open[-1]
        if key in inner.value:
            raise self._error(line, f"the key {key!r} stands here a second time. Keep one of the two")
        inner.key, inner.key_line = key, line

    def _take_alias(self, name: str, line: int) -> None:
        if name not in self._anchors:
            raise self._error(line, f"*{name} stands for nothing, or for what it is a part of. Write the value out")
        if self._awaits_key():
            raise self._error(line, f"*{name} cannot be a key. Write the key out")
        value, size = self._anchors[name]
        self.values += size
        self._put(value, line, None)

    def _begin(self, value: dict[str, Any] | list[Any], anchor: str | None, line: int) -> None:
        if self._awaits_key():
            raise self._error(line, "a key is no text. Write text, such as `name: value`")
        if len(self._open) >= MAX_DEPTH:
            raise self._error(line, f"values are nested in more than {MAX_DEPTH} levels. Use several files")
        self._open.append(_Open(value, self._put(value, line, None), anchor, self.values))

    def _put(self, value: Any, line: int, anchor: str | None) -> Keys:
        """Puts a value where it belongs, and returns the way to it."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise self._error(
                line, f"the file holds more than {MAX_VALUES:,} values, aliases counted. Use several files"
            )
        if anchor is not None:
            self._anchors[anchor] = (value, 1)
        if not self._open:
            self.result = value
            keys: Keys = ()
        else:
            outer = self._open[-1]
            if isinstance(outer.value, dict):
                assert outer.key is not None, "a key comes before its value"
                keys = (*outer.keys, outer.key)
                outer.value[outer.key] = value
                outer.key = None
                line = outer.key_line  # a list or mapping may begin on a later line than its name
            else:
                keys = (*outer.keys, len(outer.value))
                outer.value.append(value)
        self.lines[keys] = line
        return keys

    def _check_tag(self, tag: str | None, line: int) -> None:
        if tag not in (None, "!", *_PLAIN_TAGS):
            raise self._error(line, f"the tag {tag} asks for more than plain values. Leave it out")

    def _error(self, line: int, text: str) -> DatasetFormatError:
        return DatasetFormatError(f"{self.file}:{line}: {text}.")


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.style not in (None, "") or event.tag in ("!", "tag:yaml.org,2002:str"):
        return text
    word = text.lower()
    if word in ("", "~", "null"):
        return None
    if word in ("true", "yes", "false", "no"):
        return word in ("true", "yes")
    try:
        return float(text) if "." in text or "e" in word else int(text)
    except ValueError:
        return text
