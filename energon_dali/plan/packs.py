"""Packs of samples, made from lengths that are known before anything is read: windows of the units, each packed alone.

A window is a fixed number of units. Its samples are packed by best fit, longest first, and its packs are shuffled.
Units are numbered in the order of packs then, so that a pack is a range of them, and so is a step of packs. Nothing is
carried over from one window to the next: a position within a job is planned from the window that holds it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.global_step import Items
from energon_dali.plan.measured_rows import MeasuredRows
from energon_dali.plan.mixtures import Mixture
from energon_dali.plan.plan import MOST_ROWS, Plan, Rows, keep, source_offsets
from energon_dali.plan.rng import PACKS, Int64Array, permutation, stable_order
from energon_dali.plan.scheduled import FIRST, Base, Schedule, ScheduledBlendPlan, WeightPoint

MOST_WINDOW = 1 << 20
"""Most samples of a window, which are packed together."""
_BIN_BITS = 21
"""Bins of a window are below 2 ** 21, so that one number holds the room of a bin and which one it is."""
_KEPT_UNITS = 1 << 16
"""Units up to which windows are kept, and at least those of a step."""


@dataclass(frozen=True)
class PackRule:
    """Which samples may be packed together."""

    max_length: int
    """Length of a pack, at least 1."""
    window: int = 10_000
    """Samples that are packed together, at least 1."""
    length: str = "tokens"
    """The measure that is the length of a sample."""
    multiple: int = 1
    """The length of each sample is rounded up to a multiple of this, at least 1."""
    max_samples: int | None = None
    """Most samples in a pack; None is unlimited."""
    cuts: bool = False
    """Whether samples that are longer than a pack are cut to `longest`. Otherwise they are in no pack."""

    @property
    def longest(self) -> int:
        """The longest sample that is in a pack: its length is a multiple."""
        return self.max_length // self.multiple * self.multiple

    def lengths(self, measured: Int64Array) -> Int64Array:
        """Returns the lengths that samples have in a pack; -1 for those that are in none.

        Args:
            measured: int64[n]: lengths that were measured, -1 for samples without one.
        """
        lengths = -(-measured // self.multiple) * self.multiple
        if self.cuts:
            lengths = np.minimum(lengths, self.longest)
        planned: Int64Array = np.where((measured < 0) | (lengths > self.max_length), -1, lengths)
        return planned


def best_fit(lengths: Int64Array, capacity: int, max_samples: int | None = None) -> tuple[Int64Array, int]:
    """Returns (int64[n]: the bin of each length, number of bins): longest first, each into the bin that it fills best.

    Args:
        lengths: int64[n]: 0 <= length <= capacity.
        capacity: Length of a bin.
        max_samples: Most samples in a bin, at least 1; None is unlimited.
    """
    bins = np.empty(len(lengths), np.int64)
    if not len(lengths):
        return bins, 0
    order = stable_order(capacity - lengths)
    falling = (-lengths[order]).tolist()
    sums = np.concatenate([[0], np.cumsum(lengths[order])]).tolist()
    # A bin with room is one number, its room and then the bin, so that the list is sorted by the room.
    mask, least = (1 << _BIN_BITS) - 1, -falling[-1] << _BIN_BITS
    found: list[int] = []
    runs: list[int] = []
    rooms: list[int] = []
    filled: list[int] = []
    first = 0
    while first < len(falling):
        size = -falling[first]
        at = bisect_left(rooms, size << _BIN_BITS)
        below = rooms[at - 1] >> _BIN_BITS if at else -1
        if at < len(rooms):
            bin_ = rooms.pop(at)
        else:
            bin_ = capacity << _BIN_BITS | len(filled)
            filled.append(0)
        number = bin_ & mask
        # What follows goes into the same bin as long as it has room, and until it would fit into the one below.
        stop = bisect_right(sums, sums[first] + (bin_ >> _BIN_BITS), first) - 1
        if below >= 0:
            stop = min(stop, bisect_left(falling, -below, first + 1))
        if max_samples is not None:
            stop = min(stop, first + max_samples - filled[number])
            filled[number] += stop - first
        found.append(number)
        runs.append(stop - first)
        bin_ -= (sums[stop] - sums[first]) << _BIN_BITS
        first = stop
        if bin_ >= least and filled[number] != max_samples:
            insort(rooms, bin_)
    bins[order] = np.repeat(found, runs)
    return bins, len(filled)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The packs of one window."""

    start: int
    """Its first unit."""
    rows: Rows
    """Its rows, in the order of its packs; those that are in no pack are the last."""
    bounds: Int64Array
    """int64[packs + 1]: pack p has the units start + bounds[p] ... start + bounds[p + 1] - 1."""
    lengths: Int64Array
    """int64[n]: the measured length of each row."""

    @property
    def num_packs(self) -> int:
        """Number of its packs."""
        return len(self.bounds) - 1

    def pack_at(self, unit: int) -> int:
        """Returns the pack that holds a unit; the number of packs for units that are in none."""
        return int(np.searchsorted(self.bounds, unit - self.start, side="right")) - 1


