"""Where every part of every sample of a shard is stored, and how parts are taken out of what was read."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetFormatError, ShardError
from energon_dali.shards.index.tar_scan import OCTAL_SIZE_LIMIT, TAR_BLOCK_BYTES, check_header, header_name

MAX_SHARD_BYTES = TAR_BLOCK_BYTES << 32
"""Offsets of contents are stored in tar blocks, in 32 bits: a shard may have up to 2 TiB."""

GAP_BYTES = 16 << 10
"""Unwanted bytes between two wanted parts, up to which one request is cheaper than two on a local disk."""

VIEW_BYTES = 4096
"""Parts of at least this size are views of what was read, not copies."""

PartRun = tuple[int, int, int, int]
"""(first part, part after the last one, offset of the first header, size in bytes): parts that are read together."""

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
"""Columns with their type codes, in stored order: the widest first, so that each is aligned."""

_SAMPLE_COLUMNS = frozenset(("first_part", "key_start"))
ITEM_BYTES = {"Q": 8, "I": 4, "H": 2, "B": 1}


def column_length(name: str, num_samples: int, num_parts: int) -> int:
    """Returns the number of entries of a column.

    Args:
        name: Its name.
        num_samples: Number of samples in the shard.
        num_parts: Number of parts in the shard.
    """
    return num_samples + 1 if name in _SAMPLE_COLUMNS else num_parts


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What the header of a media part says."""

    format: str
    """Format of the data, such as "jpeg", with anything else a decoder needs; at most 255 different values."""
    width: int = 0
    """Width in pixels; 0 if unknown."""
    height: int = 0
    """Height in pixels; 0 if unknown."""


class ShardExtents:
    """The extents of one shard, as columns of numbers over one buffer.

    The columns are memory views, which are fast for single numbers in Python; `array` returns numpy views of them.

    Args:
        section: The columns, end to end, as `ExtentsBuilder.section` returns them; not copied.
        num_samples: Number of samples in the shard.
        num_parts: Number of parts in the shard.
        shard_bytes: Size of the tar file in bytes; -1 if unknown.
        part_names: The names that `part_name` refers to.
        formats: The formats that `part_format` refers to; the first is "" for unknown.
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
    """uint32[num_parts]: where each content begins in the tar, in tar blocks of 512 bytes."""
    part_size: memoryview
    """uint64[num_parts]: size of each content in bytes."""
    part_width: memoryview
    """uint32[num_parts]: width in pixels, 0 if unknown."""
    part_height: memoryview
    """uint32[num_parts]: height in pixels, 0 if unknown."""
    part_name: memoryview
    """uint16[num_parts]: index of each part's name in `part_names`."""
    part_format: memoryview
    """uint8[num_parts]: index of each part's format in `formats`."""
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
        for name, code in COLUMNS:  # as counted by `columns_bytes`
            count = column_length(name, num_samples, num_parts)
            end = position + count * ITEM_BYTES[code]
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
                f"The index has a key for sample {sample} that is not UTF-8 ({error.reason}). Write it again with "
                "`energon-dali prepare PATH`."
            ) from error

    def check(self) -> None:
        """Raises ValueError, which says why, if the numbers contradict each other."""
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
                raise ValueError(f"a {numbers} refers to a name that does not exist")
        if not self.num_parts:
            return
        blocks = self.array("part_block")
        falls = blocks[1:] <= blocks[:-1]
        first_block, last_block = int(blocks[0]), int(blocks[-1])
        if falls.any():  # allowed between samples
            borders = first_part[1:-1]
            falls[borders[(borders > 0) & (borders < self.num_parts)] - 1] = False
            if falls.any():
                raise ValueError("the parts of a sample are not in order")
            first_block, last_block = int(blocks.min()), int(blocks.max())
        if first_block < 1:  # a header precedes every content
            raise ValueError("a part begins before its header")
        most = self.shard_bytes if self.shard_bytes >= 0 else MAX_SHARD_BYTES
        if most > MAX_SHARD_BYTES or last_block * TAR_BLOCK_BYTES > most or int(self.array("part_size").max()) > most:
            raise ValueError("a part ends after the end of the shard")

    def end_of_parts(self) -> int:
        """Returns the offset of the first byte after all parts."""
        if not self.num_parts:
            return 0
        return int(
            (self.array("part_block").astype(np.uint64) * np.uint64(TAR_BLOCK_BYTES) + self.array("part_size")).max()
        )

    def parts(self, sample: int) -> list[tuple[str, int, int]]:
        """Returns (part name, offset of the content, size) of each part of a sample, in order, in bytes."""
        return [
            (self.part_names[self.part_name[part]], self.part_block[part] * TAR_BLOCK_BYTES, self.part_size[part])
            for part in range(self.first_part[sample], self.first_part[sample + 1])
        ]

    def array(self, column: str) -> npt.NDArray[Any]:
        """Returns a column as a numpy array: a read-only view, no copy."""
        return np.asarray(getattr(self, column))

    def indices_of_keys(self, wanted: set[str]) -> dict[str, int]:
        """Returns the indices of the wanted samples that are in this shard, by key."""
        return {key: sample for sample in range(self.num_samples) if (key := self.key(sample)) in wanted}

    def __repr__(self) -> str:
        return f"ShardExtents({self.num_samples} samples, {self.num_parts} parts)"


def columns_bytes(num_samples: int, num_parts: int) -> int:
    """Returns the size in bytes of all columns of a section, without the keys."""
    return sum(ITEM_BYTES[code] * column_length(name, num_samples, num_parts) for name, code in COLUMNS)


