"""Weights of a metadataset that change over the steps or samples of a job."""

from __future__ import annotations

from dataclasses import dataclass, field

from energon_dali.errors import ConfigError
from energon_dali.metadataset.document import Node
from energon_dali.metadataset.schema import WeightsRecord
from energon_dali.plan.scheduled import OVER, Over
from energon_dali.shards.documents.content import excerpt

_MOST_DIGITS = 12


@dataclass
class Moment:
    """The step or sample for which the weights of a metadataset are wanted.

    Weights that hold jump at their points. `is_before` takes those from just before a point.
    """

    at: int = 0
    """The step or sample, from the beginning of the job."""
    is_before: bool = False
    """Whether a jump at this point has not happened yet."""
    changes: set[int] = field(default_factory=set)
    """Takes the steps or samples at which weights change, or change their slope."""
    over: Over | None = None
    """Takes what the points count; None if no weight changes."""
    unsaid: Node | None = None
    """Takes a weight that does not say what its points count; None if all do."""
    moves: bool = False
    """Set if a weight moves linearly after this point."""

    def weight(self, given: float | WeightsRecord, node: Node) -> float:
        """Returns a weight.

        Args:
            given: As the metadataset has it.
            node: Where.

        Raises:
            DatasetFormatError: There are no points, points of both kinds, none at 0, or they count something else than
                those of other weights.
            ConfigError: They count what nothing measures.
        """
        if not isinstance(given, WeightsRecord):
            return float(given)
        texts = given.step if given.linear is None else given.linear
        if not texts or (given.step is not None and given.linear is not None):
            raise node.error("a weight over time has either step or linear, a mapping of steps to weights.")
        one = self._over_of(given, node)[:-1]
        wrong = [text for text in texts if not text.isascii() or not text.isdecimal() or len(text) > _MOST_DIGITS]
        if wrong:
            raise node.error(f"{excerpt(wrong[0])} is not a {one} of the job: give a whole number of at least 0.")
        points = {int(text): weight for text, weight in texts.items()}
        places = sorted(points)
        if places[0]:
            raise node.error(f"a weight over time begins at {one} 0, and the first here is {places[0]}.")
        self.changes.update(places)
        last = max((at for at in places if at < self.at or (at == self.at and not self.is_before)), default=0)
        after = next((at for at in places if at > last), None)
        if given.linear is None or after is None:
            return points[last]
        self.moves = self.moves or (not self.is_before and points[after] != points[last])
        return points[last] + (points[after] - points[last]) * (self.at - last) / (after - last)

    def _over_of(self, given: WeightsRecord, node: Node) -> Over:
        """Returns what the points of a weight count, and notes it."""
        if given.over == "tokens":
            raise ConfigError(
                f"{node.at('over').location}: weights over tokens need the lengths of samples before they are read, "
                "and this version does not measure them. Write `over: samples` or `over: steps`."
            )
        over: Over = "steps"
        if given.over is None:
            self.unsaid = self.unsaid or node
        else:
            known = [one for one in OVER if one == given.over]
            if not known:
                raise node.at("over").error(f"{excerpt(given.over)} cannot be counted here: write {' or '.join(OVER)}.")
            (over,) = known
        if self.over not in (None, over):
            raise node.error(
                f"this weight changes over {over}, and another one over {self.over}. Write the same `over` at all of "
                "them; without it, the points are steps."
            )
        self.over = over
        return over
