"""Which element of a shuffle buffer comes next, and which ones it holds, as functions of how many came before.

Elements are numbered as they are read. A draw empties a slot, and the next element read takes its place. While the
buffer grows, a draw takes any slot and a further element opens a new one; from then on the draws go over the slots in
rounds, each in an order of its own. So no element stays longer than two rounds, and what the buffer holds is known
without having watched it.
"""

from __future__ import annotations

import numpy as np

from energon_dali.plan.rng import Int64Array, permutation, uniform

_GROWTH, _ROUND, _REST = 0, 1, 2


class BufferOrder:
    """The draws from a buffer of `size` slots.

    Args:
        size: Slots of the full buffer, at least 1.
        first: Elements that are read before the first draw, 1 <= first <= size.
        *key: Whole numbers that name the order.
    """

    def __init__(self, size: int, first: int, *key: int) -> None:
        self.size = size
        self.first = first
        self.growth = size - first
        """Draws while which the buffer grows."""
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
        number, place = divmod(draw - self.growth, self.size)
        if self._round[0] != number:
            self._round = (number, self._slots(number).tolist())
        return self._round[1][place]

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
        """Returns how many elements are read before a draw, where the data does not end."""
        return self.first + draw + min(draw, self.growth)

    def oldest(self, draw: int) -> int:
        """Returns a number such that the buffer holds no element with a smaller one before a draw.

        It changes once per round, so that a state need be kept for few elements.
        """
        rounds = (draw - self.growth) // self.size
        return 0 if rounds < 1 else self.num_read(self.growth + (rounds - 1) * self.size)

    def is_oldest(self, number: int) -> bool:
        """Returns whether `oldest` gives this number for some draw."""
        behind = number - self.num_read(self.growth)
        return number == 0 or (behind >= 0 and behind % self.size == 0)

    def contents(self, draw: int) -> Int64Array:
        """Returns the number of the element in each slot before a draw, where the data does not end.

        Returns:
            int64[slots], all different.
        """
        grown = min(draw, self.growth)
        numbers = np.arange(self.first, dtype=np.int64).tolist()
        for place, slot in enumerate(self._grown()[:grown] if grown else []):
            numbers[slot] = self.first + 2 * place
            numbers.append(self.first + 2 * place + 1)
        held: Int64Array = np.array(numbers, np.int64)
        if draw > self.growth:
            number, place = divmod(draw - self.growth, self.size)
            for n, length in ((number - 1, self.size), (number, place)):
                if n >= 0:
                    begin = self.num_read(self.growth + n * self.size)
                    held[self._slots(n)[:length]] = np.arange(begin, begin + length)
        return held

    def rest(self, count: int) -> Int64Array:
        """Returns the order in which the last elements come when nothing more can be read: a permutation.

        Args:
            count: How many there are.
        """
        return permutation(count, *self._key, _REST)
