"""Blends whose weights change over the steps of a job: constant from a step on, or moving linearly between two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.draws import Draws
from energon_dali.plan.mixtures import GROUP_DRAWS, MODULUS, Mixture
from energon_dali.plan.plan import MOST_ROWS, Plan, Rows, described
from energon_dali.plan.rng import SCHEDULE, Int64Array, mix

_WHOLE = GROUP_DRAWS * MODULUS


@dataclass(frozen=True)
class WeightPoint:
    """Weights that hold from a step on."""

    step: int
    """The step, from the beginning of the job."""
    weights: tuple[float, ...]
    """One per plan, finite and at least 0. They need not sum to 1."""
    towards: WeightPoint | None = None
    """A later point, to whose shares these move linearly, step by step; None holds them."""

    def shares(self, step: float) -> list[float]:
        """Returns the shares of the plans at a step that is not before this one; they sum to 1."""
        here = _normalised(self.weights)
        if self.towards is None:
            return here
        part = min(1.0, (step - self.step) / (self.towards.step - self.step))
        return [a + (b - a) * part for a, b in zip(here, _normalised(self.towards.weights), strict=True)]


@dataclass(frozen=True)
class Schedule:
    """Weights over the steps of a job.

    Raises:
        ConfigError: There is no point at step 0, the steps do not rise, or weights cannot work.
    """

    points: tuple[WeightPoint, ...]
    """At least one; the first at step 0."""

    def __post_init__(self) -> None:
        steps = [point.step for point in self.points]
        if not steps or steps[0] != 0 or any(a >= b for a, b in pairwise(steps)):
            raise ConfigError(f"The weights change at the steps {steps}: begin with step 0, and let the steps rise.")
        for point in [*self.points, *(point.towards for point in self.points if point.towards is not None)]:
            good = all(math.isfinite(weight) and weight >= 0 for weight in point.weights)
            if not good or not any(point.weights) or len(point.weights) != len(self.points[0].weights):
                raise ConfigError(
                    f"The weights {list(point.weights)} from step {point.step} on are invalid: give "
                    f"{len(self.points[0].weights)} finite numbers of at least 0, at least one of them positive."
                )

    @classmethod
    def linear(cls, *points: tuple[int, Sequence[float]]) -> Schedule:
        """Returns the schedule whose shares move from point to point, and hold from the last one on.

        Args:
            *points: Pairs (step, weights), the first at step 0.
        """
        made: list[WeightPoint] = []
        for step, weights in reversed(points):
            after = replace(made[-1], towards=None) if made else None
            made.append(WeightPoint(step, tuple(weights), after))
        return cls(tuple(reversed(made)))

    def as_plain(self) -> list[list[object]]:
        """Returns the points as lists [step, shares] or [step, shares, later step, its shares]."""
        plain: list[list[object]] = []
        for point in self.points:
            row: list[object] = [point.step, _normalised(point.weights)]
            if point.towards is not None:
                row += [point.towards.step, _normalised(point.towards.weights)]
            plain.append(row)
        return plain

    def changed(self, step: int, weights: Sequence[float]) -> Schedule:
        """Returns the schedule with other weights from a step on, whatever it said of later ones."""
        before = [point for point in self.points if point.step < step]
        if not before:
            return Schedule((WeightPoint(0, tuple(weights)),))
        return Schedule((*before, WeightPoint(step, tuple(weights))))

    def shares(self, step: float) -> list[float]:
        """Returns the shares of the plans at a step; they sum to 1."""
        return next(point for point in reversed(self.points) if point.step <= step).shares(step)


def _normalised(weights: Sequence[float]) -> list[float]:
    largest = max(weights)
    scaled = [weight / largest for weight in weights]
    total = math.fsum(scaled)
    return [weight / total for weight in scaled]


@dataclass(frozen=True)
class Base:
    """From where on the units of a schedule are counted: a job with steps of another size continues from a new one."""

    step: int = 0
    """A step."""
    unit: int = 0
    """Its first unit."""
    drawn_from: int = 0
    """The unit with which the draws begin that are made there: weights that hold go on as they began."""
    counts: tuple[int, ...] = ()
    """Rows of each plan before that one; empty for none."""


FIRST = Base()
"""That of a new job."""


@dataclass(frozen=True)
class _Segment:
    """Draws whose shares are constant, or move linearly."""

    start: int
    """First unit."""
    stop: int
    """Unit after the last."""
    draws: Draws
    """Which plan each of them takes; the first is number 0."""


@dataclass(frozen=True)
class ScheduledBlendPlan(Mixture):
    """Rows of endless plans, drawn in proportion to weights that change over the steps of a job.

    The plan has a single stream. Its draws come in groups, as those of a `BlendPlan`; a point of the schedule begins a
    new group. Counts are sums of floors of linear functions also where shares move, so any position is reached at once.

    Raises:
        ConfigError: A plan ends or has several streams, or the schedule has not one weight per plan.
    """

    schedule: Schedule
    """Weights over steps."""
    seed: int
    """Seed of the draws."""
    step_size: int
    """Units per step from the base on."""
    base: Base = FIRST
    """From where on steps have this size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_streams != 1:
            raise ConfigError("Weights that change over time need global batches: give global_batch_size.")
        if len(self.schedule.points[0].weights) != len(self.members):
            raise ConfigError(
                f"{len(self.schedule.points[0].weights)} weights were given for {len(self.members)} plans: give one "
                "each."
            )
        if any(not member.is_endless for member in self.members):
            raise ConfigError("ScheduledBlendPlan was given a plan that ends. Blend plans that repeat.")

    @property
    def is_endless(self) -> bool:
        return True

    def epoch_start(self, epoch: int, stream: int = 0) -> int:
        return 0

    def at_position(self, number: int) -> Plan:
        return replace(self, members=self._members_at(number), seed=mix(self.seed, number))

    def unit_of(self, step: int) -> int:
        """Returns the first unit of a step, from the base on."""
        return self.base.unit + (step - self.base.step) * self.step_size

    @cached_property
    def _segments(self) -> list[_Segment]:
        segments: list[_Segment] = []
        points = self.schedule.points
        for number, point in enumerate(points):
            after = points[number + 1].step if number + 1 < len(points) else None
            if after is None or after > self.base.step:
                start = self.base.drawn_from if point.step <= self.base.step else self.unit_of(point.step)
                segments += self._parts(start, MOST_ROWS if after is None else self.unit_of(after), point)
        return segments

    def _parts(self, start: int, stop: int, point: WeightPoint) -> list[_Segment]:
        """Returns the segments from a unit to another, between which the weights of a point hold or move."""
        key = (SCHEDULE, self.seed, start)
        first = _as_integers(self._shares_at(start, point))
        if point.towards is None:
            return [_Segment(start, stop, Draws(np.cumsum(first).tolist(), MODULUS, key))]
        end = self.unit_of(point.towards.step)  # weights that were set may begin before it
        groups = (end - start) // GROUP_DRAWS
        whole = start + groups * GROUP_DRAWS
        found = []
        if groups:
            last = _as_integers(self._shares_at(whole, point))
            # Rounded towards zero, so that no share falls below that of either end. The rest goes to the largest one.
            slopes = [int((b - a) / groups) for a, b in zip(first, last, strict=True)]
            middles = [a + int(slope / 2) for a, slope in zip(first, slopes, strict=True)]
            largest = max(range(len(first)), key=lambda number: min(first[number], last[number]))
            slopes[largest] -= sum(slopes)
            middles[largest] += _WHOLE - sum(middles)
            draws = Draws(np.cumsum(middles).tolist(), MODULUS, key, np.cumsum(slopes).tolist())
            found.append(_Segment(start, min(stop, whole), draws))
        if whole < min(stop, end):  # less than a group is left: its mean
            mean = np.cumsum(_as_integers(self._shares_at((whole + end) / 2, point))).tolist()
            found.append(_Segment(whole, min(stop, end), Draws(mean, MODULUS, (SCHEDULE, self.seed, whole))))
        return found

    def _shares_at(self, unit: float, point: WeightPoint) -> list[float]:
        """Returns the shares at a unit, as if a point held until its end."""
        return point.shares(self.base.step + (unit - self.base.unit) / self.step_size)

    def _counts_before(self, number: int) -> Int64Array:
        """Returns int64[plans]: rows of each plan before a segment."""
        kept = self._kept("counts")
        if number not in kept:
            counts = np.array(self.base.counts or [0] * len(self.members), np.int64)
            for segment in self._segments[:number]:
                counts = counts + segment.draws.counts(segment.stop - segment.start)
            kept[number] = counts
        return kept[number]  # type: ignore[no-any-return]

    def rebased(self, step: int, unit: int) -> Base:
        """Returns the base of a job whose steps have another size from a step on.

        Args:
            step: The step.
            unit: Its first unit.
        """
        if next(point for point in reversed(self.schedule.points) if point.step <= step).towards is None:
            start = next(segment.start for segment in self._segments if segment.start <= unit < segment.stop)
        else:
            start = unit
        return Base(step, unit, start, self.counts_at(start) if start else ())

    def counts_at(self, unit: int) -> tuple[int, ...]:
        """Returns the rows of each plan before a unit, which is not before those that the base draws."""
        counts = np.array(self.base.counts or [0] * len(self.members), np.int64)
        for segment in self._segments:
            if segment.start < unit:
                counts = counts + segment.draws.counts(min(unit, segment.stop) - segment.start)
        return tuple(counts.tolist())

    def rows(self, start: int, stop: int, stream: int = 0) -> Rows:
        start, stop, stream = self.check_range(start, stop, stream)
        if start < self.base.drawn_from:
            raise IndexError(
                f"Unit {start} is before unit {self.base.drawn_from}, from which on the weights are counted."
            )
        self._check_no_end(start, stop)
        parts = []
        for number, segment in enumerate(self._segments):
            first, last = max(start, segment.start), min(stop, segment.stop)
            if first < last:
                taken, before = segment.draws.take(first - segment.start, last - segment.start)
                parts.append(self.gather.rows(taken, self._counts_before(number) + before, stream))
        return Rows.joined(parts)

    def __str__(self) -> str:
        changes = ", ".join(
            f"from step {point.step:,}: "
            + " ".join(f"{weight:g}" for weight in point.weights)
            + ("" if point.towards is None else f", towards step {point.towards.step:,}")
            for point in self.schedule.points
        )
        return described(f"ScheduledBlendPlan({changes})", self.members)


def _as_integers(shares: Sequence[float]) -> list[int]:
    """Returns the draws of each plan in a group, in units of 2 ** -40 draws; they sum to a whole group."""
    numbers = [int(share * _WHOLE) for share in shares]
    numbers[numbers.index(max(numbers))] += _WHOLE - sum(numbers)
    return numbers