@dataclass(frozen=True)
class PackedUnits(Plan):
    """The units of a job whose steps are made of packs: the rows of a plan, window by window in the order of packs.

    Windows begin at multiples of their size within an epoch. Where weights change over steps, those of a window are
    the ones of the step in which it begins.
    """

    samples: Plan
    """The plan of the samples, of a single stream."""
    measured: MeasuredRows
    """Lengths of the samples."""
    rule: PackRule
    """How they are packed."""
    seed: int
    """Seed of the order of packs."""
    packs_per_step: int
    """Packs of a step."""
    unit: int = 0
    """First unit of the step from which on steps and packs are counted."""
    step: int = 0
    """Number of that step."""
    base: Base = FIRST
    """Where weights change over steps: the window that holds that unit, the step in which it begins, and its draws."""

    num_streams = 1

    @property
    def num_sources(self) -> int:
        return self.samples.num_sources

    @property
    def is_endless(self) -> bool:
        return self.samples.is_endless

    @property
    def num_samples(self) -> int:
        return self.samples.num_samples

    def epoch_start(self, epoch: int, stream: int = 0) -> int:
        return self.samples.epoch_start(epoch, stream)

    def at_position(self, number: int) -> PackedUnits:
        return replace(self, samples=self.samples.at_position(number))

    @cached_property
    def first_epoch(self) -> int:
        """The epoch of the samples that holds the first unit."""
        return self.samples.epoch_at(self.unit) if not self.is_endless and self.num_samples else 0

    @cached_property
    def changing(self) -> Schedule | None:
        """The weights of the samples if they change over steps; they are asked for window by window then."""
        samples = self.samples
        if isinstance(samples, ScheduledBlendPlan) and samples.schedule.over == "steps" and samples.schedule.changes:
            return samples.schedule
        return None

    def rows(self, start: int, stop: int, stream: int = 0) -> Rows:
        start, stop, _ = self.check_range(start, stop, stream)
        parts = []
        for window in self._windows(start, stop):
            first = window.start
            parts.append(window.rows.take(slice(max(0, start - first), stop - first)))
        return Rows.joined(parts)

    def packed_between(self, start: int, stop: int) -> Int64Array:
        """Returns those of the units start ... stop - 1 that are in a pack, ascending; int64[n]."""
        found = [
            np.arange(max(start, window.start), min(stop, window.start + int(window.bounds[-1])))
            for window in self._windows(start, stop)
        ]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _windows(self, start: int, stop: int) -> Iterator[Window]:
        """Yields the windows that hold a range of units."""
        while start < stop:
            epoch = self.samples.epoch_at(start) - self.first_epoch
            of_epoch = self.packs_of(epoch)
            number = of_epoch.window_of(start)
            window = of_epoch.window(number)
            yield window
            start = window.start + len(window.rows)

    def packs_of(self, epoch: int) -> EpochPacks:
        """Returns the packs of an epoch, as far as this thread has counted them.

        Args:
            epoch: Epoch, counted from the one that holds the first unit.
        """
        kept = self._kept("epochs")
        found = kept.get(epoch)
        return keep(kept, epoch, EpochPacks(self, epoch), 4) if found is None else found  # type: ignore[no-any-return]

    def make_window(self, start: int, stop: int, base: Base | None, *, epoch_start: int = 0) -> Window:
        """Returns the packs of the samples start ... stop - 1.

        Args:
            start: First unit of the window.
            stop: Unit after its last.
            base: Where weights change over steps, from where its draws are counted.
            epoch_start: First unit of its epoch. Where epochs have the same samples, such as in validation, their steps
                have the same packs.
        """
        rows = self._samples_of(base).rows(start, stop)
        measured = self.measured.of(self.rule.length, rows)
        lengths = self.rule.lengths(measured)
        packed = np.flatnonzero(lengths >= 0)
        bins, count = best_fit(lengths[packed], self.rule.max_length, self.rule.max_samples)
        # Best fit begins with the longest samples, and the order of steps must not follow from lengths.
        places = permutation(count, PACKS, self.seed, start - epoch_start)[bins]
        order = np.concatenate([packed[stable_order(places)], np.flatnonzero(lengths < 0)])
        bounds = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=count))])
        return Window(start, rows.take(order), bounds, measured[order])

    def _samples_of(self, base: Base | None) -> Plan:
        schedule, samples, kept = self.changing, self.samples, self._kept("samples")
        if schedule is None:
            return samples
        assert base is not None
        assert isinstance(samples, ScheduledBlendPlan)
        shares = tuple(schedule.shares(base.step))
        key = (shares, base.drawn_from)
        found = kept.get(key)
        if found is None:
            weights = Schedule((WeightPoint(0, shares),), over="samples")
            drawn = Base(0, base.drawn_from, base.drawn_from, base.counts)
            found = keep(kept, key, replace(samples, schedule=weights, base=drawn), 2)
        return found  # type: ignore[no-any-return]

    def base_after(self, base: Base, unit: int, step: int, schedule: Schedule | None = None) -> Base:
        """Returns from where the draws of a window are counted, where weights change over steps.

        Args:
            base: That of the window before.
            unit: First unit of the window.
            step: The step in which it begins.
            schedule: The weights from the window on; None keeps those of the samples.
        """
        samples, before = self.samples, self._samples_of(base)
        assert isinstance(samples, ScheduledBlendPlan)
        assert isinstance(before, ScheduledBlendPlan)
        if (schedule or samples.schedule).shares(step) == samples.schedule.shares(base.step):
            return replace(base, step=step, unit=unit)
        return Base(step, unit, unit, before.counts_at(unit) if unit else ())

    def holds_any(self, source: int) -> bool:
        """Returns whether any sample of a dataset fits into a pack; the plan may draw only a part of the dataset."""
        kept, values = self._kept("holding"), self.measured.values[source]
        if source not in kept:
            count = values.num_samples
            parts = (np.arange(start, min(start + MOST_WINDOW, count)) for start in range(0, count, MOST_WINDOW))
            lengths = (self.rule.lengths(values.take(self.rule.length, part)) for part in parts)
            kept[source] = any((of_part >= 0).any() for of_part in lengths)
        return kept[source]  # type: ignore[no-any-return]

    def samples_drawn_with(self, source: int) -> int:
        """Returns the number of samples of a dataset that the plan draws, or of the mixture in which it draws it."""
        members = self.samples.members if isinstance(self.samples, Mixture) else (self.samples,)
        return members[bisect_right(source_offsets(members), source) - 1].num_samples

    @property
    def first_counted(self) -> int:
        """First unit of the window that holds the unit from which on packs are counted."""
        return self.packs_of(0).start_of(self.unit)

    def counts_at(self, unit: int) -> tuple[int, ...]:
        """Returns the rows of each plan of a blend before a unit; () if this is not a blend by weight.

        Args:
            unit: A unit, not before the window from which on packs are counted.
        """
        packs = self.packs_of(0)
        number = packs.window_of(unit)
        samples = self._samples_of(packs.base_of(number))
        if not isinstance(samples, ScheduledBlendPlan):
            return ()
        start = packs.start_of(unit)
        begun = np.bincount(self.rows(start, unit).sources, minlength=len(samples.members))
        return tuple(np.add(samples.counts_at(start), begun).tolist())

    def rebased(self, step: int, unit: int) -> Base:
        """Returns the base of a job whose steps have another size from a step on.

        Args:
            step: The step.
            unit: Its first unit.
        """
        if self.changing is None:
            return self.base
        packs = self.packs_of(0)
        found = packs.base_of(packs.window_of(unit))
        assert found is not None
        return found

    def __str__(self) -> str:
        rule = self.rule
        lines = [f"PackedUnits(packs of {rule.max_length} {rule.length}, windows of {rule.window} samples)"]
        return "\n".join([*lines, *("  " + line for line in str(self.samples).splitlines())])


