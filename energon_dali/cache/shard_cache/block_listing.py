"""What a cache of shards has on disk."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from energon_dali.cache.shard_cache.block_file import PAGE_BYTES, BlockName, file_bytes, pages
from energon_dali.cache.shard_cache.private_folder import PrivateFolder
from energon_dali.plan.rng import Int64Array

BLOCKS = "blocks"
CLAIMS = "claims"
OBJECTS = "objects"
JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class BlockFolder:
    """The folder of the blocks of a version of a shard."""

    shard: bytes
    """16 bytes: key of the shard."""
    version: bytes
    """8 bytes: of the object."""

    @property
    def dataset(self) -> bytes:
        """8 bytes: key of the dataset."""
        return self.shard[:8]

    @property
    def path(self) -> str:
        """Path in the folder of the cache."""
        return BlockName(self.shard, self.version, 0).folder


@dataclass(slots=True, eq=False)
class BlockListing:
    """The blocks on disk."""

    folders: list[BlockFolder]
    """The folders in `blocks/`."""
    folder: Int64Array
    """int64[n]: index of the folder of each block."""
    number: Int64Array
    """int64[n]: number of the block in its shard."""
    size: Int64Array
    """int64[n]: bytes of the block."""
    total_bytes: int
    """Of everything in the cache's folder."""

    def path(self, row: int) -> str:
        """Returns the path of a block in the folder of the cache."""
        return f"{self.folders[int(self.folder[row])].path}/{block_file(int(self.number[row]), int(self.size[row]))}"


def list_blocks(cache: PrivateFolder) -> BlockListing:
    """Returns the blocks on disk. What does not belong here is not counted and not touched.

    Args:
        cache: The folder of the cache.
    """
    folders = list_folders(cache)
    rows: list[tuple[int, int, int]] = []
    total = PAGE_BYTES * len(folders)
    for index, folder in enumerate(folders):
        names = cache.list(folder.path)
        for name in names:
            number, _, size = name.partition("-")
            if number.isdecimal() and size.isdecimal():
                rows.append((index, int(number), int(size)))
        if not names:
            cache.remove_folder(folder.path)
    table = np.array(rows, np.int64).reshape(-1, 3)
    total += int(file_bytes(table[:, 2]).sum())
    for place in (CLAIMS, OBJECTS, JOBS):
        total += sum(_bytes_on_disk(cache, f"{place}/{name}") for name in cache.list(place))
    # The folder itself, and what is always in it: folders and small files, each of a page or more.
    total += PAGE_BYTES + sum(max(PAGE_BYTES, _bytes_on_disk(cache, name)) for name in cache.list())
    return BlockListing(folders, table[:, 0], table[:, 1], table[:, 2], total)


def list_folders(cache: PrivateFolder) -> list[BlockFolder]:
    """Returns the folders of blocks."""
    folders = []
    for name in sorted(cache.list(BLOCKS)):
        with contextlib.suppress(ValueError):
            shard, version = map(bytes.fromhex, name.split("-"))
            if (len(shard), len(version)) == (16, 8):
                folders.append(BlockFolder(shard, version))
    return folders


def _bytes_on_disk(cache: PrivateFolder, name: str) -> int:
    status = cache.stat(name)
    return 0 if status is None else pages(status.st_size)


def block_file(number: int, size: int) -> str:
    """Returns the name of the file of a block in the folder of its shard."""
    return f"{number}-{size}"
