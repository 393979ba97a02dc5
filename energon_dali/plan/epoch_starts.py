"""Where the epochs of many plans start, computed together for the small sources of a large job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from energon_dali.plan.plan import Plan
from energon_dali.plan.repeated import RepeatedPlan
from energon_dali.plan.rng import Int64Array
from energon_dali.plan.source import SourcePlan

_MOST = 1 << 62
"""Numbers below this one are computed with 64 bits."""


def dealt_source(plan: Plan) -> SourcePlan | None:
    """Returns the source whose samples a plan deals to the streams one by one; None if it does not."""
    source = plan.passes if isinstance(plan, RepeatedPlan) else plan
    return source if isinstance(source, SourcePlan) and source.is_dealt else None


class EpochStarts:
    """The position of a stream in each of several plans where an epoch starts.

    In a large job an epoch of a stream has few rows, so that epochs begin often.

    Args:
        plans: Plans that end.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans
        sources = [dealt_source(plan) for plan in plans]
        self._others = [number for number, source in enumerate(sources) if source is None]
        self._dealt = [number for number, source in enumerate(sources) if source is not None]
        dealt = [source for source in sources if source is not None]
        rates = [plans[number].rates for number in self._dealt]
        totals = [source.samples_per_epoch for source in dealt]
        most = max((whole + numerator // denominator + 2 for whole, numerator, denominator in rates), default=1)
        share = max((max(numerator, denominator) for _, numerator, denominator in rates), default=1)
        total = max((1, *totals))
        self._most_epochs = _MOST // (most * total * share) - 2
        """Later epochs lead to products that need more than 64 bits."""
        if not dealt or self._most_epochs <= 0:
            self._others = list(range(len(plans)))
            return
        self._num_streams = dealt[0].num_streams
        self._totals = np.array(totals, np.int64)
        self._turns = np.array([source.range_offset for source in dealt], np.int64)
        self._whole, self._numerator, self._denominator = np.array(rates, np.int64).reshape(-1, 3).T
        self._has_parts = bool(self._numerator.any())

    def at(self, epoch: int, stream: int) -> list[int]:
        """Returns where an epoch of a stream starts in each plan.

        Args:
            epoch: At least 0.
            stream: Number of the stream.
        """
        if len(self._others) == len(self._plans) or epoch >= self._most_epochs:
            return [plan.epoch_start(epoch, stream) for plan in self._plans]
        starts: list[int] = self._dealt_starts(epoch, stream).tolist()
        if not self._others:
            return starts
        found = [0] * len(self._plans)
        for number, start in zip(self._dealt, starts, strict=True):
            found[number] = start
        for number in self._others:
            found[number] = self._plans[number].epoch_start(epoch, stream)
        return found

    def _dealt_starts(self, epoch: int, stream: int) -> Int64Array:
        """Returns what `RepeatedPlan.epoch_start` and `SourcePlan.pass_start` do, for all plans."""
        streams, totals, whole = self._num_streams, self._totals, self._whole
        turns = (stream + self._turns) % streams
        begun = epoch * whole
        starts: Int64Array
        if not self._has_parts:
            starts = -((turns - begun * totals) // streams)
            return starts
        shared = epoch * self._numerator
        begun = begun - (-shared // self._denominator)
        starts = -((turns - begun * totals) // streams)
        partial, rest = np.divmod(shared, self._denominator)
        numbers = (partial * self._denominator // np.maximum(self._numerator, 1) + 1) * whole + partial
        lengths = (turns - numbers * totals) // streams - (turns - (numbers + 1) * totals) // streams
        parts = rest * totals // self._denominator
        taken = parts // streams + ((turns - numbers * totals) % streams < parts % streams)
        starts -= np.where(rest > 0, lengths - taken, 0)
        return starts