class EpochPacks:
    """The packs of one epoch, whose windows are counted one after the other. For one thread.

    Args:
        plan: The units.
        epoch: Epoch, counted from the one that holds its first unit.
    """

    def __init__(self, plan: PackedUnits, epoch: int) -> None:
        self._plan = plan
        number = plan.first_epoch + epoch
        begin = 0 if plan.is_endless else plan.samples.epoch_start(number)
        self._stop = MOST_ROWS if plan.is_endless else plan.samples.epoch_start(number + 1)
        size = plan.rule.window
        self.first = plan.unit if not epoch else begin
        """The unit from which on packs are counted."""
        self._epoch_start = begin
        self._begin = begin + (self.first - begin) // size * size
        """First unit of the window that holds it."""
        self._packs = [0]
        """Packs before each window that was counted, and after the last of them."""
        self._bases: list[Base | None] = []
        """Where weights change over steps, from where the draws of each window are counted."""
        self._kept: dict[int, Window] = {}
        self._unpacked = np.zeros(plan.num_sources, np.int64)
        """int64[sources]: samples of each in the windows since the last one that has a pack."""
        if plan.changing is not None:
            if plan.base.unit != self._begin:
                raise ConfigError(
                    f"The weights of the blend are counted from unit {plan.base.unit}, and the window begins at unit "
                    f"{self._begin}."
                )
            self._bases.append(plan.base)

    @cached_property
    def _passed(self) -> int:
        """Packs of the first window that are before the first unit."""
        return self.window(0).pack_at(self.first) if self.first > self._begin else 0

    @property
    def num_windows(self) -> int:
        """Number of windows of the epoch, from the one that holds the first unit on."""
        return -(-(self._stop - self._begin) // self._plan.rule.window)

    @property
    def num_counted(self) -> int:
        """Number of windows whose packs were counted."""
        return len(self._packs) - 1

    def window_of(self, unit: int) -> int:
        """Returns the number of the window that holds a unit, from the first one on.

        Raises:
            IndexError: It is before that one.
        """
        if unit < self._begin:
            raise IndexError(f"Unit {unit} is before unit {self._begin}, from which on packs are counted.")
        return (unit - self._begin) // self._plan.rule.window

    def start_of(self, unit: int) -> int:
        """Returns the first unit of the window that holds a unit."""
        return self._begin + self.window_of(unit) * self._plan.rule.window

    def window(self, number: int) -> Window:
        """Returns a window. Where weights change over steps, those before it are counted."""
        found = self._kept.get(number)
        if found is None:
            size = self._plan.rule.window
            start = self._begin + number * size
            base = self.base_of(number)
            stop = min(start + size, self._stop)
            found = self._plan.make_window(start, stop, base, epoch_start=self._epoch_start)
            of_step = self._plan.packs_per_step // max(1, found.num_packs) + 2  # counted first, and dealt then
            keep(self._kept, number, found, max(of_step, _KEPT_UNITS // size))
        return found

    def base_of(self, number: int) -> Base | None:
        """Returns from where the draws of a window are counted, where weights change over steps; else None."""
        if self._plan.changing is None:
            return None
        while number >= len(self._bases):
            self._count_next()
        return self._bases[number]

    def _count_next(self) -> None:
        """Counts the packs of the next window."""
        number = len(self._packs) - 1
        window = self.window(number)
        packs = self._packs[-1] + window.num_packs - (0 if number else self._passed)
        of_sources = np.bincount(window.rows.sources, minlength=len(self._unpacked))
        self._unpacked = np.zeros_like(of_sources) if window.num_packs else self._unpacked + of_sources
        self._packs.append(packs)
        if self._plan.changing is not None:
            base = self._bases[number]
            assert base is not None
            start = self._begin + (number + 1) * self._plan.rule.window
            self._bases.append(self._plan.base_after(base, start, self._plan.step + packs // self._plan.packs_per_step))

    def count(self) -> int:
        """Returns the number of packs of the epoch, from the first unit on. Plans all of it.

        Raises:
            ConfigError: A whole epoch has none.
        """
        while len(self._packs) <= self.num_windows:
            self._count_next()
        found = self._packs[self.num_windows]
        if not found and self.first == self._epoch_start < self._stop:
            raise ConfigError(
                "An epoch has no pack: no sample is measured, or all are longer than "
                f"max_length={self._plan.rule.max_length}. Give a larger max_length, or measure the dataset."
            )
        return found

    def packs_before(self, unit: int) -> int:
        """Returns how many packs begin before a unit, from the first unit on; a pack that holds it does not count."""
        number = self.window_of(unit)
        while number >= len(self._packs):
            self._count_next()
        at = self.window(number).pack_at(unit)
        return self._packs[number] + at - (0 if number else self._passed)

    def unit_of(self, pack: int) -> int:
        """Returns the first unit of a pack; after the last one, the end of the epoch.

        Args:
            pack: Its number, from the first unit on.
        """
        number = self._window_of_pack(pack)
        if number is None:
            return self._stop
        window = self.window(number)
        return window.start + int(window.bounds[self._within(pack, number)])

    def items(self, first: int, stop: int) -> Items:
        """Returns the packs first ... stop - 1."""
        parts: list[Rows] = []
        units, sizes, lengths = [], [], []
        while first < stop:
            number = self._window_of_pack(first)
            assert number is not None, "the caller counts the packs"
            window = self.window(number)
            low = self._within(first, number)
            high = min(window.num_packs, low + stop - first)
            begin, end = int(window.bounds[low]), int(window.bounds[high])
            parts.append(window.rows.take(slice(begin, end)))
            units.append(np.arange(window.start + begin, window.start + end))
            sizes.append(np.diff(window.bounds[low : high + 1]))
            lengths.append(window.lengths[begin:end])
            first += high - low
        empty = [np.zeros(0, np.int64)]
        bounds = np.concatenate([[0], np.cumsum(np.concatenate(sizes or empty))])
        return Items(np.concatenate(units or empty), Rows.joined(parts), bounds, np.concatenate(lengths or empty))

    def _within(self, pack: int, number: int) -> int:
        return pack - self._packs[number] + (0 if number else self._passed)

    def _window_of_pack(self, pack: int) -> int | None:
        """Returns the number of the window that has a pack; None after the end of the epoch."""
        while pack >= self._packs[-1]:
            if len(self._packs) > self.num_windows:
                return None
            if self._is_stuck():
                raise ConfigError(
                    f"The last {self._num_empty} windows have no pack: no sample is measured, or all are longer than "
                    f"max_length={self._plan.rule.max_length}. Give a larger max_length, or measure the dataset."
                )
            self._count_next()
        return bisect_right(self._packs, pack) - 1

    @property
    def _num_empty(self) -> int:
        """Windows since the last one that has a pack; those of a job without an end are whole."""
        return int(self._unpacked.sum()) // self._plan.rule.window

    def _is_stuck(self) -> bool:
        """Returns whether no pack can be expected: no dataset that is drawn has a sample that fits and is to come."""
        plan, drawn = self._plan, self._unpacked
        if not plan.is_endless or self._num_empty < _LEAST_EMPTY:
            return False
        # Two passes in any order have every sample of a part of a dataset at least once, wherever they begin.
        return not any(
            drawn[source] < 2 * plan.samples_drawn_with(source) and plan.holds_any(source)
            for source in np.flatnonzero(drawn).tolist()
        )


_LEAST_EMPTY = 100
"""Windows in a row without a pack after which a job asks whether there will be one."""
