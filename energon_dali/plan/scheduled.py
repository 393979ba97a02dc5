"""Blends whose weights change over the steps or samples of a job: constant from a point on, or moving linearly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.draws import Draws
from energon_dali.plan.mixtures import GROUP_DRAWS, MODULUS, Mixture
from energon_dali.plan.plan import MOST_ROWS, Rows, described
from energon_dali.plan.rng import SCHEDULE, Int64Array

_WHOLE = GROUP_DRAWS * MODULUS

Over = Literal["steps", "samples", "tokens"]
OVER: tuple[Over, ...] = ("steps", "samples")
"""What the points of a plan count, from the beginning of the job. Steps may change their size, samples do not. Points
over tokens become points over samples, by the mean sizes of those."""


@dataclass(frozen=True)
class WeightPoint:
    """Weights that hold from a step or sample on."""

    at: int
    """The step or sample, from the beginning of the job."""
    weights: tuple[float, ...]
    """One per plan, finite and at least 0. They need not sum to 1."""
    towards: WeightPoint | None = None
    """A later point, to whose shares these move linearly; None holds them."""

    def shares(self, at: float) -> list[float]:
        """Returns the shares of the plans at a step or sample that is not before this one; they sum to 1."""
        here = _normalised(self.weights)
        if self.towards is None:
            return here
        part = min(1.0, (at - self.at) / (self.towards.at - self.at))
        return [a + (b - a) * part for a, b in zip(here, _normalised(self.towards.weights), strict=True)]


@dataclass(frozen=True)
class Schedule:
    """Weights over the steps or samples of a job.

    Raises:
        ConfigError: There is no point at 0, the points do not rise, or weights cannot work.
    """

    points: tuple[WeightPoint, ...]
    """At least one; the first at 0."""
    over: Over = "steps"
    """What the points count."""

    def __post_init__(self) -> None:
        places, one = [point.at for point in self.points], self.over[:-1]
        if not places or places[0] != 0 or any(a >= b for a, b in pairwise(places)):
            raise ConfigError(
                f"The weights change at the {self.over} {places}: begin with {one} 0, and let the {self.over} rise."
            )
        for point in [*self.points, *(point.towards for point in self.points if point.towards is not None)]:
            good = all(math.isfinite(weight) and weight >= 0 for weight in point.weights)
            if not good or not any(point.weights) or len(point.weights) != len(self.points[0].weights):
                raise ConfigError(
                    f"The weights {list(point.weights)} from {one} {point.at} on are invalid: give "
                    f"{len(self.points[0].weights)} finite numbers of at least 0, at least one of them positive."
                )
        for point, after in zip(self.points, [*places[1:], None], strict=True):
            if point.towards is not None and (after is None or not point.at < after <= point.towards.at):
                raise ConfigError(
                    f"The weights move from {one} {point.at} to {one} {point.towards.at}, and hold from {one} {after} "
                    "on. Let another point follow where they arrive, or before."
                )

    @property
    def changes(self) -> bool:
        """Whether the weights change at all."""
        return len(self.points) > 1

    def as_plain(self) -> list[list[object]]:
        """Returns the points as lists [at, shares] or [at, shares, later point, its shares]."""
        plain: list[list[object]] = []
        for point in self.points:
            row: list[object] = [point.at, _normalised(point.weights)]
            if point.towards is not None:
                row += [point.towards.at, _normalised(point.towards.weights)]
            plain.append(row)
        return plain

    def changed(self, *changes: WeightChange) -> Schedule:
        """Returns the schedule with other weights from a point on, whatever it said of later ones.

        Args:
            changes: Each is made to what those before it left.
        """
        points = list(self.points)
        for change in changes:
            begin = change.begin or tuple(_shares(points, change.at))
            while points and points[-1].at >= change.at:
                points.pop()
            if change.until is None:
                points.append(WeightPoint(change.at, change.weights))
            else:
                end = WeightPoint(change.until, change.weights)
                points += [WeightPoint(change.at, begin, end), end]
        return replace(self, points=tuple(points))

    def shares(self, at: float) -> list[float]:
        """Returns the shares of the plans at a step or sample; they sum to 1."""
        return _shares(self.points, at)

    def weights_from(self, at: int) -> tuple[float, ...]:
        """Returns the weights of the point at a step or sample, as they were given."""
        return next(point.weights for point in self.points if point.at == at)


@dataclass(frozen=True, order=True)
class WeightChange:
    """Weights that were set while a job ran; what a schedule said of later steps no longer holds."""

    at: int
    """The step or sample from which on they hold, or move; at least 0."""
    weights: tuple[float, ...]
    """One per plan."""
    until: int | None = None
    """The step or sample up to which the shares move linearly from those at `at`; None changes them at once."""
    begin: tuple[float, ...] | None = None
    """The shares at `at`, from which they move; None takes those of the weights before."""


def _shares(points: Sequence[WeightPoint], at: float) -> list[float]:
    return next(point for point in reversed(points) if point.at <= at).shares(at)


def _normalised(weights: Sequence[float]) -> list[float]:
    largest = max(weights)
    scaled = [weight / largest for weight in weights]
    total = math.fsum(scaled)
    return [weight / total for weight in scaled]


@dataclass(frozen=True)
class Base:
    """From where on the units of a blend are counted.

    With steps of another size, a new one follows. So it does where weights that were set are over, so that a state need
    not hold them.
    """

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
    """Rows of endless plans, drawn in proportion to weights that change over the steps or samples of a job.

    The plan has a single stream. Its draws come in groups, as those of a `BlendPlan`; a point of the schedule begins a
    new group. Counts are sums of floors of linear functions also where shares move, so any position is reached at once.

    Raises:
        ConfigError: A plan ends or has several streams, or the schedule has not one weight per plan.
    """

    schedule: Schedule
    """Weights over steps or samples."""
    seed: int
    """Seed of the draws."""
    step_size: int
    """Units per step from the base on."""
    base: Base = FIRST
    """From where on steps have this size."""
    sizes: tuple[float, ...] = ()
    """Mean size of a sample of each plan, if the weights are shares of sizes; empty for shares of samples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule.over not in OVER:
            raise ConfigError(
                f"ScheduledBlendPlan was given a schedule over {self.schedule.over}: give one over samples."
            )
        if len(self.sizes) not in (0, len(self.members)) or not all(0 < size < math.inf for size in self.sizes):
            raise ConfigError(
                f"sizes={self.sizes} is invalid: give one size above 0 for each of {len(self.members)} plans."
            )
        if self.num_streams != 1:
            raise ConfigError("Weights that change over time need global batches: give global_batch_size.")
        if len(self.schedule.points[0].weights) != len(self.members):
            raise ConfigError(
                f"{len(self.schedule.points[0].weights)} weights were given for {len(self.members)} plans: give one "
                "each."
            )
        if len(self.base.counts) not in (0, len(self.members)):
            raise ConfigError(
                f"{len(self.base.counts)} counts were given for {len(self.members)} plans: give one each."
            )
        if any(not member.is_endless for member in self.members):
            raise ConfigError("ScheduledBlendPlan was given a plan that ends. Blend plans that repeat.")

    @property
    def is_endless(self) -> bool:
        return True

    @property
    def options(self) -> dict[str, Any]:
        sizes = {"sizes": list(self.sizes)} if self.sizes else {}
        return {"weights": self.schedule.as_plain(), "over": self.schedule.over, "seed": self.seed, **sizes}

    def epoch_start(self, epoch: int, stream: int = 0) -> int:
        return 0

    def unit_of(self, at: int) -> int:
        """Returns the unit at which a point of the schedule is; for steps, as if all had the size of those to come."""
        if self.schedule.over == "samples":
            return at
        return self.base.unit + (at - self.base.step) * self.step_size

    @cached_property
    def _segments(self) -> list[_Segment]:
        segments: list[_Segment] = []
        points = self.schedule.points
        for number, point in enumerate(points):
            begin = self.unit_of(point.at)
            after = self.unit_of(points[number + 1].at) if number + 1 < len(points) else MOST_ROWS
            # Where another point begins at the base, the one before has the units from which on draws are counted.
            if after > self.base.unit or (after == self.base.unit > self.base.drawn_from):
                segments += self._parts(self.base.drawn_from if begin < self.base.unit else begin, after, point)
        return segments

    def _parts(self, start: int, stop: int, point: WeightPoint) -> list[_Segment]:
        """Returns the segments from a unit to another, between which the weights of a point hold or move."""
        key = (SCHEDULE, self.seed, start)
        first = _as_integers(self._shares_at(start, point))
        if point.towards is None:
            return [_Segment(start, stop, Draws(np.cumsum(first).tolist(), MODULUS, key))]
        end = self.unit_of(point.towards.at)  # weights that were set may begin before it
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
        """Returns the shares of the samples at a unit, as if a point held until its end."""
        if self.schedule.over == "samples":
            shares = point.shares(unit)
        else:
            # One division of whole numbers: another base with steps of this size gives the same shares to the last bit.
            shares = point.shares((self.base.step * self.step_size + unit - self.base.unit) / self.step_size)
        return (
            _normalised([share / size for share, size in zip(shares, self.sizes, strict=True)])
            if self.sizes
            else shares
        )

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
        if self.schedule.over == "samples" and self.schedule.changes:  # no size of steps plays a part
            return self.base  # weights that do not change may still be set for a step
        if next(point for point in reversed(self.schedule.points) if point.at <= step).towards is None:
            start = next(segment.start for segment in self._segments if segment.start <= unit < segment.stop)
        else:
            start = unit
        return Base(step, unit, start, self.counts_at(start) if start else ())

    def base_at(self, at: int) -> Base:
        """Returns the base of a job that counts from a point of the schedule on; no row changes.

        Args:
            at: The step or sample of the point. If the base is later, it stays where it is.
        """
        unit = self.unit_of(at)
        if unit < self.base.unit:
            return self.base
        return Base(at if self.schedule.over == "steps" else self.base.step, unit, unit, self.counts_at(unit))

    def counts_at(self, unit: int) -> tuple[int, ...]:
        """Returns the rows of each plan before a unit, which is not before those that the base draws."""
        number = max(0, sum(segment.start < unit for segment in self._segments) - 1)
        segment = self._segments[number]
        counts = self._counts_before(number) + segment.draws.counts(max(0, unit - segment.start))
        return tuple(counts.tolist())

    def wanted_between(self, start: int, stop: int) -> tuple[float, ...]:
        """Returns how many of the units start ... stop - 1 each plan should have: the integral of its share.

        Args:
            start: First unit, not before that of the base.
            stop: Unit after the last.

        Raises:
            IndexError: The units before the base are of steps of another size.
        """
        if start < self.base.unit:
            raise IndexError(f"Unit {start} is before unit {self.base.unit}, from which on the weights are counted.")
        wanted = np.zeros(len(self.members))
        points = self.schedule.points
        for number, point in enumerate(points):
            after = self.unit_of(points[number + 1].at) if number + 1 < len(points) else MOST_ROWS
            first, last = max(start, self.unit_of(point.at)), min(stop, after)
            if first < last:  # a trapezoid
                ends = np.array([self._shares_at(first, point), self._shares_at(last, point)])
                wanted += ends.sum(0) * ((last - first) / 2)
        return tuple(wanted.tolist())

    def given_between(self, start: int, stop: int) -> tuple[int, ...]:
        """Returns how many of the units start ... stop - 1 each plan has; see `wanted_between`."""
        return tuple(b - a for a, b in zip(self.counts_at(start), self.counts_at(stop), strict=True))

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
        one = self.schedule.over[:-1]
        changes = ", ".join(
            f"from {one} {point.at:,}: "
            + " ".join(f"{weight:g}" for weight in point.weights)
            + ("" if point.towards is None else f", towards {one} {point.towards.at:,}")
            for point in self.schedule.points
        )
        return described(f"ScheduledBlendPlan({changes})", self.members)


def _as_integers(shares: Sequence[float]) -> list[int]:
    """Returns the draws of each plan in a group, in units of 2 ** -40 draws; they sum to a whole group."""
    numbers = [int(share * _WHOLE) for share in shares]
    numbers[numbers.index(max(numbers))] += _WHOLE - sum(numbers)
    return numbers
