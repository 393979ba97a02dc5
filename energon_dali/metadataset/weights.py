"""Weights of a metadataset that change over the steps of a job."""

from __future__ import annotations

from dataclasses import dataclass, field

from energon_dali.metadataset.document import Node
from energon_dali.metadataset.schema import WeightsRecord
from energon_dali.shards.documents.content import excerpt

_MOST_DIGITS = 12


@dataclass
class Moment:
    """The step for which the weights of a metadataset are wanted.

    Weights that hold jump at their steps. `is_before` takes those from just before the step.
    """

    step: int = 0
    """The step, from the beginning of the job."""
    is_before: bool = False
    """Whether a jump at the step has not happened yet."""
    changes: set[int] = field(default_factory=set)
    """Takes the steps at which weights change, or change their slope."""
    moves: bool = False
    """Set if a weight moves linearly after the step."""

    def weight(self, given: float | WeightsRecord, node: Node) -> float:
        """Returns a weight.

        Args:
            given: As the metadataset has it.
            node: Where.

        Raises:
            DatasetFormatError: There are no points, points of both kinds, or none at step 0.
        """
        if not isinstance(given, WeightsRecord):
            return float(given)
        texts = given.step if given.linear is None else given.linear
        if not texts or (given.step is not None and given.linear is not None):
            raise node.error("a weight over time has either step or linear, a mapping of steps to weights.")
        wrong = [text for text in texts if not text.isascii() or not text.isdecimal() or len(text) > _MOST_DIGITS]
        if wrong:
            raise node.error(f"{excerpt(wrong[0])} is not a step of the job: give a whole number of at least 0.")
        points = {int(text): weight for text, weight in texts.items()}
        steps = sorted(points)
        if steps[0]:
            raise node.error(f"a weight over time begins at step 0, and the first here is {steps[0]}.")
        self.changes.update(steps)
        last = max(
            (step for step in steps if step < self.step or (step == self.step and not self.is_before)), default=0
        )
        after = next((step for step in steps if step > last), None)
        if given.linear is None or after is None:
            return points[last]
        self.moves = self.moves or (not self.is_before and points[after] != points[last])
        return points[last] + (points[after] - points[last]) * (self.step - last) / (after - last)
