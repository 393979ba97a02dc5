"""Follows the plan of one stream: which blocks it will use, and how far it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextvars import Context, copy_context

import numpy as np

from energon_dali.cache.shard_cache.shard_layout import ShardLayout
from energon_dali.plan import OrderSpec, RepeatedOrder
from energon_dali.plan.next_use import PlannedUses, UseTable, block_ids, planned_uses

CHUNK_POSITIONS = 1 << 16
"""Positions that are planned at a time."""
EPOCHS = 2
"""This epoch and the next one are planned."""
MERGED_POSITIONS = 256
"""Where a plan has many uses, the first and the last use of a block within this many positions stand for all of them;
within four times as many where that is not enough, and so on."""
_CHUNK_SHARE = 16
"""A chunk takes at most this part of the uses that are kept."""


class PlanFollower:
    """The plan of a stream, as far ahead as it is computed, and its position.

    The reader of the stream calls `advance`; another thread calls everything else.

    Args:
        order: The order of the dataset.
        stream: Number of the stream.
        layout: Which blocks the samples use.
        epoch: Where the stream is.
        position: Where it is in this epoch.
        most_uses: Uses that are kept.
        closed: Called by `close`.
    """

    def __init__(
        self,
        order: OrderSpec | RepeatedOrder,
        stream: int,
        layout: ShardLayout,
        epoch: int,
        position: int,
        most_uses: int,
        closed: Callable[[PlanFollower], None],
    ) -> None:
        # A copy: orders keep what they computed last, and are not made for several threads.
        own = (
            dataclasses.replace(order, spec=dataclasses.replace(order.spec))
            if isinstance(order, RepeatedOrder)
            else dataclasses.replace(order)
        )
        self._order = own.stream(stream)
        self._closed = closed
        self.layout = layout
        self.most_uses = most_uses
        self.shard_keys = layout.shard_keys()
        self.context: Context = copy_context()
        """Context of the reader, whose loader counts the requests made for it."""
        self._at = epoch, position
        self._origins = {epoch: 0}
        """By epoch, the position of its first sample; written by the planning thread alone."""
        self._next = epoch, position
        """Where planning continues."""
        self._planned_until = position
        """The position at which planning continues, counted as `now` is."""
        self.uses = PlannedUses.none()
        """What comes, in the order of the plan."""
        self.table = UseTable.of(np.zeros(0, np.uint64), np.zeros(0, np.int64))
        self.failed = False
        """Whether the index could not be read: the stream is no longer followed."""

    def advance(self, epoch: int, position: int) -> None:
        """Sets the position of the sample that is read next."""
        self._at = epoch, position

    def close(self) -> None:
        """Stops following the stream."""
        self._closed(self)

    @property
    def now(self) -> int:
        """Position in the stream, counted from the start of the epoch in which it was opened."""
        epoch, position = self._at
        origin = self._origins.get(epoch)
        return self._planned_until if origin is None else origin + position

    def _origin(self, epoch: int) -> int:
        """Returns the position of an epoch's first sample."""
        last = max(self._origins)
        while last < epoch:
            self._origins[last + 1] = self._origins[last] + self._order.num_samples(last)
            last += 1
        return self._origins.get(epoch, 0)

    def wants_more(self) -> bool:
        """Returns whether there is more to plan, and room for it."""
        return (
            not self.failed
            and self._next[0] < self._at[0] + EPOCHS
            and len(self.uses.since(self.now)) < self.most_uses // 2
        )

    def extend(self) -> None:
        """Plans the next positions.

        Raises:
            EnergonDaliError: The index cannot be read.
            OSError: The same.
        """
        epoch, position = max(self._next, self._at)
        length = self._order.num_samples(epoch)
        stop = min(length, position + CHUNK_POSITIONS)
        found = PlannedUses.none()
        if position < stop:
            order = self._order.epoch(epoch)
            found = planned_uses(order, position, stop, self.layout.blocks, self._origin(epoch))
        positions = MERGED_POSITIONS
        while len(found) > self.most_uses // _CHUNK_SHARE and positions < 4 * CHUNK_POSITIONS:
            found = found.merged(positions)
            positions *= 4
        following = (epoch, stop) if stop < length else (epoch + 1, 0)
        self._planned_until = self._origin(following[0]) + following[1]
        self._next = following
        uses = PlannedUses.joined([self.uses.since(self.now), found])
        self.table = UseTable.of(block_ids(self.shard_keys[uses.shards], uses.blocks), uses.positions)
        self.uses = uses
