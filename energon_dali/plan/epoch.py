"""The order of one stream in one epoch."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from energon_dali.plan.rng import Int64Array
from energon_dali.plan.slices import Int32Array, Slices
from energon_dali.plan.window import WindowShuffle

_CHUNK = 1024
"""`EpochOrder.sample` computes this many positions at once."""


@dataclass(frozen=True, eq=False)
class Line:
    """Pieces of shards laid end to end."""

    slices: Slices
    """The n pieces, none empty."""
    passes: Int64Array
    """int64[n]: which pass over the data each piece belongs to."""
    starts: Int64Array
    """int64[n + 1]: where each piece begins on the line, and where the last one ends."""

    @classmethod
    def of(cls, slices: Slices, passes: Int64Array) -> Line:
        """Returns slices laid end to end in their order."""
        return cls(slices, passes, np.concatenate([np.zeros(1, np.int64), np.cumsum(slices.lengths)]))

    @property
    def length(self) -> int:
        """Number of samples on the line."""
        return int(self.starts[-1])

    def cut(self, begin: int, end: int) -> Line:
        """Returns the part [begin, end) of the line; pieces at its borders are cut."""
        if begin >= end:
            return Line.of(self.slices.take(np.zeros(0, np.int64)), np.zeros(0, np.int64))
        lowest = int(np.searchsorted(self.starts, begin, side="right")) - 1
        highest = int(np.searchsorted(self.starts, end, side="left"))
        starts = self.starts[lowest:highest]
        first = self.slices.first[lowest:highest] + np.maximum(begin - starts, 0)
        last = np.minimum(self.slices.last[lowest:highest], self.slices.first[lowest:highest] + end - starts)
        return Line.of(Slices.trusted(self.slices.shard[lowest:highest], first, last), self.passes[lowest:highest])


class PieceFinder:
    """Finds the piece that holds a place on a line, in O(1) per place: a table narrows the search to a bucket.

    Args:
        starts: int64[n + 1], ascending: where each piece begins, and the end.
    """

    def __init__(self, starts: Int64Array) -> None:
        pieces = max(1, len(starts) - 1)
        length = max(1, int(starts[-1]))
        # About four buckets per piece: most buckets then lie inside one piece.
        self._bits = max(0, (length // (4 * pieces)).bit_length() - 1)
        buckets = (length >> self._bits) + 1
        self._starts = starts
        if len(starts) == 2:
            return
        edges = np.arange(buckets + 1, dtype=np.int64) << self._bits
        found = np.searchsorted(starts, edges, side="right") - 1
        found = np.minimum(found, pieces - 1).astype(np.int32)  # [buckets + 1]
        self._table = found[:-1]
        self._crowded = found[1:] - found[:-1] > 1  # more than one border inside the bucket

    def find(self, places: Int64Array) -> Int32Array:
        """Returns int32[n]: the piece of each place, int64[n]."""
        if len(self._starts) == 2:
            return np.zeros(len(places), np.int32)
        buckets = places >> self._bits
        pieces: Int32Array = self._table[buckets]
        pieces += places >= self._starts[pieces + 1]
        crowded = np.flatnonzero(self._crowded[buckets])
        if len(crowded):
            pieces[crowded] = np.searchsorted(self._starts, places[crowded], side="right") - 1
        return pieces


class EpochOrder:
    """The samples of one stream in one epoch, in order; every one of them once.

    Args:
        line: What the stream reads in this epoch.
        lanes: How many equal stretches of the line are read in turn, at least 1.
        window: Size of the window of the sample shuffle; 1 or less is none.
        window_in_slice: Shuffle inside each piece of the line, before the lanes, instead of over the whole order.
        key: Names the random numbers.
    """

    def __init__(self, line: Line, lanes: int, window: int, window_in_slice: bool, key: tuple[int, ...]) -> None:
        self._line = line
        self._length = line.length
        self._lanes = max(1, min(lanes, len(line.slices)))
        self._window = window
        self._in_slice = window_in_slice and window > 1
        self._key = key
        self._shuffle = WindowShuffle(self._length, 1 if window_in_slice else window, *key)
        self._finder = PieceFinder(line.starts)
        self._piece_shuffles: OrderedDict[int, WindowShuffle] = OrderedDict()
        self._chunk_start = 0
        self._chunk: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return self._length

    def samples(self, start: int, stop: int) -> tuple[Int32Array, Int64Array, Int64Array]:
        """Returns the samples at positions start ... stop - 1.

        Args:
            start: First position, at least 0.
            stop: Position behind the last, at most the length.

        Returns:
            (int32[k] shards, int64[k] indices inside the shards, int64[k] passes over the data). A sample that comes
            several times, in one epoch or in several, has another pass each time.

        Raises:
            IndexError: The range leaves the epoch.
        """
        if not 0 <= start <= stop <= self._length:
            raise IndexError(
                f"Positions {start} to {stop} leave an epoch of {self._length} samples: "
                "give 0 <= start <= stop <= length."
            )
        places = self._shuffle.places(start, stop)
        if self._lanes > 1:
            short, longer = divmod(self._length, self._lanes)
            offsets, lanes = np.divmod(places, self._lanes)
            places = lanes * short + np.minimum(lanes, longer) + offsets
        pieces = self._finder.find(places)
        places -= self._line.starts[pieces]
        if self._in_slice and len(places):
            self._shuffle_in_pieces(pieces, places)
        places += self._line.slices.first[pieces]
        return self._line.slices.shard[pieces], places, self._line.passes[pieces]

    def sample(self, position: int) -> tuple[int, int, int]:
        """Returns (shard, index inside the shard, pass over the data) at one position; cheap when read in order.

        Raises:
            IndexError: The position lies outside the epoch.
        """
        place = position - self._chunk_start
        if not 0 <= place < len(self._chunk):
            if not 0 <= position < self._length:
                raise IndexError(f"Position {position} lies outside an epoch of {self._length} samples.")
            columns = self.samples(position, min(self._length, position + _CHUNK))
            self._chunk = list(zip(*(column.tolist() for column in columns), strict=True))
            self._chunk_start, place = position, 0
        return self._chunk[place]

    def runs(self) -> list[tuple[int, int, int]] | None:
        """Returns the pieces (shard, first, last) that are read one after the other, or None.

        The order is made of runs when one lane is read at a time and the window stays inside a slice: the samples of
        a piece then come together, in file order without a window, and in the order of `samples` with one.
        """
        if self._lanes > 1 or (self._window > 1 and not self._in_slice):
            return None
        slices = self._line.slices
        return list(zip(slices.shard.tolist(), slices.first.tolist(), slices.last.tolist(), strict=True))

    def _shuffle_in_pieces(self, pieces: Int32Array, offsets: Int64Array) -> None:
        """Replaces offsets inside their pieces by the shuffled ones, in place."""
        by_piece = np.argsort(pieces, kind="stable")
        touched, begins = np.unique(pieces[by_piece], return_index=True)
        for piece, members in zip(touched.tolist(), np.split(by_piece, begins[1:]), strict=True):
            wanted = offsets[members]
            low = int(wanted.min())
            offsets[members] = self._piece_shuffle(piece).places(low, int(wanted.max()) + 1)[wanted - low]

    def _piece_shuffle(self, piece: int) -> WindowShuffle:
        known = self._piece_shuffles.get(piece)
        if known is None:
            length = int(self._line.starts[piece + 1] - self._line.starts[piece])
            known = self._piece_shuffles[piece] = WindowShuffle(length, self._window, *self._key, piece)
            if len(self._piece_shuffles) > self._lanes + 1:
                self._piece_shuffles.popitem(last=False)
        return known
