"""Parts of which only some byte ranges are read, such as a long video of which two clips are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from energon_dali.shards.index.extents import PartRun

ByteRange = tuple[int, int]
"""(offset in the part, size)."""


class RangedPart(Protocol):
    """A part of which some ranges are read."""

    ranges: Sequence[ByteRange]
    """What is read, in increasing order, without overlaps. If there is none, only the header of the part is read."""

    def content(
        self,
        pieces: Sequence[bytes | memoryview],
        source: Callable[[Sequence[ByteRange]], Sequence[bytes | memoryview]],
    ) -> Any:
        """Returns what the sample has in place of the bytes of the part.

        Args:
            pieces: The content of each range.
            source: Reads other ranges of the part; picklable.
        """


class RangeChooser(Protocol):
    """Decides which ranges of a part are read; picklable."""

    def prepare(self, shards: Iterable[int]) -> None:
        """Fetches together what it decides by for parts of some shards. Errors are raised by `choose`."""

    def choose(self, shard: int, name: str, offset: int, size: int, seed: int) -> RangedPart | None:
        """Returns the ranges to read; None to read the part as a whole.

        Args:
            shard: Index of the shard.
            name: Name of the part.
            offset: Where its content is in the shard.
            size: Its size in bytes.
            seed: Seed of the sample.

        Raises:
            DatasetError: What it decides by cannot be read.
        """


class RangeRun(NamedTuple):
    """A range that is read; its last two fields are those of a `PartRun`."""

    part: RangedPart
    """Of which part."""
    number: int
    """Number of the part in its shard."""
    offset: int
    """In the shard."""
    size: int
    """In bytes."""


Run = PartRun | RangeRun
"""What is read of a sample: parts that are next to each other, or a range of one."""
