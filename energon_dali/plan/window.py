"""A shuffle over a window of samples that holds no samples: two rounds of permutations within tiles.

The first round permutes the tiles [0, W), [W, 2W), ...; the second permutes tiles that are shifted by half a tile, so
that samples cross the borders of the first. Each round is a bijection for every length, and so is the whole.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from energon_dali.plan.rng import Int64Array, raw_words, sort_to_permutations

_GROUP_POSITIONS = 65_536
"""Small tiles are computed in groups of about this many positions."""


class WindowShuffle:
    """A random bijection of 0 ... length - 1 that moves a position by less than twice the window.

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
