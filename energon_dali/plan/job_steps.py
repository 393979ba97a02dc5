"""Steps of a job: how many there are, where they begin, and which weights of a blend hold in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.global_step import BEGINNING, Cursor, Step, Uneven, step_size
from energon_dali.plan.plan import MOST_ROWS, Plan, keep
from energon_dali.plan.scheduled import FIRST, Base, Over, Schedule, ScheduledBlendPlan, WeightChange

Steps = TypeVar("Steps", bound="JobSteps")


@dataclass(frozen=True)
class JobSteps(Plan):
    """The steps of a job, and the weights that hold in them. `GlobalBatchPlan` deals them to ranks.

    Raises:
        ConfigError: The plan of the units has several streams, or the sizes do not fit.
    """

    units: Plan
    """The plan of a single stream: its rows are the units of the job."""
    global_batch_size: int
    """Units per step that were asked for, at least 1."""
    micro_batch_size: int
    """Most units of a micro-batch, at least 1."""
    world_size: int
    """Number of ranks."""
    workers: int
    """Streams per rank, at least 1."""
    uneven: Uneven = "error"
    """What happens to sizes that the ranks cannot share equally; see `step_size`."""
    drop_last: bool = False
    """Whether the last step of an epoch is left out if it is smaller."""
    start: Cursor = BEGINNING
    """Where the job begins, or continues."""

    def __post_init__(self) -> None:
        if self.units.num_streams != 1:
            raise ConfigError("GlobalBatchPlan was given a plan of several streams. Give one with num_streams=1.")
        _ = self.step_size

    @cached_property
    def step_size(self) -> int:
        """Number of units of a step; the last one of an epoch may have fewer."""
        return step_size(self.global_batch_size, self.world_size, self.micro_batch_size, self.uneven)

    @property
    def resolved_units(self) -> Plan:
        """The plan of the units, with the weights that were set, and for the size of the steps."""
        return self.resolved_samples

    @cached_property
    def resolved_samples(self) -> Plan:
        """The plan of the samples in the order in which they are drawn, which is that of the units without packs."""
        units = self.units
        if not isinstance(units, ScheduledBlendPlan):
            return units
        return replace(units, schedule=self._schedule, base=self.start.base, step_size=self.step_size)

    @property
    def _schedule(self) -> Schedule:
        """The weights over the steps or samples of the job, with those that were set."""
        assert isinstance(self.units, ScheduledBlendPlan)
        schedule = self.units.schedule
        if self.start.weights:
            schedule = replace(schedule, over=self.start.weights_over)
            schedule = schedule.changed(*self.start.weights)
        return schedule

    def rebased(self, start: Cursor, old_size: int) -> Cursor:
        """Returns a cursor from which on steps have the size of this plan.

        Args:
            start: The beginning of a step.
            old_size: Units of the steps before it.
        """
        if old_size == self.step_size or not isinstance(self.units, ScheduledBlendPlan):
            return start
        units = self.continued(start, self.world_size, self.workers).resolved_units
        assert isinstance(units, ScheduledBlendPlan)
        return replace(start, base=replace(units, step_size=old_size).rebased(start.step, start.unit))

    def folded(self, cursor: Cursor) -> tuple[Cursor, tuple[WeightChange, ...]]:
        """Returns a cursor with the weights that hold there and those that come, and which ones were over.

        What the weights that are over gave each dataset is in the base. No unit changes, and no weights that can still
        be set. From whatever base a job counts, all of its ranks have the same folded cursor.

        Args:
            cursor: Where the job is.
        """
        now = cursor.step if cursor.weights_over == "steps" else cursor.unit
        # Those that begin here may still be replaced, and then those before them hold.
        begun = [change for change in cursor.weights if change.at < now]
        if not begun or not isinstance(self.units, ScheduledBlendPlan):
            return cursor, ()
        *over, held = begun
        units = self.continued(cursor, self.world_size, self.workers).resolved_samples
        assert isinstance(units, ScheduledBlendPlan)
        if held.until is not None and held.until < now:
            over.append(held)
            held = WeightChange(held.until, held.weights)
        elif held.until is not None and over:
            held = replace(held, begin=units.schedule.weights_from(held.at))
        if not over:
            return cursor, ()
        weights = (held, *cursor.weights[len(begun) :])
        return replace(cursor, weights=weights, base=units.base_at(held.at)), tuple(over)

    def blended_before(
        self, cursor: Cursor, stop: int | None = None
    ) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
        """Returns how many units of the steps before a cursor each dataset of a blend should have, and how many it has.

        Units before the base of the cursor are left out: of steps of another size, or with weights that are over.

        Args:
            cursor: Where the job is.
            stop: Unit after the last that counts; None takes that of the cursor.

        Returns:
            (the integral of the share of each, the units of each), with the weights that were set; None if there is no
            blend by weight.
        """
        kept = self._kept("blended")
        key = (cursor.weights, cursor.weights_over, cursor.base)
        units = kept.get(key)  # it keeps what it has counted
        if units is None:
            units = keep(kept, key, self.continued(cursor, self.world_size, self.workers).resolved_samples, 1)
        if not isinstance(units, ScheduledBlendPlan):
            return None
        first = units.base.unit
        stop = cursor.unit if stop is None else stop
        given = np.subtract(self._counts_at(units, stop), units.counts_at(first))
        return units.wanted_between(first, stop), tuple(given.tolist())

    def _counts_at(self, units: ScheduledBlendPlan, unit: int) -> tuple[int, ...]:
        """Returns how many units of each dataset of a blend are before a unit."""
        return units.counts_at(unit)

    def with_weights(self, start: Cursor, change: WeightChange, over: Over) -> Cursor:
        """Returns a cursor from which on the blend has other weights, instead of what was set for later before.

        Args:
            start: Where the job is.
            change: The weights.
            over: What its points count.

        Raises:
            ConfigError: There is no blend by weight, the weights are invalid, they hold for a step that has begun, or
                the weights of the job change over steps and these over samples.
        """
        if not isinstance(self.units, ScheduledBlendPlan):
            raise ConfigError("Only a blend by weight has weights that can be set.")
        of_job, schedule = over, self.units.schedule
        if schedule.changes or start.weights:
            of_job = schedule.over if schedule.changes else start.weights_over
        one = over[:-1]
        first = self.first_change(start, over)
        if change.at < first:
            raise ConfigError(f"from_{one}={change.at} has begun: give {first:,} or a later one.")
        if change.until is not None and change.until <= change.at:
            raise ConfigError(
                f"until_{one}={change.until} is not after from_{one}={change.at}: give a later one, or leave it out to "
                "change the weights at once."
            )
        if of_job != over:
            if over == "samples":
                raise ConfigError(
                    "The weights of this job change over steps, and from_sample was given. Give from_step, or write "
                    "`over: samples` at the weights of the metadataset."
                )
            begin, until = (None if at is None else self._sample_of_step(start, at) for at in (change.at, change.until))
            assert begin is not None
            change = replace(change, at=begin, until=until)
        changed = self._with_change(replace(start, weights_over=of_job), change)
        _ = self.continued(changed, self.world_size, self.workers).resolved_units  # raises ConfigError
        return changed

    def first_change(self, start: Cursor, over: Over) -> int:
        """Returns the first step or sample from which on weights can be set.

        Args:
            start: Where the job is.
            over: What is counted.
        """
        if over == "samples":
            return start.unit + (start.micro_batch > 0) * self.step_size
        return start.step + (start.micro_batch > 0)

    def _sample_of_step(self, start: Cursor, at: int) -> int:
        """Returns the first sample of a step that comes."""
        return start.unit + (at - start.step) * self.step_size

    def _with_change(self, start: Cursor, change: WeightChange) -> Cursor:
        """Returns a cursor with other weights, instead of what was set for later before."""
        kept = tuple(one for one in start.weights if one.at < change.at)
        return replace(start, weights=(*kept, change))

    @property
    def micro_batches_per_step(self) -> int:
        """Micro-batches of each rank in a step."""
        return self._micro_batches(self.step_size)

    @property
    def num_sources(self) -> int:
        return self.units.num_sources

    @property
    def is_endless(self) -> bool:
        return self.units.is_endless

    @property
    def num_samples(self) -> int:
        return self.units.num_samples

    def at_position(self: Steps, number: int) -> Steps:
        return replace(self, units=self.units.at_position(number))

    def continued(self: Steps, start: Cursor, world_size: int, workers: int) -> Steps:
        """Returns the plan from a step on.

        Args:
            start: A cursor of this plan, or of one with another world size or other batches.
            world_size: Number of ranks.
            workers: Streams of each rank.
        """
        return replace(self, start=start, world_size=world_size, workers=workers)

    def step_of(self, unit: int) -> int:
        """Returns the number of the step that a unit belongs to.

        Args:
            unit: A unit from the start on.
        """
        if self.is_endless:
            return self.start.step + (unit - self.start.unit) // self.step_size
        epoch = self.units.epoch_at(unit) - self._first_epoch
        first = self._unit_range(epoch)[0]
        return self._first_step(epoch) + (unit - first) // self.step_size

    def cursor_after(self, units: int, step: int | None = None) -> Cursor:
        """Returns where a job continues that has passed units: those of whole steps, delivered or left out.

        Weights that were set, and steps to leave out, are those of the start of this plan.

        Args:
            units: How many.
            step: Number of the next step, for a job whose steps did not all have the size of this plan; None counts
                steps of this size.

        Raises:
            ConfigError: They end within a step, there are fewer of them than steps, or the weights changed over steps
                whose sizes are not known.
        """
        job = replace(self, start=replace(self.start, unit=0, step=0, micro_batch=0, base=FIRST))
        first, stop = 0, MOST_ROWS
        if not job.is_endless:
            epoch = job.units.epoch_at(units)
            first, stop = job._unit_range(epoch)
            if units >= stop:  # the rest of the epoch is dropped
                units = first = job.units.epoch_start(epoch + 1)
                stop = job._unit_range(epoch + 1)[1]
        extra = (units - first) % job.step_size
        counted = job.step_of(units)
        if step is None and extra:
            near = (units - extra, min(units - extra + job.step_size, stop))
            raise ConfigError(
                f"consumed_samples={units:,} is within a step: steps have {job.step_size:,} samples, so that "
                f"{near[0]:,} or {near[1]:,} would be the end of one. If steps had other sizes before, such as in a "
                "ramp-up of the batch size, give the number of the next step as well: step=..."
            )
        if step is None or (step == counted and not extra):
            return replace(job.start, unit=units, step=counted)
        if step > units or (step == 0) != (units == 0):
            raise ConfigError(
                f"consumed_samples={units:,} cannot be those of {step:,} steps: each has at least one sample. Give the "
                "number of samples that the whole job has consumed, and the number of steps that it has made."
            )
        begin = Base(step, units)
        if isinstance(job.units, ScheduledBlendPlan) and job._schedule.over == "steps":
            points = [point for point in job._schedule.points if point.at <= step]
            if len(points) > 1 or points[0].towards is not None:
                raise ConfigError(
                    f"consumed_samples={units:,} and step={step:,} do not say how many samples each dataset has given: "
                    "the weights of the blend changed before that step, and steps had different sizes. Restore a state "
                    "of the loader instead."
                )
        return replace(job.start, unit=units, step=step, base=begin)

    def consumed_at(self, cursor: Cursor) -> int:
        """Returns how many samples, or packs, the steps before a cursor have."""
        return cursor.unit

    # --- steps ------------------------------------------------------------------------------------------------------

    @cached_property
    def _first_epoch(self) -> int:
        return self.units.epoch_at(self.start.unit) if not self.is_endless and self.num_samples else 0

    def _micro_batches(self, size: int) -> int:
        """Returns the number of micro-batches of each rank in a step of a size."""
        most_of_a_rank = (size + self.world_size - 1) // self.world_size
        return (most_of_a_rank + self.micro_batch_size - 1) // self.micro_batch_size

    def _unit_range(self, epoch: int) -> tuple[int, int]:
        """Returns (first unit, unit after the last) of an epoch, counted from the one that holds the start."""
        if self.is_endless:
            return self.start.unit, MOST_ROWS
        number = self._first_epoch + epoch
        stop = self.units.epoch_start(number + 1)
        if self.drop_last:
            first = self.start.unit if not epoch else self.units.epoch_start(number)
            stop = first + (stop - first) // self.step_size * self.step_size
        return (self.start.unit if not epoch else self.units.epoch_start(number)), stop

    def _steps_of_epoch(self, epoch: int) -> int:
        """Returns the number of steps of an epoch, counted from the one that holds the start; skipped ones too."""
        first, stop = self._unit_range(epoch)
        return -(-(stop - first) // self.step_size)

    def _first_step(self, epoch: int) -> int:
        """Returns the number of the first step of an epoch, counted from the one that holds the start."""
        firsts = self._kept("first steps").setdefault("", [self.start.step])
        while len(firsts) <= epoch:
            firsts.append(firsts[-1] + self._steps_of_epoch(len(firsts) - 1))
        return firsts[epoch]  # type: ignore[no-any-return]

    def _skipped_in(self, epoch: int) -> list[tuple[int, int]]:
        """Returns the skipped ranges of an epoch, in steps from its first one on."""
        if not self.start.skipped:
            return []
        begin, count = self._first_step(epoch), self._steps_of_epoch(epoch)
        cut = ((max(0, first - begin), min(count, stop - begin)) for first, stop in self.start.skipped)
        return [(first, stop) for first, stop in cut if first < stop]

    def steps_of_epoch(self, epoch: int) -> int:
        """Returns how many steps of an epoch are delivered, from the start on.

        Args:
            epoch: Epoch, counted from the one that holds the start.
        """
        return self._steps_of_epoch(epoch) - sum(stop - first for first, stop in self._skipped_in(epoch))

    def step_at(self, epoch: int, number: int) -> Step:
        """Returns a step.

        Args:
            epoch: Epoch, counted from the one that holds the start.
            number: Number of the step among those of the epoch that are delivered, from the start on.
        """
        for begin, end in self._skipped_in(epoch):
            if number >= begin:
                number += end - begin
        return self._step_of_epoch(epoch, number)

    def _step_of_epoch(self, epoch: int, number: int) -> Step:
        """Returns a step of an epoch by its number among all, those that are left out as well."""
        first, stop = self._unit_range(epoch)
        unit = first + number * self.step_size
        size = min(self.step_size, stop - unit)
        return Step(self._first_step(epoch) + number, unit, size, size, self._micro_batches(size))

    def steps_per_pass(self) -> int:
        """Returns the number of whole steps of one pass over the samples; with packs, about that many."""
        return self.num_samples // self.step_size

    def cursor(self, epoch: int, delivered: int) -> Cursor:
        """Returns where a job continues after a rank has delivered micro-batches.

        Args:
            epoch: Epoch, counted from the one that holds the start.
            delivered: Micro-batches that a rank has delivered in it.
        """
        delivered += self.start.micro_batch if not epoch else 0
        number, micro_batch = divmod(delivered, self.micro_batches_per_step)
        if not self.is_endless:
            steps = self.steps_of_epoch(epoch)
            if number >= steps or (number == steps - 1 and self.step_at(epoch, number).micro_batches <= micro_batch):
                epoch, number, micro_batch = epoch + 1, 0, 0
                last = max((stop for _, stop in self.start.skipped), default=0)
                while self._first_step(epoch) < last and not self.steps_of_epoch(epoch):
                    epoch += 1
        step = self.step_at(epoch, number)
        left = tuple((first, stop) for first, stop in self.start.skipped if stop > step.number)
        return replace(self.start, unit=step.first_unit, step=step.number, micro_batch=micro_batch, skipped=left)

    def left_out_after(self, epoch: int, delivered: int) -> int:
        """Returns how many steps of an epoch are left out directly after micro-batches that a rank has delivered.

        Args:
            epoch: Epoch, counted from the one that holds the start.
            delivered: Micro-batches that a rank has delivered in it.
        """
        delivered += self.start.micro_batch if not epoch else 0
        number, micro_batch = divmod(delivered, self.micro_batches_per_step)
        if micro_batch or not self.start.skipped:
            return 0
        begin = self._first_step(epoch)
        first = self.step_at(epoch, number - 1).number + 1 if number else begin
        return max(0, min(self.step_at(epoch, number).number, begin + self._steps_of_epoch(epoch)) - first)

    def find_step(self, number: int) -> Step | None:
        """Returns the step of a number; None if it is before the start, left out, or after the end of the epoch.

        Args:
            number: Its number, from the beginning of the job.
        """
        if any(first <= number < stop for first, stop in self.start.skipped):
            return None
        # `step_at` counts those that are delivered.
        passed = sum(stop - max(first, self.start.step) for first, stop in self.start.skipped if stop <= number)
        index = number - self.start.step - passed
        if index < 0 or not self.num_samples or (not self.is_endless and index >= self.steps_of_epoch(0)):
            return None
        return self.step_at(0, index)

    def micro_batches_of_epoch(self, epoch: int) -> int:
        """Returns how many micro-batches each rank delivers in an epoch, from the start on; `MOST_ROWS` without end."""
        if self.is_endless:
            return MOST_ROWS
        steps = self.steps_of_epoch(epoch)
        if not steps:
            return 0
        last = self.step_at(epoch, steps - 1).micro_batches
        whole = (steps - 1) * self.micro_batches_per_step
        return whole + last - (self.start.micro_batch if not epoch else 0)
