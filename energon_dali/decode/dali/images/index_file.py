"""Writes index files with which DALI's reader follows any order: subsets, permutations and repetitions of samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from energon_dali.errors import ConfigError, ShardError
from energon_dali.shards.storage.atomic_file import writing

_TAR_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """Where DALI's reader finds one sample of an order."""

    shard: int
    """Index of the shard among the reader's shards."""
    extents: tuple[tuple[int, int] | None, ...]
    """(offset, size) in bytes of each component's content; None where the sample has none."""
    width: int = 0
    """Width of the image in pixels as stored; needed if operations are declared."""
    height: int = 0
    """Height of the image in pixels as stored; needed if operations are declared."""
    orientation: int = 1
    """EXIF orientation, 1 to 8."""
    seed: int = 0
    """Seed of the image's random operations."""


def write_index_files(
    folder: str | os.PathLike[str],
    shards: Sequence[str],
    rows: Sequence[ReaderRow],
    num_components: int,
    image: int,
    first_row: int = 0,
) -> tuple[list[str], list[str]]:
    """Writes one index file per run of rows in the same shard; returns (path of the shard, path of the index) per run.

    Each line has the number of its row in place of the file name, which must not contain spaces. Components have the
    suffixes "c0", "c1", ...

    Args:
        folder: Where to write.
        shards: Paths or s3:// URLs of the shards; the sizes of local ones are checked first.
        rows: The order.
        num_components: Number of extents that every row must have.
        image: Index of the component that every row must have.
        first_row: Rows before this one are left out.

    Raises:
        ConfigError: A row has another number of extents, no image, or an offset that is not a multiple of 512.
        ShardError: An extent ends after the end of its shard (which would end the process in DALI), or a shard is gone.
        StorageError: An index cannot be written.
    """
    sizes = [_size_of(shard) for shard in shards]
    paths: list[str] = []
    indices: list[str] = []
    lines: list[str] = []
    for number in range(first_row, len(rows)):
        row = rows[number]
        _check_row(row, num_components, image, shards[row.shard], sizes[row.shard])
        lines.append(
            " ".join(
                f"c{i} {extent[0]} {extent[1]} {number}" for i, extent in enumerate(row.extents) if extent is not None
            )
        )
        if number + 1 == len(rows) or rows[number + 1].shard != row.shard:
            index = Path(folder) / f"{first_row}-{len(indices)}.idx"
            with writing(index):
                index.write_text(f"v1.2 {len(lines)}\n" + "\n".join(lines) + "\n")
            paths.append(shards[row.shard])
            indices.append(str(index))
            lines = []
    return paths, indices


def _size_of(shard: str) -> int | None:
    if "://" in shard:
        return None
    try:
        return os.stat(shard).st_size
    except OSError as error:
        raise ShardError(f"Shard {shard} cannot be read: {error}. Prepare the dataset again.", shard) from error


def _check_row(row: ReaderRow, num_components: int, image: int, shard: str, shard_size: int | None) -> None:
    if len(row.extents) != num_components or row.extents[image] is None:
        raise ConfigError(
            f"{row} cannot be read: it needs {num_components} extents, and that of the image (number {image}) must not "
            "be None. Leave samples without an image out of the rows."
        )
    for extent in row.extents:
        if extent is None:
            continue
        offset, size = extent
        if offset % _TAR_BLOCK_BYTES or offset < 0 or size < 0:
            raise ConfigError(
                f"The extent {extent} in {shard} is not a member of a tar file: contents start at multiples of 512 "
                "bytes. Give the offset of the content as the index has it."
            )
        if shard_size is not None and offset + size > shard_size:
            raise ShardError(
                f"Shard {shard} has {shard_size} bytes, and a part is expected up to byte {offset + size}. It shrank "
                "or changed since it was indexed: prepare the dataset again.",
                shard,
            )