class PartLayout:
    """The wanted parts of the samples of one shard, and where they are stored.

    Args:
        shard: Name of the shard.
        extents: Its extents.
        part_filter: Returns whether a part is wanted, given its name; None takes all parts.

    Raises:
        RuntimeError: The filter raised StopIteration; its other exceptions are passed on unchanged.
    """

    __slots__ = ("_all", "extents", "names", "shard", "wanted")

    def __init__(self, shard: str, extents: ShardExtents, part_filter: Callable[[str], bool] | None) -> None:
        self.shard = shard
        self.extents = extents
        self.names = extents.part_names
        try:
            self.wanted = [part_filter is None or bool(part_filter(name)) for name in extents.part_names]
        except StopIteration as end:  # unchanged, it would silently end the epoch
            raise RuntimeError(f"part_filter raised StopIteration for a part of {shard}.") from end
        self._all = all(self.wanted)

    def runs(self, sample: int, without: Container[int] = ()) -> list[PartRun]:
        """Returns what has to be read for a sample; each run starts with the header of its first part.

        Args:
            sample: Index of the sample.
            without: Numbers of parts that are not read as a whole.
        """
        extents = self.extents
        first, stop = extents.first_part[sample], extents.first_part[sample + 1]
        block, size = extents.part_block, extents.part_size
        if self._all and first < stop and not without:
            start = block[first] * TAR_BLOCK_BYTES - TAR_BLOCK_BYTES
            end = block[stop - 1] * TAR_BLOCK_BYTES + size[stop - 1]
            # Only headers and padding are between neighbours; anything more are members that are not parts.
            if stop - first == 1 or end - start < 1 << 20:
                return [(first, stop, start, end - start)]
        runs: list[PartRun] = []
        wanted, name = self.wanted, extents.part_name
        begin = start = end = last = -1
        for part in range(first, stop):
            if not wanted[name[part]] or part in without:
                continue
            content = block[part] * TAR_BLOCK_BYTES
            if begin >= 0 and content - TAR_BLOCK_BYTES - end > GAP_BYTES:
                runs.append((begin, last, start, end - start))
                begin = -1
            if begin < 0:
                begin, start = part, content - TAR_BLOCK_BYTES
            end, last = content + size[part], part + 1
        if begin >= 0:
            runs.append((begin, last, start, end - start))
        return runs

    def extract(
        self, key: str, run: PartRun, data: bytes | memoryview, base: int, parts: dict[str, bytes | memoryview]
    ) -> None:
        """Adds the parts of a run to `parts`, after checking the header before each.

        Args:
            key: Key of the sample.
            run: Which parts to extract.
            data: Bytes that contain the run.
            base: Offset of `data` in the shard.
            parts: Receives the contents, by part name.

        Raises:
            ShardError: The shard differs from its index.
        """
        extents = self.extents
        names, wanted, numbers = self.names, self.wanted, extents.part_name
        block, sizes = extents.part_block, extents.part_size
        for part in range(run[0], run[1]):
            number = numbers[part]
            if not wanted[number]:
                continue
            name, size = names[number], sizes[part]
            content = block[part] * TAR_BLOCK_BYTES - base
            start_of_header = f"{key}.{name}\0".encode()
            header = content - TAR_BLOCK_BYTES
            # Fast path for what nearly every program writes: the whole name, and the size as 11 octal digits.
            if not (
                len(start_of_header) <= 100
                and data[header : header + len(start_of_header)] == start_of_header
                and data[header + 124 : header + 135] == b"%011o" % size
            ):
                check_member(self.shard, bytes(data[header:content]), start_of_header[:-1], size, content + base)
            if content + size > len(data):
                raise self.changed(f"it ends before byte {content + base + size}")
            # A large part is a view of what was read: copying it would cost as much as reading it.
            parts[name] = (
                bytes(data[content : content + size])
                if size < VIEW_BYTES
                else memoryview(data)[content : content + size]
            )

    def changed(self, what: str) -> ShardError:
        """Returns the error for a shard that differs from its index."""
        return changed_shard(self.shard, what)


def check_member(shard: str, header: bytes, member: bytes, size: int, offset: int) -> None:
    """Rejects a header that does not belong to a member; names that do not fit a header are not checked.

    Args:
        shard: Name of the shard.
        header: The tar block before the content.
        member: `KEY.PART` of the member.
        size: Size of its content in bytes.
        offset: Where its content begins in the shard.

    Raises:
        ShardError: The shard differs from its index.
    """
    if len(header) < TAR_BLOCK_BYTES:
        raise changed_shard(shard, f"it ends before byte {offset}")
    try:
        found_size, kind = check_header(header, offset - TAR_BLOCK_BYTES, offset + size, shard)
    except ShardError as error:
        raise changed_shard(shard, f"no header is at byte {offset - TAR_BLOCK_BYTES}") from error
    name = header_name(header).encode("utf-8", "surrogateescape")
    # Long names, and names that are not ASCII, are stored in an extended header before this one.
    fits = len(member) <= 100 and member.isascii()
    same_name = name == member if fits else len(member) > 100 or name == member or len(name) <= len(member)
    same_size = found_size == size or size >= OCTAL_SIZE_LIMIT
    if kind not in b"0\x007" or not same_name or not same_size:
        raise changed_shard(
            shard,
            f"at byte {offset} it has {name.decode('utf-8', 'replace')!r} of {found_size} bytes instead of "
            f"{member.decode('utf-8', 'replace')!r} of {size} bytes",
        )


def changed_shard(shard: str, what: str) -> ShardError:
    """Returns the error for a shard that differs from its index."""
    return ShardError(
        f"The shard {shard} changed since it was indexed: {what}. Run `energon-dali prepare` on its dataset.", shard
    )
