"""When cached blocks are needed next, over all streams of the node, and in which order they are evicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_dali.plan.next_use import NEVER, UseTable
from energon_dali.plan.rng import Uint64Array

FloatArray = npt.NDArray[np.float64]


@dataclass(slots=True)
class StreamFuture:
    """What one stream will use."""

    table: UseTable
    """Uses of blocks at positions of the stream."""
    now: int
    """Position that is read next."""
    seconds_per_position: float
    """How fast the stream advances."""


@dataclass(slots=True)
class Future:
    """What all streams of the node will use."""

    streams: list[StreamFuture]
    followed: Uint64Array
    """uint64[n], ascending: keys of the shards whose plan is known."""

    def joined(self, others: list[Future]) -> Future:
        """Returns what the streams of this and other processes will use."""
        streams = [stream for future in (self, *others) for stream in future.streams]
        return Future(streams, np.unique(np.concatenate([future.followed for future in (self, *others)])))

    def seconds_until(self, ids: Uint64Array, shards: Uint64Array) -> FloatArray:
        """Returns in how many seconds blocks are needed.

        Args:
            ids: uint64[n]: the blocks.
            shards: uint64[n]: keys of their shards.

        Returns:
            float64[n]: inf if not within the plan, nan if the plan of the shard is not known.
        """
        seconds = np.full(len(ids), np.inf)
        order = np.argsort(ids)
        ordered = ids[order]
        for stream in self.streams:
            rows = np.searchsorted(ordered, stream.table.ids)
            rows[rows == len(ordered)] = 0
            here = np.flatnonzero(ordered[rows] == stream.table.ids) if len(ordered) else np.zeros(0, np.int64)
            positions = stream.table.next_uses(stream.now)[here]
            used = positions != NEVER
            wait = (positions[used] - stream.now) * stream.seconds_per_position
            targets = order[rows[here[used]]]
            seconds[targets] = np.minimum(seconds[targets], wait)
        if len(self.followed):
            places = np.minimum(np.searchsorted(self.followed, shards), len(self.followed) - 1)
            known = self.followed[places] == shards
        else:
            known = np.zeros(len(ids), bool)
        seconds[np.isinf(seconds) & ~known] = np.nan
        return seconds


def eviction_order(seconds: FloatArray, idle_seconds: FloatArray) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Returns the order of eviction: the block whose next use is farthest away is first.

    A block whose future is unknown is expected to stay unused for as long as it has been unused, so that the least
    recently used one of such blocks is evicted first.

    Args:
        seconds: float64[n]: as `Future.seconds_until` returns them.
        idle_seconds: float64[n]: seconds since the last use; needed where `seconds` is nan or inf.

    Returns:
        (int64[n] indices in the order of eviction, float64[n] seconds until the next use of each block).
    """
    expected = np.where(np.isnan(seconds), np.maximum(idle_seconds, 0.0), seconds)
    return np.lexsort((-idle_seconds, -expected)), expected
