"""The extents of a shard for orders that take samples from everywhere: read, not mapped.

A mapped index costs a page fault for each column of a sample that is far from the last one, and each fault maps the 16
pages around it. Reading a few entries costs less, and keeps no pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.shards.index.extents import COLUMNS, ITEM_BYTES, ShardExtents, column_length

_CHUNK_BITS = 4
"""Entries are read in chunks of 16: those of a sample are next to each other."""

Read = Callable[[int, int], bytes]
"""Returns the bytes of the index from an offset on, given that and a size."""


class _Column:
    """A column of numbers in a file."""

    __slots__ = ("_chunk", "_code", "_item", "_offset", "_read", "_values", "length")

    def __init__(self, read: Read, offset: int, code: str, length: int) -> None:
        self._read = read
        self._offset = offset
        self._code = code
        self._item = ITEM_BYTES[code]
        self.length = length
        self._chunk = -1
        self._values: Any = None

    def __getitem__(self, index: int) -> int:
        chunk = index >> _CHUNK_BITS
        if chunk != self._chunk:
            self._values = self._take(chunk << _CHUNK_BITS, 1 << _CHUNK_BITS)
            self._chunk = chunk
        return self._values[index & 15]  # type: ignore[no-any-return]

    def __iter__(self) -> Any:
        return iter(self._take(0, self.length))

    def _take(self, start: int, count: int) -> memoryview:
        count = min(count, self.length - start)
        data = self._read(self._offset + start * self._item, count * self._item)
        return memoryview(data).cast(self._code)  # type: ignore[call-overload,no-any-return]

    def array(self) -> npt.NDArray[Any]:
        """Returns the whole column."""
        return np.asarray(self._take(0, self.length))


class _Multiples:
    """A column whose entries are the multiples of a number, such as 0 where there is only one name.

    Args:
        column: The column.
        step: The number.
    """

    __slots__ = ("_column", "_step")

    def __init__(self, column: _Column, step: int) -> None:
        self._column = column
        self._step = step

    def __getitem__(self, index: int) -> int:
        return index * self._step

    def __iter__(self) -> Any:
        return iter(self._column)

    def array(self) -> npt.NDArray[Any]:
        """Returns the whole column."""
        return self._column.array()


class _Keys:
    """The text of all keys in a file."""

    __slots__ = ("_offset", "_read")

    def __init__(self, read: Read, offset: int) -> None:
        self._read = read
        self._offset = offset

    def __getitem__(self, positions: slice) -> bytes:
        return self._read(self._offset + positions.start, positions.stop - positions.start)


class ScatteredExtents(ShardExtents):
    """The extents of one shard, of which each entry is read when it is wanted.

    Args:
        read: Reads the index.
        offset: Where the section begins in it.
        num_samples: Number of samples in the shard.
        num_parts: Number of parts in the shard.
        shard_bytes: Size of the tar file in bytes; -1 if unknown.
        part_names: The names that `part_name` refers to.
        formats: The formats that `part_format` refers to.
        steps: What `even_steps` returned for the section.
    """

    __slots__ = ()

    def __init__(
        self,
        read: Read,
        offset: int,
        num_samples: int,
        num_parts: int,
        shard_bytes: int,
        part_names: list[str],
        formats: list[str],
        steps: tuple[int, int] = (-1, -1),
    ) -> None:
        self.num_samples = num_samples
        self.num_parts = num_parts
        self.shard_bytes = shard_bytes
        self.part_names = part_names
        self.formats = formats
        known = {"first_part": steps[0], "key_start": steps[1], "part_name": 0 if len(part_names) == 1 else -1}
        for name, code in COLUMNS:
            length = column_length(name, num_samples, num_parts)
            column = _Column(read, offset, code, length)
            step = known.get(name, -1)
            setattr(self, name, column if step < 0 else _Multiples(column, step))
            offset += length * ITEM_BYTES[code]
        self.keys = _Keys(read, offset)  # type: ignore[assignment]

    def array(self, column: str) -> npt.NDArray[Any]:
        """Returns a column as a numpy array, read as a whole."""
        found: npt.NDArray[Any] = getattr(self, column).array()
        return found


def even_steps(extents: ShardExtents) -> tuple[int, int]:
    """Returns how many parts each sample has, and how many bytes each key; -1 where they differ.

    Args:
        extents: Of a shard.
    """
    return _even_step(extents.array("first_part")), _even_step(extents.array("key_start"))


def _even_step(starts: npt.NDArray[Any]) -> int:
    step = int(starts[1]) if len(starts) > 1 else 0
    return step if np.array_equal(starts, np.arange(len(starts), dtype=starts.dtype) * starts.dtype.type(step)) else -1
