"""Which blocks of their shards the samples of a dataset use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from energon_dali.cache.shard_cache.object_versions import shard_key
from energon_dali.plan.rng import Int64Array, Uint64Array
from energon_dali.shards.folder import WebdatasetFolder
from energon_dali.shards.index.extent_index import ExtentIndex
from energon_dali.shards.index.extents import ShardExtents
from energon_dali.shards.index.tar_scan import TAR_BLOCK_BYTES
from energon_dali.shards.storage import StoragePath


class ShardLayout:
    """The blocks of the shards of a dataset. Not thread-safe.

    Args:
        folder: The dataset.
        part_filter: Returns whether a part is read, given its name; None reads all.
        block_bytes: Size of a block.
    """

    def __init__(self, folder: WebdatasetFolder, part_filter: Callable[[str], bool] | None, block_bytes: int) -> None:
        self._root = folder.root
        self._names = folder.shard_names
        self._part_filter = part_filter
        self._block_bytes = block_bytes
        # An index of its own: the reader's is not made for several threads.
        self._index = ExtentIndex(folder.root, dict(zip(folder.shard_names, folder.shard_counts, strict=True)))

    def shard_keys(self) -> Uint64Array:
        """Returns uint64[number of shards]: the keys by which the shards are known in plans."""
        keys = [shard_key((self._root / name).url)[:8] for name in self._names]
        return np.frombuffer(b"".join(keys), "<u8").astype(np.uint64)

    def path(self, shard: int) -> StoragePath:
        """Returns the path of a shard."""
        return self._root / self._names[shard]

    def size(self, shard: int) -> int | None:
        """Returns the size of a shard in bytes according to the index, None if it is not known.

        Raises:
            EnergonDaliError: The index cannot be read.
        """
        size = self._index.shard(shard).shard_bytes
        return size if size >= 0 else None

    def blocks(self, shard: int, samples: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns which blocks samples of a shard use.

        Args:
            shard: Number of the shard.
            samples: int64[k]: indices of samples in it.

        Returns:
            (int64[m] which of the k samples, int64[m] number of the block).

        Raises:
            EnergonDaliError: The index cannot be read.
        """
        extents = self._index.shard(shard)
        first_part = extents.array("first_part")
        begins, ends = first_part[samples].astype(np.int64), first_part[samples + 1].astype(np.int64)
        which = np.flatnonzero(ends > begins)
        if self._part_filter is None:
            return self._spread(which, extents, begins[which], ends[which] - 1)
        counts = (ends - begins)[which]
        owners = np.repeat(which, counts)
        parts = (
            np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(begins[which], counts)
        )
        wanted = np.array([self._part_filter(name) for name in extents.part_names], bool)
        kept = wanted[extents.array("part_name")[parts]] if len(wanted) else np.zeros(len(parts), bool)
        return self._spread(owners[kept], extents, parts[kept], parts[kept])

    def _spread(
        self, owners: Int64Array, extents: ShardExtents, first: Int64Array, last: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Returns the pairs of samples and blocks for ranges of parts, from the header of the first part on."""
        block, size = extents.array("part_block"), extents.array("part_size")
        start = block[first].astype(np.int64) * TAR_BLOCK_BYTES - TAR_BLOCK_BYTES
        stop = block[last].astype(np.int64) * TAR_BLOCK_BYTES + size[last].astype(np.int64)
        low, high = start // self._block_bytes, (stop - 1) // self._block_bytes
        counts = np.maximum(high - low + 1, 0)
        blocks = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)
        return np.repeat(owners, counts), blocks

    def close(self) -> None:
        """Closes the index."""
        self._index.close()
