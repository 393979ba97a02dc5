"""What a measure file says about itself: the dataset, what measured it, and its columns.

Layout of `measures-DIGEST.bin`, all little-endian:

    header   magic "EDMEA001" | offset of the description u64 | its size u64 | size of the file u64
             | sha-256 of the description, 32 bytes | zeros to 128 bytes
    columns  signed integers of the smallest width that fits, each column aligned to 64 bytes
    description  JSON, see `Description`

A column has the values of all samples of the dataset, in the order of its shards. Each block of 65,536 values has a
CRC-32 in the description, which is compared when the block is first read.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from energon_dali.plan.measured import BUILT_IN, TOKENS
from energon_dali.shards.documents.content import MAX_DOCUMENT_BYTES, excerpt
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.meta.info import MAX_SHARD_SAMPLES

MAGIC = b"EDMEA001"
HEADER = struct.Struct("<8sQQQ32s64x")
BLOCK = 1 << 16
"""Values that share a checksum."""
ALIGNMENT = 64
MAX_VALUE = (1 << 62) - 1
"""Largest value; the sum of two fits 64 bits."""
MAX_COLUMNS = 64
MAX_REASONS = 100
"""Different reasons for which samples were not measured that are kept."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """One shard of a measured dataset."""

    name: str
    """Its path within the dataset."""
    num_samples: int
    """Number of its samples."""
    layout: str
    """Digest of the keys and sizes of its samples, by which an unchanged shard is recognised."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of values."""

    name: str
    width: int
    """Bytes of each value: 1, 2, 4 or 8."""
    offset: int
    """Where it begins in the file."""
    smallest: int
    """Of the measured samples; 0 if there are none, likewise for the others."""
    largest: int
    total: int
    """Sum over the measured samples."""
    checksums: tuple[int, ...]
    """CRC-32 of each block."""
    digest: str
    """BLAKE2b of all values."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a measure file says about itself."""

    uuid: str
    """Identity of the dataset's index."""
    shards: tuple[ShardFacts, ...]
    """All shards of the dataset, in its order."""
    encoder: str
    """MODULE:CLASS of the task encoder."""
    fingerprint: Mapping[str, str]
    """What the values depend on, by name: sources of hooks, attributes that they use, the front end."""
    columns: tuple[Column, ...]
    num_measured: int
    """Samples that have values; the others have -1 in each column."""
    reasons: tuple[tuple[str, int], ...]
    """Why samples were not measured, and how many, the most frequent first."""

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return sum(shard.num_samples for shard in self.shards)

    def pack(self) -> bytes:
        """Returns it as JSON."""
        return json.dumps(
            {
                "uuid": self.uuid,
                "encoder": self.encoder,
                "fingerprint": dict(self.fingerprint),
                "num_measured": self.num_measured,
                "reasons": [list(reason) for reason in self.reasons],
                "columns": [{name: getattr(one, name) for name in Column.__slots__} for one in self.columns],
                "shards": [[one.name, one.num_samples, one.layout] for one in self.shards],
            }
        ).encode()


def fingerprint_digest(fingerprint: Mapping[str, str]) -> str:
    """Returns a digest of 16 hexadecimal digits, by which measure files are named."""
    text = json.dumps(sorted(fingerprint.items()))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def check_name(name: object) -> str:
    """Returns the name of a value.

    Raises:
        ValueError: It is not an identifier of at most 64 letters, or `TOKENS`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"the name {excerpt(name)}, which is not made of letters, digits and underscores")
    if name == TOKENS:
        raise ValueError(f"the name {TOKENS!r}, which is the sum of text_tokens and vision_tokens: return these")
    return name


def parse_description(content: bytes, data_end: int) -> Description:
    """Returns the description that JSON holds, after checking every value.

    Args:
        content: The JSON.
        data_end: Offset of the first byte after the columns.

    Raises:
        ValueError: It is not JSON, or a value is out of its range; the message says which.
    """
    if len(content) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"{len(content):,} bytes are too many")
    found = _entries(parse_json(content))
    shards = tuple(
        ShardFacts(_text(name), _number(count, MAX_SHARD_SAMPLES), _text(layout))
        for name, count, layout in _list(found, "shards")
    )
    total = sum(shard.num_samples for shard in shards)
    columns = tuple(_column(_entries(one), total, data_end) for one in _list(found, "columns"))
    names = [column.name for column in columns]
    if not set(BUILT_IN) <= set(names) or len(set(names)) != len(names) or len(names) > MAX_COLUMNS:
        raise ValueError(f"its columns are {excerpt(names)}")
    fingerprint = {_text(name): _text(value) for name, value in _entries(found.get("fingerprint")).items()}
    reasons = tuple((_text(reason), _number(count, total)) for reason, count in _list(found, "reasons"))
    measured = _number(found.get("num_measured"), total)
    return Description(
        _text(found.get("uuid")), shards, _text(found.get("encoder")), fingerprint, columns, measured, reasons
    )


def _column(found: Mapping[str, Any], total: int, data_end: int) -> Column:
    width = found.get("width")
    if isinstance(width, bool) or width not in WIDTHS:
        raise ValueError(f"a column has values of {excerpt(width)} bytes")
    offset = _number(found.get("offset"), data_end)
    if offset < HEADER.size or offset % ALIGNMENT or offset + total * width > data_end:
        raise ValueError("a column is outside the file")
    checksums = tuple(_number(one, (1 << 32) - 1) for one in _list(found, "checksums"))
    if len(checksums) != -(-total // BLOCK):
        raise ValueError(f"a column has {len(checksums)} checksums for {total} values")
    smallest, largest = (_number(found.get(name), MAX_VALUE) for name in ("smallest", "largest"))
    values = _number(found.get("total"), MAX_VALUE * max(1, total))
    return Column(
        check_name(found.get("name")), width, offset, smallest, largest, values, checksums, _text(found.get("digest"))
    )


def _entries(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{excerpt(value)} is not a mapping")
    return value


def _list(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} is {excerpt(value)}, and should be a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{excerpt(value)} is not text")
    return value


def _number(value: Any, largest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise ValueError(f"{excerpt(value)} is not a number from 0 to {largest}")
    return value
