"""Iterators that pass elements of others on as they are, in an order that numbers alone decide."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from energon_dali.datasets.planned import Planned, joined
from energon_dali.datasets.stream import StreamIterator, WrapperIterator

Move = Callable[[int, int], int]
"""Moves (a member, by a number of its elements), and returns by how many; fewer if the member's epoch ended."""


class PassingIterator(StreamIterator[Any]):
    """The elements of one or several iterators, its members.

    `_pass` is the one place where a subclass decides on their order: elements are taken, skipped and planned by it.
    """

    _element: Any = None

    @abstractmethod
    def _pass(self, count: int, move: Move) -> int:
        """Moves members by elements, in order; returns by how many, fewer if the epoch ended.

        Args:
            count: Number of elements, at least 0.
            move: Takes, skips or plans elements of a member.
        """

    @abstractmethod
    def _member(self, number: int) -> StreamIterator[Any]:
        """Returns a member, which is about to move."""

    def _take(self, number: int, _: int = 1) -> int:
        """Takes the next element of a member; returns 1, or 0 if its epoch ended."""
        try:
            self._element = next(self._member(number))
        except StopIteration:
            return 0
        return 1

    def __next__(self) -> Any:
        if not self._pass(1, self._take):
            raise StopIteration
        element, self._element = self._element, None
        return element

    def skip(self, count: int) -> int:
        return self._pass(count, lambda number, wanted: self._member(number).skip(wanted))

    def plan(self, count: int) -> Planned:
        parts: list[Planned] = []

        def move(number: int, wanted: int) -> int:
            parts.append(self._member(number).plan(wanted))
            return len(parts[-1])

        self._pass(count, move)
        return joined(parts)


class PassingWrapperIterator(PassingIterator, WrapperIterator[Any]):
    """The elements of the iterator below; its only member has the number 0."""

    def _member(self, number: int) -> StreamIterator[Any]:
        return self._inner
