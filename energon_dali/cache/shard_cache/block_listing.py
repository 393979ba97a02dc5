"""What a cache of shards has on disk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energon_dali.cache.shard_cache.block_file import PAGE_BYTES, file_bytes, pages
from energon_dali.cache.shard_cache.plan_file import FOLDER as PLANS
from energon_dali.cache.shard_cache.private_folder import PrivateFolder
from energon_dali.plan.rng import Int64Array, Uint64Array

BLOCKS = "blocks"
CLAIMS = "claims"
OBJECTS = "objects"


@dataclass(slots=True, eq=False)
class BlockListing:
    """The blocks on disk."""

    folders: list[str]
    """Names of the folders in `blocks/`."""
    folder: Int64Array
    """int64[n]: index of the folder of each block."""
    number: Int64Array
    """int64[n]: number of the block in its shard."""
    size: Int64Array
    """int64[n]: bytes of the block."""
    shard: Uint64Array
    """uint64[n]: key of its shard."""
    total_bytes: int
    """Of everything in the cache's folder."""

    def path(self, row: int) -> str:
        """Returns the path of a block in the folder of the cache."""
        return (
            f"{BLOCKS}/{self.folders[int(self.folder[row])]}/{block_file(int(self.number[row]), int(self.size[row]))}"
        )


def list_blocks(cache: PrivateFolder) -> BlockListing:
    """Returns the blocks on disk. What does not belong here is not counted and not touched.

    Args:
        cache: The folder of the cache.
    """
    folders = sorted(name for name in cache.list(BLOCKS) if len(name) == 49)
    rows: list[tuple[int, int, int]] = []
    keys = []
    total = 0
    for index, folder in enumerate(folders):
        try:
            keys.append(int.from_bytes(bytes.fromhex(folder[:16]), "little"))
        except ValueError:
            keys.append(0)
            continue
        total += PAGE_BYTES
        names = cache.list(f"{BLOCKS}/{folder}")
        for name in names:
            number, _, size = name.partition("-")
            if number.isdecimal() and size.isdecimal():
                rows.append((index, int(number), int(size)))
        if not names:
            cache.remove_folder(f"{BLOCKS}/{folder}")
    table = np.array(rows, np.int64).reshape(-1, 3)
    total += int(file_bytes(table[:, 2]).sum())
    for folder in (CLAIMS, PLANS, OBJECTS):
        total += sum(_bytes_on_disk(cache, f"{folder}/{name}") for name in cache.list(folder))
    # The folder itself, and what is always in it: folders and small files, each of a page or more.
    total += PAGE_BYTES + sum(max(PAGE_BYTES, _bytes_on_disk(cache, name)) for name in cache.list())
    shards = np.array(keys, np.uint64)[table[:, 0]] if len(table) else np.zeros(0, np.uint64)
    return BlockListing(folders, table[:, 0], table[:, 1], table[:, 2], shards, total)


def _bytes_on_disk(cache: PrivateFolder, name: str) -> int:
    status = cache.stat(name)
    return 0 if status is None else pages(status.st_size)


def block_file(number: int, size: int) -> str:
    """Returns the name of the file of a block in the folder of its shard."""
    return f"{number}-{size}"
