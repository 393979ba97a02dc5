"""The order of one stream in one epoch."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from energon_dali.plan.rng import Int64Array
from energon_dali.plan.slices import Int32Array, Slices
from energon_dali.plan.window import WindowShuffle

_MANY_SLICES = 65_536


@dataclass(frozen=True, eq=False)
class EpochSequence:
    """The samples of an epoch: slices of shards, end to end."""

    slices: Slices
    """The n slices, none empty."""
    passes: Int64Array
    """int64[n]: number of the pass over the data that each slice belongs to."""
    starts: Int64Array
    """int64[n + 1]: where each slice starts in the sequence, and where the last one stops."""

    @classmethod
    def of(cls, slices: Slices, passes: Int64Array) -> EpochSequence:
        """Returns the sequence of slices in their order."""
        return cls(slices, passes, np.concatenate([np.zeros(1, np.int64), np.cumsum(slices.lengths)]))

    @property
    def length(self) -> int:
        """Number of samples in the sequence."""
        return int(self.starts[-1])

    def cut(self, start: int, stop: int) -> EpochSequence:
        """Returns the range [start, stop) of the sequence; slices at its borders are cut."""
        if start >= stop:
            return EpochSequence.of(self.slices.take(np.zeros(0, np.int64)), np.zeros(0, np.int64))
        touched = slice(
            int(np.searchsorted(self.starts, start, side="right")) - 1,
            int(np.searchsorted(self.starts, stop, side="left")),
        )
        offsets = self.starts[touched]
        first, last = self.slices.start[touched], self.slices.stop[touched]
        cut = Slices.trusted(
            self.slices.shard[touched], first + np.maximum(start - offsets, 0), np.minimum(last, first + stop - offsets)
        )
        return EpochSequence.of(cut, self.passes[touched])


class SliceLocator:
    """Finds the slice that holds a position of a sequence, in O(1): a table narrows the search to a bucket.

    Args:
        starts: int64[n + 1], ascending: where each slice starts, and where the last one stops.
    """

    def __init__(self, starts: Int64Array) -> None:
        count = max(1, len(starts) - 1)
        length = max(1, int(starts[-1]))
        # About four buckets per slice: most buckets are then within one slice. One for many slices, to save memory.
        per_slice = 4 if count <= _MANY_SLICES else 1
        self._bits = max(0, (length // (per_slice * count)).bit_length() - 1)
        buckets = (length >> self._bits) + 1
        self._starts = starts
        if len(starts) == 2:
            return
        edges = np.arange(buckets + 1, dtype=np.int64) << self._bits
        found = np.searchsorted(starts, edges, side="right") - 1
        found = np.minimum(found, count - 1).astype(np.int32)  # [buckets + 1]
        self._table = found[:-1]
        self._crowded = found[1:] - found[:-1] > 1  # more than one border within the bucket

    def find(self, positions: Int64Array) -> Int32Array:
        """Returns int32[n]: the index of the slice of each position, int64[n]."""
        if len(self._starts) == 2:
            return np.zeros(len(positions), np.int32)
        buckets = positions >> self._bits
        found: Int32Array = self._table[buckets]
        found += positions >= self._starts[found + 1]
        crowded = np.flatnonzero(self._crowded[buckets])
        if len(crowded):
            found[crowded] = np.searchsorted(self._starts, positions[crowded], side="right") - 1
        return found


class EpochOrder:
    """The samples of one stream in one epoch, in order, each exactly once.

    Args:
        sequence: What the stream reads in this epoch.
        lanes: Number of interleave lanes: equal ranges of the sequence that are read in turn, at least 1.
        window: Window of the sample shuffle, in samples; 1 or less means no shuffle.
        window_in_slice: Shuffle within each slice, before lanes are interleaved, instead of over the whole order.
        key: Key of the random numbers.
    """

    def __init__(
        self, sequence: EpochSequence, lanes: int, window: int, window_in_slice: bool, key: tuple[int, ...]
    ) -> None:
        self._sequence = sequence
        self._length = sequence.length
        self._lanes = max(1, min(lanes, len(sequence.slices)))
        self._window = window
        self._in_slice = window_in_slice and window > 1
        self._key = key
        self._shuffle = WindowShuffle(self._length, 1 if window_in_slice else window, *key)
        self._locator = SliceLocator(sequence.starts)
        self._slice_shuffles: OrderedDict[int, WindowShuffle] = OrderedDict()

    def __len__(self) -> int:
        return self._length

    def samples(self, start: int, stop: int) -> tuple[Int32Array, Int64Array, Int64Array, Int32Array]:
        """Returns the samples at positions start ... stop - 1.

        Args:
            start: First position, at least 0.
            stop: Position after the last, at most the length.

        Returns:
            (int32[k] shards, int64[k] indices within the shards, int64[k] passes over the data, int32[k] lanes). A
            sample that is repeated, in one epoch or in several, has another pass each time.

        Raises:
            IndexError: The range leaves the epoch.
        """
        if not 0 <= start <= stop <= self._length:
            raise IndexError(
                f"Positions {start} to {stop} leave an epoch of {self._length} samples: "
                "give 0 <= start <= stop <= length."
            )
        positions = self._shuffle.positions(start, stop)
        if self._lanes > 1:
            short, longer = divmod(self._length, self._lanes)
            offsets, numbers = np.divmod(positions, self._lanes)
            positions = numbers * short + np.minimum(numbers, longer) + offsets
            lanes = numbers.astype(np.int32)
        else:
            lanes = np.zeros(len(positions), np.int32)
        slices = self._locator.find(positions)
        indices = positions - self._sequence.starts[slices]
        if self._in_slice and len(indices):
            self._shuffle_in_slices(slices, indices)
        indices += self._sequence.slices.start[slices]
        return self._sequence.slices.shard[slices], indices, self._sequence.passes[slices], lanes

    def _shuffle_in_slices(self, slices: Int32Array, indices: Int64Array) -> None:
        """Replaces indices within slices by the shuffled ones, in place."""
        by_slice = np.argsort(slices, kind="stable")
        touched, begins = np.unique(slices[by_slice], return_index=True)
        for number, members in zip(touched.tolist(), np.split(by_slice, begins[1:]), strict=True):
            wanted = indices[members]
            low = int(wanted.min())
            indices[members] = self._slice_shuffle(number).positions(low, int(wanted.max()) + 1)[wanted - low]

    def _slice_shuffle(self, number: int) -> WindowShuffle:
        known = self._slice_shuffles.get(number)
        if known is None:
            length = int(self._sequence.starts[number + 1] - self._sequence.starts[number])
            known = self._slice_shuffles[number] = WindowShuffle(length, self._window, *self._key, number)
            if len(self._slice_shuffles) > self._lanes + 1:
                self._slice_shuffles.popitem(last=False)
        return known
