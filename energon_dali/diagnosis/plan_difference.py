"""How the steps of a job differ between two configurations: which samples come, go, or move to another rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from energon_dali.diagnosis.step_plan import PlannedBatch, PlannedSample, StepPlan


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
    moved: int
    """Samples that both have, on another rank or at another position."""

    @property
    def is_same(self) -> bool:
        """Whether the step holds the same samples, on the same ranks, in the same order."""
        return not (self.only_first or self.only_second or self.moved)


def differences(first: StepPlan, second: StepPlan) -> Iterator[StepDifference]:
    """Yields the difference of each step that one of two plans has."""
    left, right = _by_step(first), _by_step(second)
    one, two = next(left, None), next(right, None)
    while one is not None or two is not None:
        step = min(item[0] for item in (one, two) if item is not None)
        mine, other = (item[1] if item is not None and item[0] == step else [] for item in (one, two))
        yield _difference(step, mine, other)
        if one is not None and one[0] == step:
            one = next(left, None)
        if two is not None and two[0] == step:
            two = next(right, None)


def _by_step(plan: StepPlan) -> Iterator[tuple[int, list[PlannedBatch]]]:
    for step, batches in groupby(plan, key=lambda batch: batch.step):
        yield step, list(batches)


def _difference(step: int, first: list[PlannedBatch], second: list[PlannedBatch]) -> StepDifference:
    mine = [(batch.rank, sample) for batch in first for sample in batch.samples]
    other = [(batch.rank, sample) for batch in second for sample in batch.samples]
    gone = Counter(sample.identity for _, sample in mine)
    new = Counter(sample.identity for _, sample in other)
    both = sum((gone & new).values())
    at_same = sum(
        rank == rank_of_other and sample.identity == other_sample.identity
        for (rank, sample), (rank_of_other, other_sample) in zip(mine, other, strict=False)
    )
    only_first, only_second = _left_over(mine, gone - new), _left_over(other, new - gone)
    return StepDifference(step, len(mine), len(other), only_first, only_second, both - at_same)


def _left_over(samples: list[tuple[int, PlannedSample]], wanted: Counter[tuple[str, int]]) -> tuple[PlannedSample, ...]:
    left = Counter(wanted)
    found = []
    for _, sample in samples:
        if left[sample.identity] > 0:
            left[sample.identity] -= 1
            found.append(sample)
    return tuple(found)
