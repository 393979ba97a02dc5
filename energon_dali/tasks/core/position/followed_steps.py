"""Which of the batches that a trainer fetched went into the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class FetchedBatch:
    """A batch that the trainer fetched, and that the saved position does not contain yet."""

    batch: Any
    """Kept until the trainer takes it into a step; None afterwards."""
    position: Any
    """The loader's position after this batch."""


class FollowedSteps(ABC):
    """The part of a loader that follows a trainer which fetches batches before it trains on them.

    After `follow` the position is the one after the last batch that `trained` reported as part of an optimizer step.
    """

    def __init__(self) -> None:
        self._fetched: deque[FetchedBatch] = deque()
        self._taken = 0
        self._trained = 0
        self._blind = False
        self._position: Any = None

    @abstractmethod
    def delivered_position(self) -> Any:
        """Returns the position after the last batch that was handed out."""

    def follow(self) -> None:
        """From now on only those batches count as trained on that `trained` confirms."""
        if self._position is None:
            self._position = self.delivered_position()

    def take(self) -> None:
        """The trainer begins a step with the oldest batch that it fetched."""
        # A training_step that takes the iterator itself begins before anything was fetched.
        self._blind = self._taken == len(self._fetched)
        if not self._blind:
            self._fetched[self._taken].batch = None
            self._taken += 1

    def trained(self, *, stepped: bool) -> None:
        """The step that `take` began is done.

        Args:
            stepped: Whether the weights were changed; False while gradients are accumulated.
        """
        if self._blind:
            self._taken = len(self._fetched)
        self._trained = self._taken
        if stepped:
            for _ in range(self._trained):
                self._position = self._fetched.popleft().position
            self._taken = self._trained = 0

    @property
    def unsettled(self) -> int:
        """Batches trained on since the last step of the optimizer, which the position does not contain."""
        return self._trained

    def _untaken(self) -> list[FetchedBatch]:
        """Removes and returns the batches that were fetched and never taken, in their order."""
        untaken = [self._fetched.pop() for _ in range(len(self._fetched) - self._taken)]
        return untaken[::-1]
