"""The order of one stream in one epoch: slices of shards, read in lanes and shuffled over a window."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_dali.plan.rng import Int64Array, raw_words, sort_to_permutations
from energon_dali.plan.slices import Int32Array, Slices

_MANY_SLICES = 65_536
_GROUP_POSITIONS = 65_536
"""Small tiles are computed in groups of about this many positions."""


class WindowShuffle:
    """A random bijection of 0 ... length - 1 that moves a position by less than twice the window, and holds no samples.

    It has two rounds of permutations within tiles. The first permutes the tiles [0, W), [W, 2W), ...; the second
    permutes tiles that are shifted by half a tile, so that samples cross the borders of the first. Each round is a
    bijection for every length, and so is the whole.

    Keeps the permutations of the tiles around the last position: at most 12 bytes per position of a window.

    Args:
        length: Number of positions, at least 0.
        window: Size of a tile; 1 or less keeps the order.
        *key: Integers that identify the bijection.
    """

    def __init__(self, length: int, window: int, *key: int) -> None:
        self._length = length
        self._rounds: list[_Round] = []
        if window > 1 and length > 1:
            # A tile that covers everything permutes it uniformly: a second round would add nothing.
            self._rounds.append(_Round(length, min(window, length), 0, (*key, 0), kept_groups=2))
            if window < length:
                self._rounds.append(_Round(length, window, window - window // 2, (*key, 1), kept_groups=1))

    def positions(self, start: int, stop: int) -> Int64Array:
        """Returns the positions before the shuffle of positions start ... stop - 1.

        Args:
            start: First position, at least 0.
            stop: Position after the last, at most the length.

        Returns:
            int64[stop - start].
        """
        if not self._rounds:
            return np.arange(start, stop, dtype=np.int64)
        positions = np.empty(max(0, stop - start), np.int64)
        outer = self._rounds[-1]
        position = start
        while position < stop:  # one group of tiles at a time, so that an inner gather touches few groups
            end = min(stop, outer.end_of_group(position))
            found = np.arange(position, end, dtype=np.int64)
            for one_round in reversed(self._rounds):
                found = one_round.gather(found)
            positions[position - start : end - start] = found
            position = end
        return positions


class _Round:
    """One round of permutations within tiles.

    Args:
        length: Number of positions.
        window: Size of a tile.
        shift: Index of position 0 in its tile.
        key: Key of the random words; the word of a position decides where it goes, so any tile can be computed alone.
        kept_groups: Number of groups of tiles that are kept.
    """

    def __init__(self, length: int, window: int, shift: int, key: tuple[int, ...], kept_groups: int) -> None:
        self._length = length
        self._window = window
        self._shift = shift
        self._key = key
        self._kept_groups = kept_groups
        self._group_size = max(1, _GROUP_POSITIONS // window) * window
        self._groups: OrderedDict[int, tuple[int, npt.NDArray[np.unsignedinteger]]] = OrderedDict()

    def end_of_group(self, position: int) -> int:
        """Returns the first position after the group of tiles that holds a position."""
        group = (position + self._shift) // self._group_size
        return min(self._length, (group + 1) * self._group_size - self._shift)

    def gather(self, positions: Int64Array) -> Int64Array:
        """Returns int64[n]: where positions, int64[n], come from; fast if they are near each other."""
        lowest = (int(positions.min()) + self._shift) // self._group_size
        highest = (int(positions.max()) + self._shift) // self._group_size
        if lowest == highest:
            first, sources = self._group(lowest)
            return sources[positions - first].astype(np.int64) + first
        groups = (positions + self._shift) // self._group_size
        gathered = np.empty(len(positions), np.int64)
        for group in range(lowest, highest + 1):
            members = np.flatnonzero(groups == group)
            if len(members):
                first, sources = self._group(group)
                gathered[members] = sources[positions[members] - first].astype(np.int64) + first
        return gathered

    def _group(self, group: int) -> tuple[int, npt.NDArray[np.unsignedinteger]]:
        """Returns (first position of the group, where each of its positions comes from, relative to the first)."""
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = self._make_group(group)
            if len(self._groups) > self._kept_groups:
                self._groups.popitem(last=False)
        else:
            self._groups.move_to_end(group)
        return known

    def _make_group(self, group: int) -> tuple[int, npt.NDArray[np.unsignedinteger]]:
        first = max(0, group * self._group_size - self._shift)
        stop = min(self._length, (group + 1) * self._group_size - self._shift)
        words = raw_words(first + self._shift, stop - first, *self._key)
        # Only the very first and the very last tile of a round can be incomplete.
        head = min(-(first + self._shift) % self._window, len(words))
        body = head + (len(words) - head) // self._window * self._window
        for begin, end, width in ((0, head, head), (head, body, self._window), (body, len(words), len(words) - body)):
            if begin < end:
                rows = sort_to_permutations(words[begin:end].reshape(-1, width))
                rows += np.arange(begin, end, width, dtype=np.uint64)[:, None]
        return first, words.astype(np.uint32 if len(words) <= 1 << 32 else np.uint64)


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
