"""A step of a job with global batches: its size and its place, how its units are dealt to ranks, and their spares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.plan import Rows
from energon_dali.plan.rng import SPARE, Int64Array, mix
from energon_dali.plan.scheduled import FIRST, Base, Over, WeightChange

Uneven = Literal["error", "round_down", "ragged"]
UNEVEN = ("error", "round_down", "ragged")
MOST_UNITS = 1 << 24
"""Most units, or packs, of a step, which are planned together."""
SPARES = 3
"""Spares that are tried for a unit that failed."""
_UNIT_BITS = 52
"""Units are below 2 ** 48, so that further bits can say which spare of a unit is meant."""


@dataclass(frozen=True, order=True)
class Cursor:
    """Where a job with global batches continues: on all ranks the same."""

    unit: int = 0
    """First unit of the step."""
    step: int = 0
    """Number of the step, from the beginning of the job."""
    micro_batch: int = 0
    """Micro-batches of the step that every rank has delivered."""
    skipped: tuple[tuple[int, int], ...] = ()
    """Ranges (first step, step after the last) that are left out, ascending, none of them over yet. Their units are
    passed all the same."""
    weights: tuple[WeightChange, ...] = ()
    """Weights of the blend that were set while the job ran."""
    weights_over: Over = "steps"
    """What their points count. That of the schedule, if its weights change."""
    base: Base = FIRST
    """From where on steps have the size that they have now, for weights that change over time."""
    packs: int = 0
    """Packs of the steps before, where steps are made of packs."""

    def without_steps(self, first: int, stop: int) -> Cursor:
        """Returns the cursor that leaves out a range of steps as well; not if the range is over.

        Args:
            first: First step to leave out.
            stop: Step after the last one.
        """
        merged: list[tuple[int, int]] = []
        for begin, end in sorted((*self.skipped, (first, stop))):
            if end <= self.step:
                continue
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        begins_again = first <= self.step < stop
        return replace(self, micro_batch=0 if begins_again else self.micro_batch, skipped=tuple(merged))


BEGINNING = Cursor()
"""That of a new job."""


@dataclass(frozen=True)
class Step:
    """The units that the job takes at once."""

    number: int
    """From the beginning of the job."""
    first_unit: int
    """Its first unit."""
    size: int
    """Number of its units, at least 1."""
    num_items: int
    """Number of what is dealt: units, or packs of them; at least 1."""
    micro_batches: int
    """Micro-batches of each rank, at least 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """What is dealt of a step: its units one by one, or packs of them."""

    units: Int64Array
    """int64[n]: the units."""
    rows: Rows
    """Their rows."""
    bounds: Int64Array | None = None
    """int64[packs + 1]: pack p has units[bounds[p] : bounds[p + 1]]; None if each unit is an item."""
    lengths: Int64Array | None = None
    """int64[n]: measured lengths of the units of packs; None without packs."""

    def __len__(self) -> int:
        return len(self.units) if self.bounds is None else len(self.bounds) - 1

    @property
    def firsts(self) -> Int64Array | slice:
        """The first unit of each item, as indices into the units."""
        return slice(None) if self.bounds is None else self.bounds[:-1]

    def take(self, order: Int64Array) -> Items:
        """Returns some of the items, by their indices."""
        if self.bounds is None:
            return Items(self.units[order], self.rows.take(order))
        starts, sizes = self.bounds[order], self.bounds[order + 1] - self.bounds[order]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], sizes)
        lengths = None if self.lengths is None else self.lengths[places]
        return Items(self.units[places], self.rows.take(places), bounds, lengths)

    def cut(self, first: int, stop: int) -> Items:
        """Returns the items first ... stop - 1."""
        if self.bounds is None:
            part = slice(first, stop)
            return Items(self.units[part], self.rows.take(part))
        part = slice(int(self.bounds[first]), int(self.bounds[stop]))
        lengths = None if self.lengths is None else self.lengths[part]
        bounds = self.bounds[first : stop + 1] - self.bounds[first]
        return Items(self.units[part], self.rows.take(part), bounds, lengths)

    def sums(self, values: Int64Array) -> Int64Array:
        """Returns int64[items, ...]: the sums of values of the units of each item.

        Args:
            values: int64[n, ...].
        """
        if self.bounds is None or not len(values):
            return values
        sums: Int64Array = np.add.reduceat(values, self.bounds[:-1], axis=0)
        return sums


