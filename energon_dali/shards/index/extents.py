"""Where every part of every sample of a shard lies: columns of numbers over one piece of memory."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetFormatError, ShardError

BLOCK = 512
MAX_KEYS_BYTES = (1 << 32) - 1
"""All keys of a shard together: where each begins is counted in 32 bits."""
MAX_SHARD_BYTES = BLOCK << 32
"""Places of contents are counted in blocks of tar, in 32 bits: a shard may have up to 2 TiB."""

COLUMNS = (
    ("part_size", "Q"),
    ("first_part", "I"),
    ("key_start", "I"),
    ("part_block", "I"),
    ("part_width", "I"),
    ("part_height", "I"),
    ("part_name", "H"),
    ("part_format", "B"),
)
"""Columns in the order they are stored, widest first, so that each is aligned; with their type codes."""

_SAMPLE_COLUMNS = frozenset(("first_part", "key_start"))
_ITEM_BYTES = {"Q": 8, "I": 4, "H": 2, "B": 1}


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What a look at the header of a media part has found out."""

    format: str
    """Format of the data, such as "jpeg", and what else a decoder wants to know of it; at most 255 different ones."""
    width: int = 0
    """Width in pixels; 0 if unknown."""
    height: int = 0
    """Height in pixels; 0 if unknown."""


