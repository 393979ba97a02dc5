"""The files `SHARD.tar.idx`: where each sample begins, as little-endian uint64, and the end of the last one."""

from __future__ import annotations

import shlex

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetFormatError
from energon_dali.shards.documents.content import MAX_INDEX_BYTES, read_content
from energon_dali.shards.storage import StoragePath


def tar_index_path(root: StoragePath, shard: str) -> StoragePath:
    """Returns the place of the index of a shard: beside it, with `.idx` behind its name."""
    return root / f"{shard}.idx"


def read_tar_index(root: StoragePath, shard: str) -> npt.NDArray[np.uint64]:
    """Returns where the samples of a shard begin.

    Returns:
        uint64[num_samples + 1]: offset of each sample's first header in bytes, then the end of the last sample.

    Raises:
        DatasetFormatError: The file is missing or is no list of growing offsets.
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
    """Returns the offsets as they are stored."""
    return np.asarray(offsets, "<u8").tobytes()
