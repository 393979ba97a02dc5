"""Which of several sequences each draw takes, in counts that are known in closed form at any position.

Draws come in groups, which are shuffled. Group n has F(d, n) - F(d - 1, n) draws of sequence d, with

    F(d, n) = (S(d) + y(n)) // m,    y(n) = (a n + b) mod m,

where S(d) / m is the cumulated share of the sequences 0 ... d in a group. F does not fall with d, so no count is
negative; the counts of a group sum to F of the last sequence; and sums over groups are sums of floors of a linear
function, which take O(log m). An odd a near 0.618 m spreads the draws of rare sequences evenly over the groups. Where
shares move from group to group, S(d, n) = S(d) + n T(d), and the functions are still linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from energon_dali.plan.rng import Int64Array, mix, raw_words, sort_to_permutations

_GOLDEN_RATIO = 0.6180339887498949


def floor_sum(count: int, modulus: int, factor: int, offset: int) -> int:
    """Returns the sum of (factor * n + offset) // modulus over n = 0 ... count - 1, by Euclid's algorithm.

    Args:
        count: At least 0.
        modulus: At least 1.
        factor: Any number.
        offset: At least 0.
    """
    total = 0
    if factor < 0:  # the floors of a function that rises, less whole numbers
        falls = -(factor // modulus)
        total, factor = -falls * (count * (count - 1) // 2), factor + falls * modulus
    while True:
        total += count * (count - 1) // 2 * (factor // modulus) + count * (offset // modulus)
        factor, offset = factor % modulus, offset % modulus
        highest = factor * count + offset
        if highest < modulus:
            return total
        count, offset = divmod(highest, modulus)
        factor, modulus = modulus, factor


class Draws:
    """Draws from sequences 0 ... D - 1, in groups.

    Args:
        cumulated: S(d): D numbers that do not fall.
        modulus: m; the last S(d) / m is the mean size of a group.
        key: Integers that identify the random order.
        slopes: T(d): by how much each S(d) changes from group to group; 0 for the last. None if they do not change. In
            the groups that are drawn from, no S(d) may be less than the one before it.
    """

    def __init__(
        self, cumulated: Sequence[int], modulus: int, key: tuple[int, ...], slopes: Sequence[int] | None = None
    ) -> None:
        self._cumulated = list(cumulated)
        self._slopes = [0] * len(self._cumulated) if slopes is None else list(slopes)
        self._slope_sums = np.array(self._slopes, np.int64)
        self._sums = np.array(self._cumulated, np.int64)
        self._modulus = modulus
        factor = max(1, round(modulus * _GOLDEN_RATIO)) | 1
        while math.gcd(factor, modulus) > 1:
            factor += 2
        self._factor = factor % modulus if modulus > 1 else 0
        self._offset = mix(*key, 0) % modulus
        self._words = (*key, 1)
        self._largest = -(-self._cumulated[-1] // modulus)
        """Size of the largest groups."""
        self._last: tuple[int, Int64Array] = (0, np.zeros(len(self._cumulated), np.int64))
        """(the last group that was drawn from, draws of each sequence before it): the next draws are near."""

    def before(self, group: int) -> Int64Array:
        """Returns int64[D]: how many draws of each sequence the groups before a group have."""
        return np.diff(self._sum_before(group), prepend=0)

    def _sum_before(self, group: int) -> Int64Array:
        base = floor_sum(group, self._modulus, self._factor, self._offset)
        found, last, value = [], (-1, 0), 0
        for cumulated, slope in zip(self._cumulated, self._slopes, strict=True):
            if (cumulated, slope) != last:
                last = cumulated, slope
                value = floor_sum(group, self._modulus, self._factor + slope, self._offset + cumulated) - base
            found.append(value)
        return np.array(found, np.int64)

    def rows_before(self, group: int) -> int:
        """Returns how many draws the groups before a group have."""
        base = floor_sum(group, self._modulus, self._factor, self._offset)
        return floor_sum(group, self._modulus, self._factor, self._offset + self._cumulated[-1]) - base

    def group_of(self, draw: int) -> int:
        """Returns the group of a draw."""
        group = draw * self._modulus // max(1, self._cumulated[-1])
        while group and self.rows_before(group) > draw:
            group -= 1
        while self.rows_before(group + 1) <= draw:
            group += 1
        return group

    def counts(self, draws: int) -> Int64Array:
        """Returns int64[D]: how many of the first draws each sequence has."""
        if not draws:
            return np.zeros(len(self._cumulated), np.int64)
        taken, before = self.take(draws - 1, draws)
        return before + np.bincount(taken, minlength=len(before))

    def take(self, start: int, stop: int) -> tuple[Int64Array, Int64Array]:
        """Returns which sequences the draws start ... stop - 1 take.

        Returns:
            (int64[stop - start] numbers of sequences, int64[D] draws of each sequence before the first of them).
        """
        group = self.group_of(start)
        last = self.group_of(max(start, stop - 1))
        known, before = self._last
        if known != group:
            before = self.before(group)
        skipped = start - self.rows_before(group)
        if group == last:
            taken = self._drawn_in(group)
            self._last = group, before
        else:
            taken, counts = self._drawn_from(group, last)
            self._last = last, before + counts
        before = before + np.bincount(taken[:skipped], minlength=len(before))
        return taken[skipped : skipped + stop - start], before

    def _drawn_in(self, group: int) -> Int64Array:
        """Returns the draws of one group, in order. In a large job, an epoch of a stream is one."""
        phase = (self._factor * group + self._offset) % self._modulus
        ends = (self._sums + self._slope_sums * group + phase) // self._modulus
        counts = ends.copy()
        counts[1:] -= ends[:-1]
        size = int(ends[-1])
        if not size:
            return np.zeros(0, np.int64)
        places = sort_to_permutations(raw_words(group * self._largest, size, *self._words))
        drawn: Int64Array = np.repeat(np.arange(len(counts)), counts)[places.view(np.int64)]
        return drawn

    def _drawn_from(self, group: int, last: int) -> tuple[Int64Array, Int64Array]:
        """Returns (the draws of the groups group ... last, how many of each sequence the ones before the last have)."""
        numbers = np.arange(group, last + 1, dtype=np.int64)
        # Python's integers for the products: the modulus may have forty bits.
        phases = np.array([(self._factor * n + self._offset) % self._modulus for n in numbers.tolist()], np.int64)
        sums = self._sums + self._slope_sums * numbers[:, None]  # [groups, D]
        counts = np.diff((sums + phases[:, None]) // self._modulus, prepend=0, axis=1)  # [groups, D]
        sizes = counts.sum(axis=1)
        ordered = np.repeat(np.tile(np.arange(counts.shape[1]), len(numbers)), counts.reshape(-1))
        return self._shuffled(ordered, group, sizes), counts[:-1].sum(axis=0)

    def _shuffled(self, ordered: Int64Array, group: int, sizes: Int64Array) -> Int64Array:
        """Returns the draws of groups, each shuffled on its own."""
        words = raw_words(group * self._largest, len(sizes) * self._largest, *self._words)
        rows = words.reshape(len(sizes), self._largest)
        taken = np.empty(len(ordered), np.int64)
        full = sizes == self._largest
        starts = np.cumsum(sizes) - sizes
        for size in dict.fromkeys(sizes.tolist()):
            chosen = np.flatnonzero(full if size == self._largest else sizes == size)
            if not size:
                continue
            places = sort_to_permutations(np.ascontiguousarray(rows[chosen, :size])).astype(np.int64)
            targets = starts[chosen, None] + np.arange(size)
            taken[targets.reshape(-1)] = ordered[(starts[chosen, None] + places).reshape(-1)]
        return taken
