"""Files that name samples by their keys: plain text or JSON lines, one sample per line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.shards.documents.content import excerpt, read_content
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.storage import StoragePath

TEXT_SUFFIX = ".txt"
LINES_SUFFIX = ".jsonl"
MAX_SUBSET_BYTES = 1 << 30
"""Largest file that names samples."""
MAX_SUBSET_SAMPLES = 20_000_000
"""Most lines of such a file."""
MAX_KEY_BYTES = 1 << 16
"""Longest line of such a file."""
_FORM = (
    f"Give a file that ends in {TEXT_SUFFIX}, with a key per line, or in {LINES_SUFFIX}, with a JSON object per line, "
    'such as {"key": "000123"} or {"shard": "shard_000.tar", "key": "000123"}.'
)
_MAX_DEPTH = 8
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class SampleName:
    """How a file names a sample."""

    key: str
    """Its key."""
    shard: str = ""
    """Path of its shard within the dataset; "" if the key alone names it."""

    def __str__(self) -> str:
        return f"{self.key} of {self.shard}" if self.shard else self.key


def check_subset_path(path: StoragePath) -> StoragePath:
    """Returns the path of a file that names samples.

    Raises:
        ConfigError: Its name has another ending: a document cannot make the loader read just any file.
    """
    if not path.url.endswith((TEXT_SUFFIX, LINES_SUFFIX)):
        raise ConfigError(f"{path} does not name samples. {_FORM}")
    return path


def read_subset_file(path: StoragePath) -> list[SampleName]:
    """Returns the samples that a file names, in its order; a sample that it names twice is returned once.

    Args:
        path: The file. Blank lines are left out. Objects in JSON lines may have other fields, which mean nothing here.

    Raises:
        ConfigError: Its name has another ending, or there is no such file.
        DatasetFormatError: It is too large, or a line is malformed; the message names the line.
        StorageError: It cannot be read.
    """
    check_subset_path(path)
    content = read_content(path, MAX_SUBSET_BYTES)
    if content is None:
        raise ConfigError(f"{path} is missing. {_FORM}")
    return parse_subset(content, path.url)


def parse_subset(content: bytes, name: str) -> list[SampleName]:
    """Returns the samples that the content of a file names; see `read_subset_file`.

    Args:
        content: The content.
        name: Path of the file, whose ending says which form it has.

    Raises:
        ConfigError: Its name has another ending.
        DatasetFormatError: There are too many lines, or one is malformed.
    """
    check_subset_path(StoragePath(name))
    is_text = name.endswith(TEXT_SUFFIX)
    num_lines = content.count(b"\n") + 1
    if num_lines > MAX_SUBSET_SAMPLES:
        raise DatasetFormatError(
            f"{name} has {num_lines:,} lines, and may have {MAX_SUBSET_SAMPLES:,}. Choose that many samples by "
            "a condition on measures, or as a split part."
        )
    found: dict[SampleName, None] = {}
    lines = content.removeprefix(_BYTE_ORDER_MARK.encode()).split(b"\n")
    for number, line in enumerate(lines, 1):
        line = line.rstrip(b"\r")
        if not line.strip():
            continue
        if len(line) > MAX_KEY_BYTES:
            raise DatasetFormatError(f"{name}:{number}: the line has {len(line):,} bytes, which is not a key. {_FORM}")
        try:
            found[SampleName(line.decode()) if is_text else _parsed(line)] = None
        except ValueError as error:
            raise DatasetFormatError(f"{name}:{number}: {excerpt(line)} names no sample: {error}. {_FORM}") from error
    return list(found)


def _parsed(line: bytes) -> SampleName:
    """Returns the sample that a line of JSON names.

    Raises:
        ValueError: It names none.
    """
    value = parse_json(line, max_depth=_MAX_DEPTH, any_number=True)
    if isinstance(value, str):
        value = {"key": value}
    if not isinstance(value, dict):
        raise ValueError("it is neither an object nor text")
    key, shard = value.get("key"), value.get("shard", "")
    if not isinstance(key, str) or not isinstance(shard, str):
        raise ValueError("`key` and `shard` have to be text" if "key" in value else "it has no `key`")
    return SampleName(key, shard)


def subset_lines(samples: Iterable[SampleName]) -> str:
    """Returns the content of a file in JSON lines that names samples.

    Args:
        samples: Names of the samples.
    """
    return "".join(
        json.dumps({**({"shard": one.shard} if one.shard else {}), "key": one.key}, ensure_ascii=False) + "\n"
        for one in samples
    )


def text_lines(samples: Iterable[SampleName]) -> str:
    """Returns the content of a file of plain text that names samples by their keys alone.

    Args:
        samples: Names of the samples.

    Raises:
        ConfigError: Plain text cannot hold a key: it would name another sample, or none.
    """
    keys = [one.key for one in samples]
    for key in keys:
        if "\n" in key or key.endswith("\r") or key.startswith(_BYTE_ORDER_MARK) or not key.strip():
            raise ConfigError(
                f"The key {excerpt(key)} cannot be a line of plain text, of which a line break or a blank line has "
                f"another meaning. Export JSON lines ({LINES_SUFFIX}), which hold any key."
            )
    return "".join(f"{key}\n" for key in keys)
