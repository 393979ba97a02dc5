"""How two plans of the same steps differ: which samples come at another step, come newly, or no longer come."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from energon_dali.diagnosis.step_plan import PlannedBatch, PlannedSample, StepPlan

Identity = tuple[str, int]
"""(dataset, number in it) of a sample."""


@dataclass(frozen=True, slots=True)
class StepDifference:
    """The difference of one step over all ranks."""

    step: int
    """Number of the step."""
    num_first: int
    """Samples of the step in the first plan."""
    num_second: int
    """Samples of the step in the second plan."""
    only_first: tuple[PlannedSample, ...]
    """Samples that only the first plan has in this step."""
    only_second: tuple[PlannedSample, ...]
    """Samples that only the second plan has in this step."""
    reordered: int
    """Samples that both have in this step, on another rank or at another place."""

    @property
    def is_same(self) -> bool:
        """Whether the step holds the same samples, on whatever ranks."""
        return not (self.only_first or self.only_second)


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """What the difference between two plans does to their samples, over all compared steps.

    A sample that comes several times counts as often as it comes.
    """

    num_steps: int
    """Steps that one of the plans has."""
    num_same_steps: int
    """Steps that hold the same samples in both."""
    num_first: int
    """Samples of the first plan."""
    num_second: int
    """Samples of the second plan."""
    moved: int
    """Samples that both have, at different steps."""
    gone: int
    """Samples that only the first plan has."""
    new: int
    """Samples that only the second plan has."""
    reordered: int
    """Samples that both have at the same step, on another rank or at another place of it."""

    @property
    def kept(self) -> int:
        """Samples that both plans have at the same step."""
        return self.num_first - self.moved - self.gone

    @property
    def changed_share(self) -> float:
        """Share of the samples of the larger plan that are moved, gone or new, 0 to 1; 0 only if there are none."""
        most = max(self.num_first, self.num_second)
        return (most - self.kept) / most if most else 0.0

    def share_of(self, count: int) -> float:
        """Returns a number of samples as a share of those of the larger plan, 0 to 1."""
        return count / max(1, self.num_first, self.num_second)


class PlanComparison:
    """Compares two plans step by step. Iterate it once; `summary` says what was found up to there.

    Args:
        first: A plan.
        second: The same steps of another job, or of other data.
    """

    def __init__(self, first: StepPlan, second: StepPlan) -> None:
        self._first, self._second = first, second
        self.notes = list(dict.fromkeys([*first.notes, *second.notes]))
        """What the plans cannot predict, or had to do, in sentences."""
        self._left_over: tuple[Counter[Identity], Counter[Identity]] = (Counter(), Counter())
        """Samples of each plan that the same step of the other one lacks."""
        self._steps = self._same_steps = self._num_first = self._num_second = self._reordered = 0

    def __iter__(self) -> Iterator[StepDifference]:
        batches = heapq.merge(_numbered(self._first, 0), _numbered(self._second, 1), key=_step_of)
        for step, of_step in groupby(batches, key=_step_of):
            sides: tuple[list[PlannedBatch], list[PlannedBatch]] = ([], [])
            for side, batch in of_step:
                sides[side].append(batch)
            difference = _difference(step, *sides)
            self._add(difference)
            yield difference

    def _add(self, found: StepDifference) -> None:
        self._steps += 1
        self._same_steps += found.is_same
        self._num_first += found.num_first
        self._num_second += found.num_second
        self._reordered += found.reordered
        for samples, left_over in zip((found.only_first, found.only_second), self._left_over, strict=True):
            left_over.update(sample.identity for sample in samples)

    @property
    def summary(self) -> PlanDifference:
        """The difference over all steps that were iterated."""
        first, second = self._left_over
        moved = (first & second).total()
        return PlanDifference(
            self._steps,
            self._same_steps,
            self._num_first,
            self._num_second,
            moved,
            first.total() - moved,
            second.total() - moved,
            self._reordered,
        )


def _numbered(plan: StepPlan, side: int) -> Iterator[tuple[int, PlannedBatch]]:
    return ((side, batch) for batch in plan)


def _step_of(numbered: tuple[int, PlannedBatch]) -> int:
    return numbered[1].step


def _difference(step: int, first: list[PlannedBatch], second: list[PlannedBatch]) -> StepDifference:
    mine = [(batch.rank, sample) for batch in first for sample in batch.samples]
    other = [(batch.rank, sample) for batch in second for sample in batch.samples]
    gone = Counter(sample.identity for _, sample in mine)
    new = Counter(sample.identity for _, sample in other)
    both = (gone & new).total()
    at_same = sum(
        rank == rank_of_other and sample.identity == other_sample.identity
        for (rank, sample), (rank_of_other, other_sample) in zip(mine, other, strict=False)
    )
    only_first, only_second = _left_over(mine, gone - new), _left_over(other, new - gone)
    return StepDifference(step, len(mine), len(other), only_first, only_second, both - at_same)


def _left_over(samples: list[tuple[int, PlannedSample]], wanted: Counter[Identity]) -> tuple[PlannedSample, ...]:
    left = Counter(wanted)
    found = []
    for _, sample in samples:
        if left[sample.identity] > 0:
            left[sample.identity] -= 1
            found.append(sample)
    return tuple(found)
