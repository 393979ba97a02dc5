"""When a block of a shard is needed next: the plan's future as integers.

A block is a fixed range of bytes of a shard. A stream reads samples at positions 0, 1, 2, ... of its plan, and each
sample is in one or more blocks, so the plan says at which positions a block is used. A cache that evicts the block
whose next use is farthest away has the fewest misses possible (L. A. Belady, "A study of replacement algorithms for a
virtual-storage computer", IBM Systems Journal 5, 1966).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from energon_dali.plan.rng import Int64Array, Uint64Array, mix_arrays
from energon_dali.plan.slices import Int32Array

NEVER = int(np.iinfo(np.int64).max)
"""Position of a use that does not come, as far as the plan was computed."""

BlocksOf = Callable[[int, Int64Array], tuple[Int64Array, Int64Array]]
"""(shard, int64[k] indices of samples in it) -> (int64[m] which of the k samples, int64[m] block it uses)."""


def block_ids(shard_keys: Uint64Array, blocks: Int64Array) -> Uint64Array:
    """Returns uint64[n]: one number per block that is the same in every process.

    Args:
        shard_keys: uint64[n], or uint64[1] for all: keys of the shards.
        blocks: int64[n]: numbers of the blocks in their shards.
    """
    return mix_arrays(shard_keys, blocks)


class UseTable:
    """The positions at which blocks are used.

    Args:
        ids: uint64[n], ascending, all different: the blocks.
        starts: int64[n + 1]: where the uses of each block start in `keys`, each block having at least one.
        keys: int64[m], ascending: row of the block in `ids` * span + position. A search in it finds the next use of
            many blocks at once.
        span: More than any position.

    Raises:
        ValueError: The arrays contradict each other.
    """

    def __init__(self, ids: Uint64Array, starts: Int64Array, keys: Int64Array, span: int) -> None:
        if len(starts) != len(ids) + 1 or starts[0] != 0 or starts[-1] != len(keys) or (np.diff(starts) < 1).any():
            raise ValueError("the uses do not belong to the blocks")
        if span < 1 or (ids[1:] <= ids[:-1]).any() or (keys[1:] <= keys[:-1]).any():
            raise ValueError("the blocks or their uses are not in order")
        if len(keys) and (keys // span != np.repeat(np.arange(len(ids)), np.diff(starts))).any():
            raise ValueError("a use belongs to another block")
        self.ids = ids
        self.starts = starts
        self.keys = keys
        self.span = span

    @classmethod
    def of(cls, ids: Uint64Array, positions: Int64Array) -> UseTable:
        """Returns the table of pairs (block, position), in any order, where equal pairs count once."""
        if not len(ids):
            return cls(np.zeros(0, np.uint64), np.zeros(1, np.int64), np.zeros(0, np.int64), 1)
        blocks, rows = np.unique(ids, return_inverse=True)
        span = int(positions.max()) + 1
        keys = np.unique(rows.astype(np.int64) * span + positions)
        starts = np.searchsorted(keys, np.arange(len(blocks) + 1, dtype=np.int64) * span)
        return cls(blocks, starts.astype(np.int64), keys, span)

    def next_uses(self, now: int) -> Int64Array:
        """Returns int64[n]: the first position of each block that is at least `now`, or NEVER."""
        return self._next(np.arange(len(self.ids), dtype=np.int64), now)

    def next_use(self, block: int, now: int) -> int:
        """Returns the first position of one block, given its id, that is at least `now`, or NEVER."""
        wanted = np.uint64(block)
        row = int(np.searchsorted(self.ids, wanted))
        if row == len(self.ids) or self.ids[row] != wanted:
            return NEVER
        return int(self._next(np.array([row], np.int64), now)[0])

    def _next(self, rows: Int64Array, now: int) -> Int64Array:
        if now >= self.span:
            return np.full(len(rows), NEVER, np.int64)
        found = np.searchsorted(self.keys, rows * self.span + max(now, 0))
        beyond = found >= self.starts[rows + 1]
        positions = self.keys[np.where(beyond, self.starts[rows], found)] - rows * self.span
        positions[beyond] = NEVER
        return positions

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class PlannedUses:
    """Uses of blocks by a stream, in the order of the plan: n pairs of a block and a position."""

    shards: Int64Array
    """int64[n]: number of the shard."""
    blocks: Int64Array
    """int64[n]: number of the block in it."""
    positions: Int64Array
    """int64[n], ascending: position in the stream."""

    @classmethod
    def none(cls) -> PlannedUses:
        """Returns no uses."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))

    @classmethod
    def joined(cls, pieces: list[PlannedUses]) -> PlannedUses:
        """Returns the uses of consecutive pieces of a plan."""
        if not pieces:
            return cls.none()
        return cls(
            np.concatenate([piece.shards for piece in pieces]),
            np.concatenate([piece.blocks for piece in pieces]),
            np.concatenate([piece.positions for piece in pieces]),
        )

    def sorted(self) -> PlannedUses:
        """Returns the uses in the order of their positions."""
        order = np.argsort(self.positions, kind="stable")
        return PlannedUses(self.shards[order], self.blocks[order], self.positions[order])

    def since(self, position: int) -> PlannedUses:
        """Returns the uses at a position and after it; views."""
        first = int(np.searchsorted(self.positions, position))
        return PlannedUses(self.shards[first:], self.blocks[first:], self.positions[first:])

    def merged(self, positions: int) -> PlannedUses:
        """Returns the first and the last use of each block within each range of positions.

        Args:
            positions: Length of the ranges.
        """
        if not len(self):
            return self
        keys = np.stack([self.blocks, self.shards, self.positions // positions])
        order = np.lexsort(keys)  # stable: the uses of a block in a range keep their order
        ordered = keys[:, order]
        border = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
        kept = np.sort(order[np.concatenate([[True], border]) | np.concatenate([border, [True]])])
        return PlannedUses(self.shards[kept], self.blocks[kept], self.positions[kept])

    def __len__(self) -> int:
        return len(self.positions)


def planned_uses(shards: Int32Array, indices: Int64Array, positions: Int64Array, blocks_of: BlocksOf) -> PlannedUses:
    """Returns the uses of blocks by rows of one source.

    Args:
        shards: int32[n]: shards of the rows.
        indices: int64[n]: indices of their samples in them.
        positions: int64[n], ascending: positions of the rows in the stream.
        blocks_of: Which blocks samples use.
    """
    if not len(shards):
        return PlannedUses.none()
    by_shard = np.argsort(shards, kind="stable")
    touched, begins = np.unique(shards[by_shard], return_index=True)
    pieces: list[tuple[Int64Array, Int64Array, Int64Array]] = []
    for shard, members in zip(touched.tolist(), np.split(by_shard, begins[1:]), strict=True):
        which, blocks = blocks_of(shard, indices[members])
        pieces.append((np.full(len(blocks), shard, np.int64), blocks, members[which]))
    found = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    order = np.argsort(found[2], kind="stable")
    return PlannedUses(found[0][order], found[1][order], positions[found[2][order]])