class ShardExtents:
    """The extents of one shard: memory views for single numbers (fast in Python), and numpy views of the same memory.

    Args:
        section: The columns, one behind the other, as `ExtentsBuilder.section` gives them; it is not copied.
        num_samples: Samples in the shard.
        num_parts: Parts in the shard.
        shard_bytes: Size of the tar file in bytes; -1 if unknown.
        part_names: Names that `part_name` numbers.
        formats: Names that `part_format` numbers; the first is "" for unknown.
    """

    __slots__ = (
        "first_part",
        "formats",
        "key_start",
        "keys",
        "num_parts",
        "num_samples",
        "part_block",
        "part_format",
        "part_height",
        "part_name",
        "part_names",
        "part_size",
        "part_width",
        "shard_bytes",
    )

    first_part: memoryview
    """uint32[num_samples + 1]: number of each sample's first part."""
    key_start: memoryview
    """uint32[num_samples + 1]: where each key begins in `keys`."""
    part_block: memoryview
    """uint32[num_parts]: where each content begins in the tar, in blocks of 512 bytes."""
    part_size: memoryview
    """uint64[num_parts]: size of each content in bytes."""
    part_width: memoryview
    """uint32[num_parts]: width in pixels, 0 if unknown."""
    part_height: memoryview
    """uint32[num_parts]: height in pixels, 0 if unknown."""
    part_name: memoryview
    """uint16[num_parts]: number of each part's name in `part_names`."""
    part_format: memoryview
    """uint8[num_parts]: number of each part's format in `formats`."""
    keys: memoryview
    """UTF-8 of all keys, end to end."""

    def __init__(
        self,
        section: bytes | memoryview,
        num_samples: int,
        num_parts: int,
        shard_bytes: int,
        part_names: list[str],
        formats: list[str],
    ) -> None:
        self.num_samples = num_samples
        self.num_parts = num_parts
        self.shard_bytes = shard_bytes
        self.part_names = part_names
        self.formats = formats
        view = memoryview(section)
        position = 0
        for name, code in COLUMNS:  # as `columns_bytes` counts them
            count = num_samples + 1 if name in _SAMPLE_COLUMNS else num_parts
            end = position + count * _ITEM_BYTES[code]
            setattr(self, name, view[position:end].cast(code))  # type: ignore[call-overload]
            position = end
        self.keys = view[position : position + self.key_start[num_samples]]

    def key(self, sample: int) -> str:
        """Returns the key of a sample.

        Raises:
            DatasetFormatError: It is not UTF-8.
        """
        start = self.key_start
        try:
            return str(self.keys[start[sample] : start[sample + 1]], "utf-8")
        except UnicodeDecodeError as error:
            raise DatasetFormatError(
                f"The index has a key of sample {sample} that is not UTF-8 ({error.reason}). Write it again with "
                "`energon-dali prepare PATH`."
            ) from error

    def check(self) -> None:
        """Raises ValueError, which says why, where the numbers contradict each other and cannot be used."""
        first_part, key_start = self.array("first_part"), self.array("key_start")
        if first_part[0] != 0 or first_part[-1] != self.num_parts or (first_part[1:] < first_part[:-1]).any():
            raise ValueError("its samples do not divide its parts")
        if key_start[0] != 0 or key_start[-1] != len(self.keys) or (key_start[1:] < key_start[:-1]).any():
            raise ValueError("its samples do not divide its keys")
        for numbers, names in (("part_name", self.part_names), ("part_format", self.formats)):
            if not all(isinstance(name, str) for name in names):
                raise ValueError(f"a {numbers} is not text")
            "".join(names).encode()  # a UnicodeEncodeError is a ValueError
            if self.num_parts and int(self.array(numbers).max()) >= len(names):
                raise ValueError(f"a {numbers} has a number that stands for no name")
        if not self.num_parts:
            return
        blocks = self.array("part_block")
        falls = blocks[1:] <= blocks[:-1]
        first_block, last_block = int(blocks[0]), int(blocks[-1])
        if falls.any():  # between samples they may
            borders = first_part[1:-1]
            falls[borders[(borders > 0) & (borders < self.num_parts)] - 1] = False
            if falls.any():
                raise ValueError("the parts of a sample are not in order")
            first_block, last_block = int(blocks.min()), int(blocks.max())
        if first_block < 1:  # a header precedes every content
            raise ValueError("a part begins before its header")
        most = self.shard_bytes if self.shard_bytes >= 0 else MAX_SHARD_BYTES
        if most > MAX_SHARD_BYTES or last_block * BLOCK > most or int(self.array("part_size").max()) > most:
            raise ValueError("a part ends after the end of the shard")

    def end_of_parts(self) -> int:
        """Returns the first byte of the shard after all parts."""
        if not self.num_parts:
            return 0
        return int((self.array("part_block").astype(np.uint64) * np.uint64(BLOCK) + self.array("part_size")).max())

    def parts(self, sample: int) -> list[tuple[str, int, int]]:
        """Returns (part name, offset of the content in bytes, size in bytes) of the parts of a sample, in order."""
        return [
            (self.part_names[self.part_name[part]], self.part_block[part] * BLOCK, self.part_size[part])
            for part in range(self.first_part[sample], self.first_part[sample + 1])
        ]

    def array(self, column: str) -> npt.NDArray[Any]:
        """Returns a column as a numpy array: a read-only view, no copy."""
        return np.asarray(getattr(self, column))

    def places_of_keys(self, wanted: set[str]) -> dict[str, int]:
        """Returns the number of each wanted sample that is in this shard, by key."""
        return {key: sample for sample in range(self.num_samples) if (key := self.key(sample)) in wanted}

    def __repr__(self) -> str:
        return f"ShardExtents({self.num_samples} samples, {self.num_parts} parts)"


def columns_bytes(num_samples: int, num_parts: int) -> int:
    """Returns the size in bytes of all columns of a section, without the keys."""
    return sum(
        _ITEM_BYTES[code] * (num_samples + 1 if name in _SAMPLE_COLUMNS else num_parts) for name, code in COLUMNS
    )


class NameTable:
    """Numbers names in the order they come.

    Args:
        limit: How many names there may be.
        what: What they name, for the message.
    """

    def __init__(self, limit: int, what: str, names: list[str] | None = None) -> None:
        self.names: list[str] = list(names or [])
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._limit = limit
        self._what = what

    def number(self, name: str) -> int:
        """Returns the number of a name, which is new or not.

        Raises:
            ShardError: There are too many different names.
        """
        number = self._numbers.get(name)
        if number is None:
            number = len(self.names)
            if number >= self._limit:
                raise ShardError(
                    f"More than {self._limit} different {self._what}, the last one {name!r}. The name of a part is "
                    "what follows the "
                    "first dot of a file name: write samples as KEY.PART with few different PARTs."
                )
            self._numbers[name] = number
            self.names.append(name)
        return number


