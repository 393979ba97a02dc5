"""A sample that is to be packed: its key, and where the bytes of its parts are. The plan stores records as lines."""

from __future__ import annotations

import json
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
