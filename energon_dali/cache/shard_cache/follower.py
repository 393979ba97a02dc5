"""Follows the plan of one stream: which blocks it will use, and how far it is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from dataclasses import replace

import numpy as np

from energon_dali.cache.shard_cache.shard_layout import ShardLayout
from energon_dali.plan.next_use import PlannedUses, UseTable, block_ids, planned_uses
from energon_dali.plan.plan import RowSource
from energon_dali.shards import StoragePath

CHUNK_POSITIONS = 1 << 16
"""Positions that are planned at a time."""
MERGED_POSITIONS = 256
"""Where a plan has many uses, the first and the last use of a block within this many positions stand for all of them;
within four times as many where that is not enough, and so on."""
_CHUNK_SHARE = 16
"""A chunk takes at most this part of the uses that are kept."""


class PlanFollower:
    """The plan of a stream, as far ahead as it is computed, and its position.

    The reader of the stream calls `advance`; another thread calls everything else.

    Args:
        plan: Which rows the stream reads.
        stream: Number of the stream.
        layouts: By source, which blocks its samples use; sources that are not cached are left out.
        row: Where the stream is.
        most_uses: Uses that are kept.
        closed: Called by `close`.
    """

    def __init__(
        self,
        plan: RowSource,
        stream: int,
        layouts: Mapping[int, ShardLayout],
        row: int,
        most_uses: int,
        closed: Callable[[PlanFollower], None],
    ) -> None:
        self._plan = plan
        self._stream = stream
        self._closed = closed
        self._layouts = layouts
        self.most_uses = most_uses
        keys = {source: layout.shard_keys() for source, layout in layouts.items()}
        # Shards of all sources are numbered one source after the other.
        counts = np.cumsum([0, *(len(column) for column in keys.values())])
        self._firsts = dict(zip(keys, counts.tolist(), strict=False))
        self.shard_keys = np.concatenate(list(keys.values()))
        self.context: Context = copy_context()
        """Context of the reader, whose loader counts the requests made for it."""
        self.now = row
        """The row that is read next."""
        self._next = row
        """Where planning continues."""
        self._pass = max(1, plan.num_samples // plan.num_streams)
        """Rows of a pass over the data. One is planned at least, and two at most."""
        self.uses = PlannedUses.none()
        """What comes, in the order of the plan."""
        self.table = UseTable.of(np.zeros(0, np.uint64), np.zeros(0, np.int64))
        self.failed = False
        """Whether the index could not be read: the stream is no longer followed."""

    def advance(self, row: int) -> None:
        """Sets the row that is read next."""
        self.now = row

    def close(self) -> None:
        """Stops following the stream."""
        self._closed(self)

    def path(self, shard: int) -> StoragePath:
        """Returns the path of a shard, as `uses` numbers it."""
        layout, number = self._locate(shard)
        return layout.path(number)

    def size(self, shard: int) -> int | None:
        """Returns the size of a shard in bytes according to the index, None if it is not known.

        Raises:
            EnergonDaliError: The index cannot be read.
        """
        layout, number = self._locate(shard)
        return layout.size(number)

    def _locate(self, shard: int) -> tuple[ShardLayout, int]:
        firsts = list(self._firsts.values())
        place = bisect_right(firsts, shard) - 1
        return list(self._layouts.values())[place], shard - firsts[place]

    def wants_more(self) -> bool:
        """Returns whether there is more to plan, and room for it."""
        return (
            not self.failed
            and self._next < self.now + self._pass
            and len(self.uses.since(self.now)) < self.most_uses // 2
        )

    def extend(self) -> None:
        """Plans the next positions.

        Raises:
            EnergonDaliError: The index cannot be read.
            OSError: The same.
        """
        start = max(self._next, self.now)
        stop = min(start + CHUNK_POSITIONS, max(start, self.now + 2 * self._pass))
        rows = self._plan.rows(start, stop, self._stream)
        pieces = []
        for source, layout in self._layouts.items():
            mine = np.flatnonzero(rows.sources == source)
            if len(mine):
                uses = planned_uses(rows.shards[mine], rows.indices[mine], mine + start, layout.blocks)
                pieces.append(replace(uses, shards=uses.shards + self._firsts[source]))
        found = PlannedUses.joined(pieces) if len(pieces) < 2 else PlannedUses.joined(pieces).sorted()
        positions = MERGED_POSITIONS
        while len(found) > self.most_uses // _CHUNK_SHARE and positions < 4 * CHUNK_POSITIONS:
            found = found.merged(positions)
            positions *= 4
        self._next = stop
        uses = PlannedUses.joined([self.uses.since(self.now), found])
        self.table = UseTable.of(block_ids(self.shard_keys[uses.shards], uses.blocks), uses.positions)
        self.uses = uses
