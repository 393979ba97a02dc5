"""Collects the extents of a shard while it is scanned."""

from __future__ import annotations

import sys
from array import array

from energon_dali.errors import ShardError
from energon_dali.shards.index.extents import COLUMNS, MAX_SHARD_BYTES, PartFacts, ShardExtents
from energon_dali.shards.index.tar_scan import TAR_BLOCK_BYTES

MAX_KEYS_BYTES = (1 << 32) - 1
"""Size limit of all keys of a shard together: where each begins is stored in 32 bits."""


class NameTable:
    """Numbers names in the order of their first use.

    Args:
        limit: Maximum number of names.
        what: What they name, for the message.
        names: Names that are known from the start.
    """

    def __init__(self, limit: int, what: str, names: list[str] | None = None) -> None:
        self.names: list[str] = list(names or [])
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._limit = limit
        self._what = what

    def number(self, name: str) -> int:
        """Returns the number of a name, new or known.

        Raises:
            ShardError: There are too many different names.
        """
        number = self._numbers.get(name)
        if number is None:
            number = len(self.names)
            if number >= self._limit:
                raise ShardError(
                    f"More than {self._limit} different {self._what}, the last one {name!r}. The name of a part "
                    "is what follows the first dot of a file name: write samples as KEY.PART with few different PARTs."
                )
            self._numbers[name] = number
            self.names.append(name)
        return number


class ExtentsBuilder:
    """Collects the extents of one shard: about 35 bytes per part, and the keys.

    Args:
        shard: Name of the shard, for messages.
    """

    def __init__(self, shard: str) -> None:
        assert sys.byteorder == "little", "the index is little-endian, like all machines that this package supports"
        self.shard = shard
        self.names = NameTable(1 << 16, "part names")
        self.formats = NameTable(1 << 8, "media formats", [""])
        self.columns = {name: array(code) for name, code in COLUMNS}
        self.keys = bytearray()
        self.num_samples = 0

    def add_sample(self, key: str) -> None:
        """Starts a sample.

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
        """Adds a part to the last sample.

        Raises:
            ShardError: The offset cannot be stored, or the name is not valid UTF-8.
        """
        block, rest = divmod(content_offset, TAR_BLOCK_BYTES)
        if rest or content_offset >= MAX_SHARD_BYTES:
            raise ShardError(
                f"{self.shard} has a part at byte {content_offset}; parts must begin at multiples of {TAR_BLOCK_BYTES} "
                f"below {MAX_SHARD_BYTES}. Write smaller shards, then run `energon-dali prepare PATH`.",
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
        """Returns the columns in their stored form."""
        ends = {"first_part": len(self.columns["part_size"]), "key_start": len(self.keys)}
        columns = [
            self.columns[name].tobytes() + (array(code, [ends[name]]).tobytes() if name in ends else b"")
            for name, code in COLUMNS
        ]
        return b"".join([*columns, self.keys])

    def extents(self, shard_bytes: int) -> ShardExtents:
        """Returns the collected extents."""
        return ShardExtents(
            self.section(),
            self.num_samples,
            len(self.columns["part_size"]),
            shard_bytes,
            self.names.names,
            self.formats.names,
        )
