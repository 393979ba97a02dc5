"""A sample that is to be packed: its key, and where the bytes of its parts are. The plan stores records as lines."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from energon_dali.shards.index.tar_scan import TAR_BLOCK_BYTES


class FilePart(NamedTuple):
    """A part that is a whole file."""

    name: str
    """Name of the part. If it ends with a dot or is empty, the suffix follows from the content."""
    path: str
    """Path of the file, relative to the media folder of the source."""
    size: int
    """Size of the file in bytes."""


class RangePart(NamedTuple):
    """A part that is a range of a file: a member of a tar."""

    name: str
    path: str
    """Path of the file, relative to the source."""
    offset: int
    """First byte."""
    size: int
    """Number of bytes."""


class TextPart(NamedTuple):
    """A part whose text is in the record."""

    name: str
    text: str


class JsonPart(NamedTuple):
    """A part whose value is in the record."""

    name: str
    value: Any


class BytesPart(NamedTuple):
    """A part whose content is in memory; only in records that a row of a table was converted to."""

    name: str
    content: bytes


class Row(NamedTuple):
    """A row of a Parquet or Arrow file, which is converted to parts when it is packed."""

    path: str
    """Path of the file, relative to the source."""
    block: int
    """Number of the row group or record batch."""
    row: int
    """Number of the row in it."""
    size: int
    """Estimated size of the sample in bytes."""


Part: TypeAlias = FilePart | RangePart | TextPart | JsonPart | BytesPart
_LETTERS: dict[str, Any] = {"f": FilePart, "r": RangePart, "t": TextPart, "j": JsonPart}
_ROW = "h"
_LETTER_OF = {kind: letter for letter, kind in _LETTERS.items()}


@dataclass(slots=True)
class Record:
    """A sample that is to be packed."""

    key: str
    """Proposed key; the plan makes keys unique."""
    parts: list[Part] = field(default_factory=list)
    row: Row | None = None
    """A row instead of parts."""
    split_part: str | None = None
    """The part of the split that the source declares, such as "train"."""
    group: int = -1
    """Records of a group are read together, and stay together when they are shuffled; -1 if it is in no group."""


class Skipped(NamedTuple):
    """A sample that was left out."""

    what: str
    """What it is in the source: a path, or the number of a line or row."""
    reason: str


class SkipRecord(Exception):  # noqa: N818 - it says what to do, as SkipSample does
    """A sample cannot be packed; the message says why."""


def padded(size: int) -> int:
    """Returns the size of a member in a tar in bytes: its header, its content, and the padding."""
    return TAR_BLOCK_BYTES + -(-size // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES


def json_bytes(value: Any) -> bytes:
    """Returns a value as JSON, the same bytes for the same value.

    Raises:
        ValueError: It has no JSON form.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def size_in_tar(record: Record) -> int:
    """Returns how many bytes a record takes in a shard; an estimate for rows."""
    if record.row is not None:
        return padded(record.row.size)
    total = 0
    for part in record.parts:
        if isinstance(part, FilePart | RangePart):
            total += padded(part.size)
        elif isinstance(part, TextPart):
            total += padded(len(part.text.encode()))
        elif isinstance(part, JsonPart):
            total += padded(len(json_bytes(part.value)))
    return total


def to_line(record: Record) -> bytes:
    """Returns a record as a line of JSON."""
    value: list[Any] = [record.key]
    if record.row is not None:
        value.append([_ROW, *record.row])
    else:
        value += [[_LETTER_OF[type(part)], *part] for part in record.parts]
    # Escaped, because paths that are not UTF-8 have surrogates.
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def from_lines(lines: bytes) -> Iterator[Record]:
    """Yields the records of lines that `to_line` made."""
    for line in lines.splitlines():
        key, *parts = json.loads(line)
        if parts and parts[0][0] == _ROW:
            yield Record(key, row=Row(*parts[0][1:]))
        else:
            yield Record(key, [_LETTERS[letter](*values) for letter, *values in parts])


MAX_KEY_BYTES = 240
"""Longer keys are shortened. With a suffix the name still fits most file systems."""

# A dot would end the key; a backslash and control characters confuse tools that unpack shards.
_REPLACED = re.compile(r"[.\\\x00-\x1f\x7f]")
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_SLASHES = re.compile(r"/{2,}")
_META = re.compile(r"__[^/]*__(?:/|\Z)")


def clean_key(text: str) -> str:
    """Returns a valid key: without dots, control characters and bytes that are not UTF-8, and of limited length.

    Args:
        text: A path without its suffix, or a value of a column.
    """
    key = _NOT_UTF8.sub(lambda found: f"_x{ord(found[0]) & 0xFF:02x}", text)
    key = _SLASHES.sub("/", _REPLACED.sub("_", key)).strip("/ ")
    if _META.match(key):  # readers skip names such as __MACOSX__/
        key = f"k{key}"
    encoded = key.encode()
    if len(encoded) > MAX_KEY_BYTES:
        short = encoded[: MAX_KEY_BYTES - 20].decode(errors="ignore")
        key = f"{short}_{hashlib.sha256(encoded).hexdigest()[:16]}".strip("/ ")
    return key or "sample"


def key_of(value: object) -> str | None:
    """Returns the key that a value of a key column makes; None if it makes none."""
    if value is None or value == "" or isinstance(value, (dict, list)):
        return None
    return clean_key(str(value))


def numbered_key(number: int) -> str:
    """Returns the key of a row without a key column: by its number, so that it never depends on other rows."""
    return f"{number:09d}"


class UniqueKeys:
    """Makes keys unique: the second `cat` becomes `cat_2`. Keeps 8 bytes of each key."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._counts: dict[str, int] = {}

    def add(self, key: str) -> str:
        """Returns the key, with a number if it was there before."""
        number = hash64(key)
        if number not in self._seen:  # two different keys with one hash only cost the second one a suffix
            self._seen.add(number)
            return key
        count = self._counts.get(key, 1)
        while True:
            count += 1
            candidate = f"{key}_{count}"
            number = hash64(candidate)
            if number not in self._seen:
                self._counts[key] = count
                self._seen.add(number)
                return candidate


def hash64(text: str, seed: int | str = "") -> int:
    """Returns a hash of 64 bits, the same on every machine and in every version."""
    data = f"{seed}\0{text}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