@dataclass(frozen=True)
class MicroBatch:
    """What one rank computes at once."""

    step: Step
    """The step that it is a part of."""
    number: int
    """Its number among those of its rank in the step."""
    items: Items
    """Its units, or packs of them; none at all in the last step of an epoch, perhaps."""

    @property
    def units(self) -> Int64Array:
        """int64[n]: its units."""
        return self.items.units

    @property
    def rows(self) -> Rows:
        """Their rows."""
        return self.items.rows


def step_size(global_batch_size: int, world_size: int, micro_batch_size: int, uneven: Uneven) -> int:
    """Returns the number of units of a step.

    Args:
        global_batch_size: What was asked for.
        world_size: Number of ranks.
        micro_batch_size: Most units of a micro-batch.
        uneven: What to do if it is not a multiple of world_size x micro_batch_size: raise, round down to one as
            Megatron does, or deal counts that differ by one.

    Raises:
        ConfigError: It is not such a multiple, or nothing is left of it.
    """
    least = world_size * micro_batch_size
    if uneven == "ragged" or global_batch_size % least == 0:
        if global_batch_size < world_size:
            raise ConfigError(
                f"global_batch_size={global_batch_size} is less than world_size={world_size}, so that some ranks would "
                "have nothing to compute. Give at least one sample per rank."
            )
        return global_batch_size
    low = global_batch_size // least * least
    if uneven == "round_down" and low:
        return low
    product = f"world_size x batch_size = {world_size} x {micro_batch_size} = {least:,}"
    ragged = 'uneven="ragged", which deals the ranks counts that differ by one'
    if not low:
        raise ConfigError(
            f"global_batch_size={global_batch_size} is less than {product}: give {least:,} or a multiple of it, or a "
            f"smaller batch_size. Or give {ragged}."
        )
    raise ConfigError(
        f"global_batch_size={global_batch_size} is not a multiple of {product}: give {low:,} or {low + least:,}. Or "
        f'give uneven="round_down", which takes the next smaller multiple as Megatron does, or {ragged}.'
    )


def part_of(total: int, parts: int, number: int) -> int:
    """Returns one of `parts` numbers that sum to `total` and differ by at most one, the larger ones first."""
    return total // parts + (number < total % parts)


def deal(homes: Int64Array, counts: Int64Array) -> Int64Array:
    """Returns which rank gets each unit: its home, as long as the home has room, otherwise the next rank with room.

    Args:
        homes: int64[n]: rank that each unit should go to.
        counts: int64[ranks]: how many units each rank gets; they sum to n.

    Returns:
        int64[n].
    """
    order = np.argsort(homes, kind="stable")
    arrived = np.bincount(homes, minlength=len(counts))
    place = np.arange(len(homes)) - np.repeat(np.cumsum(arrived) - arrived, arrived)  # among those of the same home
    fits = place < np.repeat(counts, arrived)
    ranks = homes.copy()
    left = np.sort(order[~fits])
    room = counts - np.minimum(arrived, counts)
    ranks[left] = np.repeat(np.arange(len(counts)), room)
    dealt: Int64Array = ranks
    return dealt


# --- what takes the place of a unit that fails, which depends on the unit alone ------------------------------------


def spare_number(seed: int, unit: int, attempt: int, num_samples: int) -> int:
    """Returns which sample of a source takes the place of a unit that failed.

    Args:
        seed: Seed of the job.
        unit: The unit.
        attempt: How many spares of it failed before.
        num_samples: Number of samples of the source, at least 1.

    Returns:
        Its number in the source, 0 <= number < num_samples.
    """
    return mix(SPARE, seed, unit, attempt) % num_samples


def spare_pass(unit: int, attempt: int) -> int:
    """Returns the number of the pass of a spare: an extra repeat, which no row of a plan has."""
    return (1 << 61) + unit * 64 + attempt


def spare_unit(unit: int, attempt: int) -> int:
    """Returns the number by which hooks draw random numbers for a spare: that of no unit."""
    return unit + ((attempt + 1) << _UNIT_BITS)


def attempts_of(number: int) -> int:
    """Returns which spare of a unit has a number, from 1 on; 0 for the unit itself."""
    return number >> _UNIT_BITS


def unit_of_number(number: int) -> int:
    """Returns the unit of which a number is, or a spare of which it is."""
    return number & ((1 << _UNIT_BITS) - 1)
