"""Collects the extents of a shard while it is scanned."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable

from energon_dali.errors import ShardError
from energon_dali.shards.index.extents import COLUMNS, MAX_SHARD_BYTES, PartFacts, ShardExtents
from energon_dali.shards.index.tar_scan import TAR_BLOCK_BYTES, PartMember, ReadAt, TarEnd, group_members, scan_tar

MAX_KEYS_BYTES = (1 << 32) - 1
"""Size limit of all keys of a shard together: where each begins is stored in 32 bits."""


MAX_PART_NAMES, MAX_FORMATS = 1 << 16, 1 << 8


class ExtentsBuilder:
    """Collects the extents of one shard: about 35 bytes per part, and the keys.

    Args:
        shard: Name of the shard, for messages.
    """

    def __init__(self, shard: str) -> None:
        assert sys.byteorder == "little", "the index is little-endian, like all machines that this package supports"
        self.shard = shard
        self.names: dict[str, int] = {}
        """Part names with their numbers."""
        self.formats = {"": 0}
        """Formats of media with their numbers."""
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
        columns["part_name"].append(self._number(self.names, name, MAX_PART_NAMES, "part names"))
        columns["part_block"].append(block)
        columns["part_size"].append(size)
        number = 0 if facts is None else self._number(self.formats, facts.format, MAX_FORMATS, "media formats")
        columns["part_format"].append(number)
        columns["part_width"].append(0 if facts is None else facts.width)
        columns["part_height"].append(0 if facts is None else facts.height)

    def _number(self, known: dict[str, int], name: str, limit: int, what: str) -> int:
        """Returns the number of a name: names are numbered in the order of their first use.

        Raises:
            ShardError: There are too many different names, or this one is not valid UTF-8.
        """
        number = known.get(name)
        if number is None:
            if len(known) >= limit:
                raise ShardError(
                    f"More than {limit} different {what}, the last one {name!r}. The name of a part is what follows "
                    "the first dot of a file name: write samples as KEY.PART with few different PARTs."
                )
            try:
                name.encode("utf-8")
            except UnicodeEncodeError as error:
                raise self._not_text("part", name) from error
            number = known[name] = len(known)
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
            list(self.names),
            list(self.formats),
        )


def scan_extents(
    read_at: ReadAt, size: int, shard: str, describe: Callable[[PartMember], PartFacts | None] | None = None
) -> tuple[ExtentsBuilder, list[int]]:
    """Scans the headers of a tar, and returns (its extents, where each sample begins and the last one ends).

    Args:
        read_at: Reads the file.
        size: Size of the file in bytes.
        shard: Name of the shard, for messages.
        describe: Returns what the header of a part says, if it is looked at.

    Raises:
        ShardError: The tar is damaged, or cannot be indexed.
    """
    builder = ExtentsBuilder(shard)
    starts: list[int] = []
    for part in group_members(scan_tar(read_at, size, shard)):
        if isinstance(part, TarEnd):
            starts.append(part.offset)
            break
        if part.new_sample:
            builder.add_sample(part.key)
            starts.append(part.member.offset)
        facts = None if describe is None else describe(part)
        builder.add_part(part.part, part.member.content_offset, part.member.size, facts)
    return builder, starts