class ExtentsBuilder:
    """Collects the extents of one shard, about 35 bytes per part and the keys.

    Args:
        shard: Name of the shard, for messages.
    """

    def __init__(self, shard: str) -> None:
        assert sys.byteorder == "little", "the index is little-endian, like the machines this package is built for"
        self.shard = shard
        self.names = NameTable(1 << 16, "part names")
        self.formats = NameTable(1 << 8, "media formats", [""])
        self.columns = {name: array(code) for name, code in COLUMNS}
        self.keys = bytearray()
        self.num_samples = 0

    def add_sample(self, key: str) -> None:
        """Begins a sample.

        Raises:
            ShardError: The key is not valid UTF-8, or all keys together are too long.
        """
        try:
            encoded = key.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self._not_text("sample", key) from error
        if len(self.keys) + len(encoded) > MAX_KEYS_BYTES:
            raise ShardError(
                f"The names of the samples of {self.shard} have more than {MAX_KEYS_BYTES:,} bytes together. Write "
                "smaller shards, or shorter names.",
                self.shard,
            )
        self.columns["first_part"].append(len(self.columns["part_size"]))
        self.columns["key_start"].append(len(self.keys))
        self.keys += encoded
        self.num_samples += 1

    def add_part(self, name: str, content_offset: int, size: int, facts: PartFacts | None = None) -> None:
        """Adds a part to the sample begun last.

        Raises:
            ShardError: The place cannot be stored, or the name is not valid UTF-8.
        """
        block, rest = divmod(content_offset, BLOCK)
        if rest or content_offset >= MAX_SHARD_BYTES:
            raise ShardError(
                f"{self.shard} has a part at byte {content_offset}; parts begin at multiples of {BLOCK} below "
                f"{MAX_SHARD_BYTES}. "
                "Write smaller shards, then run `energon-dali prepare PATH`.",
                self.shard,
            )
        columns = self.columns
        columns["part_name"].append(self._name_number(name))
        columns["part_block"].append(block)
        columns["part_size"].append(size)
        columns["part_format"].append(0 if facts is None else self.formats.number(facts.format))
        columns["part_width"].append(0 if facts is None else facts.width)
        columns["part_height"].append(0 if facts is None else facts.height)

    def _name_number(self, name: str) -> int:
        """Returns the number of a part name.

        Raises:
            ShardError: There are too many different names, or this one is not valid UTF-8.
        """
        known = len(self.names.names)
        number = self.names.number(name)
        if number == known:
            try:
                name.encode("utf-8")
            except UnicodeEncodeError as error:
                raise self._not_text("part", name) from error
        return number

    def _not_text(self, what: str, name: str) -> ShardError:
        return ShardError(
            f"{self.shard} has a {what} whose name {name[:200]!r} is not valid UTF-8. Rename it, then run "
            "`energon-dali prepare PATH`.",
            self.shard,
        )

    def section(self) -> bytes:
        """Returns the columns as they are stored."""
        ends = {"first_part": len(self.columns["part_size"]), "key_start": len(self.keys)}
        pieces = [
            self.columns[name].tobytes() + (array(code, [ends[name]]).tobytes() if name in ends else b"")
            for name, code in COLUMNS
        ]
        return b"".join([*pieces, self.keys])

    def extents(self, shard_bytes: int) -> ShardExtents:
        """Returns what was collected, to be read at once."""
        return ShardExtents(
            self.section(),
            self.num_samples,
            len(self.columns["part_size"]),
            shard_bytes,
            self.names.names,
            self.formats.names,
        )
