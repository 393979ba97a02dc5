"""Which element of a shuffle buffer is drawn next, and which ones it holds, as functions of the number of draws.

Elements are numbered as they are read. A draw empties a slot, and the next element that is read fills it. While the
buffer grows, a draw takes any slot, and one more element opens a new slot. After that, the draws visit the slots in
rounds, each round in its own random order. So no element stays longer than two rounds, and the content of the buffer is
known without replaying the draws.
"""

from __future__ import annotations

import numpy as np

from energon_dali.plan.rng import Int64Array, permutation, uniform

_GROWTH, _ROUND, _REST = 0, 1, 2


class BufferOrder:
    """The draws from a buffer of `size` slots.

    Args:
        size: Number of slots of the full buffer, at least 1.
        first: Number of elements that are read before the first draw, 1 <= first <= size.
        *key: Integers that identify the order.
    """

    def __init__(self, size: int, first: int, *key: int) -> None:
        self.size = size
        self.first = first
        self.growth = size - first
        """Number of draws during which the buffer grows."""
        self._key = key
        self._round: tuple[int, list[int]] = (-1, [])
        self._growth_slots: list[int] | None = None

    def slot(self, draw: int) -> int:
        """Returns which slot a draw empties.

        Args:
            draw: Number of the draw, at least 0.
        """
        if draw < self.growth:
            return self._grown()[draw]
        number, step = divmod(draw - self.growth, self.size)
        if self._round[0] != number:
            self._round = (number, self._slots(number).tolist())
        return self._round[1][step]

    def _grown(self) -> list[int]:
        if self._growth_slots is None:
            draws = uniform(0, self.growth, *self._key, _GROWTH)
            slots: Int64Array = (draws * (self.first + np.arange(self.growth))).astype(np.int64)
            self._growth_slots = slots.tolist()
        return self._growth_slots

    def _slots(self, number: int) -> Int64Array:
        """Returns the order in which a round empties the slots."""
        return permutation(self.size, *self._key, _ROUND, number)

    def num_read(self, draw: int) -> int:
        """Returns how many elements are read before a draw, if the data does not end."""
        return self.first + draw + min(draw, self.growth)

    def oldest(self, draw: int) -> int:
        """Returns a lower bound of the numbers of the elements that the buffer holds before a draw.

        It changes once per round, so that states have to be kept for few elements only.
        """
        rounds = (draw - self.growth) // self.size
        return 0 if rounds < 1 else self.num_read(self.growth + (rounds - 1) * self.size)

    def is_oldest(self, number: int) -> bool:
        """Returns whether `oldest` gives this number for some draw."""
        after = number - self.num_read(self.growth)
        return number == 0 or (after >= 0 and after % self.size == 0)

    def contents(self, draw: int) -> Int64Array:
        """Returns the number of the element in each slot before a draw, if the data does not end.

        Returns:
            int64[slots], all different.
        """
        grown = min(draw, self.growth)
        numbers = np.arange(self.first, dtype=np.int64).tolist()
        for step, slot in enumerate(self._grown()[:grown] if grown else []):
            numbers[slot] = self.first + 2 * step
            numbers.append(self.first + 2 * step + 1)
        held: Int64Array = np.array(numbers, np.int64)
        if draw > self.growth:
            number, step = divmod(draw - self.growth, self.size)
            for n, length in ((number - 1, self.size), (number, step)):
                if n >= 0:
                    begin = self.num_read(self.growth + n * self.size)
                    held[self._slots(n)[:length]] = np.arange(begin, begin + length)
        return held

    def rest(self, count: int) -> Int64Array:
        """Returns the order in which the last elements are drawn when the data has ended: a permutation.

        Args:
            count: How many there are.
        """
        return permutation(count, *self._key, _REST)
