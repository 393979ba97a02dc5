"""The files `SHARD.tar.idx`: where each sample begins and where the last one ends, as little-endian uint64."""

from __future__ import annotations

import shlex

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetFormatError, ShardError
from energon_dali.shards.documents.content import MAX_INDEX_BYTES, read_content
from energon_dali.shards.index.extents import ShardExtents
from energon_dali.shards.index.extents_builder import scan_extents
from energon_dali.shards.storage import StoragePath, WindowReader


def tar_index_path(root: StoragePath, shard: str) -> StoragePath:
    """Returns the path of the index of a shard: next to it, with the suffix `.idx`."""
    return root / f"{shard}.idx"


def read_tar_index(root: StoragePath, shard: str) -> npt.NDArray[np.uint64]:
    """Returns where the samples of a shard begin.

    Returns:
        uint64[num_samples + 1]: offset of each sample's first header in bytes, then the end of the last sample.

    Raises:
        DatasetFormatError: The file is missing or is not a list of increasing offsets.
        StorageError: It cannot be read.
    """
    path = tar_index_path(root, shard)
    content = read_content(path, MAX_INDEX_BYTES)
    if content is None:
        raise DatasetFormatError(f"{path} is missing. Make it with `energon-dali prepare {shlex.quote(str(root))}`.")
    if not content or len(content) % 8:
        raise DatasetFormatError(
            f"{path} has {len(content)} bytes, which is not a list of 8-byte offsets. Write it again with "
            f"`energon-dali prepare {shlex.quote(str(root))}`."
        )
    offsets = np.frombuffer(content, "<u8")
    if (offsets[1:] < offsets[:-1]).any():
        raise DatasetFormatError(
            f"{path} holds offsets that do not grow. Write it again with `energon-dali prepare "
            f"{shlex.quote(str(root))}`."
        )
    return offsets


def pack_tar_index(offsets: list[int]) -> bytes:
    """Returns the offsets in their stored form."""
    return np.asarray(offsets, "<u8").tobytes()


def extents_of_tar(root: StoragePath, shard: str) -> ShardExtents:
    """Returns the extents of a shard from its headers, after comparing them with its `.tar.idx`.

    Raises:
        DatasetFormatError: The `.tar.idx` is missing or damaged.
        ShardError: The tar is missing or damaged, or differs from its `.tar.idx`.
        StorageError: It cannot be read.
    """
    expected = read_tar_index(root, shard).tolist()
    try:
        reader = (root / shard).open()
    except FileNotFoundError as error:
        raise missing_shard(root, shard) from error
    try:
        read_at = reader.read_at if root.is_local else WindowReader(reader).read_at
        builder, starts = scan_extents(read_at, reader.size, shard)
    finally:
        reader.close()
    if starts[1:-1] != expected[1:-1] or len(starts) != len(expected):
        raise ShardError(
            f"{root / shard} changed since it was indexed: its samples do not begin where {shard}.idx says. Run "
            f"`energon-dali prepare {shlex.quote(str(root))}`.",
            shard,
        )
    return builder.extents(reader.size)


def missing_shard(root: StoragePath, shard: str) -> ShardError:
    """Returns the error for a missing shard."""
    return ShardError(
        f"{root / shard} is missing. Put it back, or run `energon-dali prepare {shlex.quote(str(root))}` without it.",
        shard,
    )
