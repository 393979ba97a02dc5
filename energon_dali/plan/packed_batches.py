"""Steps of a job that are fixed numbers of packs, made from lengths that are known before anything is read."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from energon_dali.errors import ConfigError
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import Cursor, Items, Step
from energon_dali.plan.packs import EpochPacks, PackedUnits, PackRule
from energon_dali.plan.plan import MOST_ROWS, Plan, keep
from energon_dali.plan.scheduled import FIRST, Base, Over, ScheduledBlendPlan, WeightChange

_KEPT_STEPS = 2
"""Steps whose packs are kept."""
_KEPT_PLACES = 64
"""Steps whose places are kept."""


@dataclass(frozen=True)
class PackedBatchPlan(GlobalBatchPlan):
    """The micro-batches of each rank where a step is `global_batch_size` packs, and a micro-batch some of them.

    The units are samples, numbered in the order of packs (`PackedUnits`): a step is a range of them, whose length
    differs from step to step. So everything that names units holds for packs: cursors, logs, spares.

    Raises:
        ConfigError: Nothing was measured, or the sizes do not fit.
    """

    rule: PackRule = field(kw_only=True)
    """How samples are packed."""
    seed: int = field(kw_only=True, default=0)
    """Seed of the order of packs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measured is None:
            raise ConfigError("PackedBatchPlan was given no measures of the samples, whose lengths decide the packs.")

    @property
    def order_window(self) -> int:  # type: ignore[override]
        return self.rule.window

    @property
    def options(self) -> dict[str, Any]:
        assert self.measured is not None
        measures = [values.identity for values in self.measured.values]
        return {"packs": {**asdict(self.rule), "seed": self.seed, "measures": measures}}

    @cached_property
    def resolved_units(self) -> PackedUnits:
        """The units in the order of packs, with the weights that were set."""
        start = self.start
        assert self.measured is not None, "the constructor checks it"
        samples, rule = self.resolved_samples, self.rule
        return PackedUnits(samples, self.measured, rule, self.seed, self.step_size, start.unit, start.step, start.base)

    @cached_property
    def resolved_samples(self) -> Plan:
        """The plan of the samples in the order in which they are drawn, with the weights that were set."""
        samples = self.units
        if not isinstance(samples, ScheduledBlendPlan):
            return samples
        # Where weights change over steps, the base is that of a window, which the packs take into account.
        base = self.start.base if self._schedule.over == "samples" else FIRST
        return replace(samples, schedule=self._schedule, base=base, step_size=self.step_size)

    def count_unpacked(self) -> tuple[int, int, int]:
        """Returns how many samples the first window has, how many are too long for a pack, and how many not measured.

        The latter two are in no pack. Where samples are cut, none is too long.
        """
        if not self.num_samples:
            return 0, 0, 0
        assert self.measured is not None
        rows = self._packs(0).window(0).rows
        measured = self.measured.of(self.rule.length, rows)
        unmeasured = int((measured < 0).sum())
        return len(rows), int((self.rule.lengths(measured) < 0).sum()) - unmeasured, unmeasured

    # --- weights ----------------------------------------------------------------------------------------------------

    def rebased(self, start: Cursor, old_size: int) -> Cursor:
        return start  # windows and their draws do not depend on the size of steps

    def folded(self, cursor: Cursor) -> tuple[Cursor, tuple[WeightChange, ...]]:
        if cursor.weights_over == "samples":
            window = self._of_cursor(cursor)._packs(0).start_of(cursor.unit)  # its rows are drawn together
            folded, changes = super().folded(replace(cursor, unit=window))
            return replace(folded, unit=cursor.unit), changes
        # The window has the weights of the step in which it begins. Those before them are over.
        begun = [change for change in cursor.weights if change.at <= cursor.base.step]
        if len(begun) < 2:
            return cursor, ()
        *over, held = begun
        if held.until is not None and held.begin is None:
            schedule = self._of_cursor(cursor)._schedule
            held = replace(held, begin=schedule.weights_from(held.at))
        return replace(cursor, weights=(held, *cursor.weights[len(begun) :])), tuple(over)

    def _with_change(self, start: Cursor, change: WeightChange) -> Cursor:
        changed = super()._with_change(start, change)
        if start.weights_over == "samples":
            return changed
        units, base = self._of_cursor(start).resolved_units, start.base
        if units.changing is None:
            # Weights did not change so far: the draws are counted from the first one, and by windows from now on.
            begin = units.packs_of(0).start_of(start.unit)
            base = Base(max(0, start.step - (begin < start.unit)), begin)
        # A window that begins here has the new weights, and what was drawn before it the old ones.
        schedule = self._of_cursor(changed)._schedule
        return replace(changed, base=units.base_after(base, base.unit, base.step, schedule))

    def first_change(self, start: Cursor, over: Over) -> int:
        if over == "steps":
            return super().first_change(start, over)
        packs = self._of_cursor(start).resolved_units.packs_of(0)
        begin = packs.start_of(start.unit)
        return begin if begin == start.unit and not start.micro_batch else begin + self.rule.window

    def _sample_of_step(self, start: Cursor, at: int) -> int:
        raise ConfigError(
            "The weights of this job change over samples, and from_step was given. Steps of packs have different "
            "numbers of samples: give from_sample."
        )

    def blended_before(
        self, cursor: Cursor, stop: int | None = None
    ) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
        if self._of_cursor(cursor).resolved_units.changing is not None:
            return None  # the weights of each window follow from the packs before it
        return super().blended_before(cursor, stop)

    def _counts_at(self, units: ScheduledBlendPlan, unit: int) -> tuple[int, ...]:
        return self.resolved_units.counts_at(unit)

    def _of_cursor(self, cursor: Cursor) -> PackedBatchPlan:
        return replace(self, start=cursor)

    # --- steps ------------------------------------------------------------------------------------------------------

    @property
    def _first_epoch(self) -> int:
        return self.resolved_units.first_epoch

    def _packs(self, epoch: int) -> EpochPacks:
        return self.resolved_units.packs_of(epoch)

    @property
    def num_counted_windows(self) -> int:
        """Number of windows of the first epoch whose packs this thread has counted."""
        return self._packs(0).num_counted

    def steps_per_pass(self) -> int:
        if not self.num_samples:
            return 0
        if not self.is_endless:
            return self._steps_of_epoch(0)
        window = self._packs(0).window(0)
        return self.num_samples * window.num_packs // len(window.rows) // self.step_size

    def _steps_of_epoch(self, epoch: int) -> int:
        if self.is_endless:
            return MOST_ROWS // self.step_size
        packs = self._packs(epoch).count()
        return packs // self.step_size if self.drop_last else -(-packs // self.step_size)

    def _step_of_epoch(self, epoch: int, number: int) -> Step:
        kept = self._kept("steps of epochs")
        found = kept.get((epoch, number))
        if found is None:
            found = keep(kept, (epoch, number), self._make_step(epoch, number), _KEPT_PLACES)
        return found  # type: ignore[no-any-return]

    def _make_step(self, epoch: int, number: int) -> Step:
        packs = self._packs(epoch)
        first = number * self.step_size
        unit, stop = packs.unit_of(first), packs.unit_of(first + self.step_size)
        items = self.step_size
        if not self.is_endless and number + 1 >= self._steps_of_epoch(epoch):
            items = min(items, packs.count() - first)
        return Step(self._first_step(epoch) + number, unit, stop - unit, items, self._micro_batches(items))

    def step_of(self, unit: int) -> int:
        epoch = 0 if self.is_endless else self.units.epoch_at(unit) - self._first_epoch
        return self._first_step(epoch) + self._packs(epoch).packs_before(unit) // self.step_size

    def cursor_after(self, units: int, step: int | None = None) -> Cursor:
        """Returns where a job continues that has passed packs: those of whole steps, delivered or left out.

        Args:
            units: How many packs. All windows before are counted.
            step: Number of the next step, for a job whose steps did not all have the size of this plan.

        Raises:
            ConfigError: They end within a step, or the weights change over steps whose sizes are not known.
        """
        job = replace(self, start=replace(self.start, unit=0, step=0, micro_batch=0, base=FIRST, packs=0))
        epoch, passed, steps = 0, 0, 0
        if not job.is_endless:
            while passed + job._delivered_packs(epoch) <= units:
                passed += job._packs(epoch).count()
                steps += job._steps_of_epoch(epoch)
                epoch += 1
            units = max(units, passed)  # the rest of the epoch is dropped
        extra = (units - passed) % job.step_size
        counted = steps + (units - passed) // job.step_size
        if step is None and extra:
            near = units - extra
            raise ConfigError(
                f"consumed_samples={units:,} is within a step: steps have {job.step_size:,} packs, so that {near:,} or "
                f"{near + job.step_size:,} would be the end of one. If steps had other sizes before, such as in a "
                "ramp-up of the batch size, give the number of the next step as well: step=..."
            )
        if step is not None and (step > units or (step == 0) != (units == 0)):
            raise ConfigError(
                f"consumed_samples={units:,} packs cannot be those of {step:,} steps: each has at least one pack. Give "
                "the number of packs that the whole job has consumed, and the number of steps that it has made."
            )
        if step is not None and step != counted and job.resolved_units.changing is not None:
            raise ConfigError(
                f"consumed_samples={units:,} and step={step:,} do not say how many samples each dataset has given: "
                "weights change over steps, and steps had different sizes. Restore a state of the loader instead."
            )
        unit, number = job._packs(epoch).unit_of(units - passed), counted if step is None else step
        base = job.resolved_units.rebased(number, unit)
        return replace(job.start, unit=unit, step=number, packs=units, base=base)

    def consumed_at(self, cursor: Cursor) -> int:
        return cursor.packs

    def cursor(self, epoch: int, delivered: int) -> Cursor:
        cursor = super().cursor(epoch, delivered)
        packs = self.start.packs
        if self.is_endless:
            packs += (cursor.step - self.start.step) * self.step_size
        else:
            now = self.units.epoch_at(cursor.unit) - self._first_epoch
            packs += self._packs_before(now) + self._packs(now).packs_before(cursor.unit)
        return replace(cursor, packs=packs, base=self.resolved_units.rebased(cursor.step, cursor.unit))

    def _delivered_packs(self, epoch: int) -> int:
        """Returns how many packs the steps of an epoch have; at least 1."""
        return max(1, min(self._packs(epoch).count(), self._steps_of_epoch(epoch) * self.step_size))

    def _packs_before(self, epoch: int) -> int:
        """Returns how many packs earlier epochs have, from the start on. Each is planned once."""
        counted: dict[int, int] = self._kept("packs of epochs")
        for one in range(len(counted), epoch):
            counted[one] = counted.get(one - 1, 0) + self._packs(one).count()
        return counted.get(epoch - 1, 0)

    # --- dealing ----------------------------------------------------------------------------------------------------

    def _items_of(self, step: Step) -> Items:
        kept = self._kept("items")
        found = kept.get(step.first_unit)
        if found is None:
            epoch = 0 if self.is_endless else self.units.epoch_at(step.first_unit) - self._first_epoch
            packs = self._packs(epoch)
            first = packs.packs_before(step.first_unit)
            found = keep(kept, step.first_unit, packs.items(first, first + step.num_items), _KEPT_STEPS)
        return found  # type: ignore[no-any-return]

    def num_units_of(self, stream: int, epoch: int, number: int) -> int:
        return len(self.micro_batch(stream, epoch, number).units)

    # --- rows of streams --------------------------------------------------------------------------------------------

    def _rows_before(self, stream: int, epoch: int, number: int) -> int:
        counted = self._counted(stream, epoch)
        while len(counted) <= number:
            counted.append(counted[-1] + len(self.micro_batch(stream, epoch, len(counted) - 1).units))
        return counted[number]

    def _counted(self, stream: int, epoch: int) -> array[int]:
        """Returns the rows before each micro-batch of an epoch of a stream, as far as they were counted."""
        kept = self._kept("rows before")
        found = kept.get((stream, epoch))
        if found is None:
            for old in [key for key in kept if key[0] == stream and key[1] < epoch - 1]:
                del kept[old]
            found = kept[stream, epoch] = array("q", [0])
        return found

    def _find_micro_batch(self, stream: int, epoch: int, row: int) -> int:
        counted = self._counted(stream, epoch)
        most = self.micro_batches_of_stream(stream, epoch)
        while counted[-1] <= row and len(counted) <= most:
            self._rows_before(stream, epoch, len(counted))
        return min(bisect_right(counted, row), most) - 1

    def __str__(self) -> str:
        size = f"{self.step_size} packs per step"
        ranks = f"{self.world_size} ranks, micro-batches of {self.micro_batch_size}"
        lines = [f"PackedBatchPlan({size}, {ranks}, from step {self.start.step})"]
        return "\n".join([*lines, *("  " + line for line in str(self.resolved_units).splitlines())])
