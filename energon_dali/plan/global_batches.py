"""Steps of a job that are fixed sets of samples: the rows of one stream, dealt to ranks and micro-batches.

The rows of a plan of a single stream are the units 0, 1, 2, ... of the job. Step t takes the next `size` of them,
whoever computes it: world size, workers and micro-batches only decide who gets which. So a job continues on another
number of ranks, or with another size, from the first unit that no finished step has taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.balance import Balance, deal_balanced, sum_by_slot
from energon_dali.plan.costs import TERM_COLUMNS, Cost, terms_of
from energon_dali.plan.global_step import Items, MicroBatch, Step, deal, part_of
from energon_dali.plan.job_steps import JobSteps
from energon_dali.plan.measured_rows import MeasuredRows
from energon_dali.plan.plan import MOST_ROWS, Rows, keep
from energon_dali.plan.rng import Int64Array

GLOBAL_LANES = 256
"""Interleave lanes of a job with global batches, where `parallel_shard_iters` is not given."""
_KEPT_STEPS = 4
"""Steps whose dealing is kept, at least."""
_KEPT_MICRO_BATCHES = 256
"""Micro-batches that are kept: their rows are asked for first, then their places, and what they are made of."""
_KEPT_UNITS = 4096
"""Units of a rank up to which that of more steps is kept: their places are asked for after their rows."""
_PLANNED_UNITS = 2048
_PLANNED_PER_SOURCE = 64
_MOST_PLANNED_UNITS = 65_536


@dataclass(frozen=True)
class GlobalBatchPlan(JobSteps):
    """The micro-batches of each rank, in the order in which it delivers them.

    A rank delivers its micro-batches one by one. Stream `rank + world_size * k` is made by its worker k, which makes
    micro-batches k, k + workers, k + 2 workers, ... of the rank. An epoch of a stream is what it has of an epoch of
    the units.

    Raises:
        ConfigError: The plan of the units has several streams, the sizes do not fit, or nothing was measured for the
            balance.
    """

    measured: MeasuredRows | None = None
    """What was measured of the samples, for the balance."""
    balance: Balance | None = None
    """How the costs of ranks are made equal; None deals by homes alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.balance is not None and self.measured is None:
            raise ConfigError("GlobalBatchPlan was given a balance without measures of the samples. Give both.")

    @property
    def num_streams(self) -> int:  # type: ignore[override]
        """Number of streams of all ranks."""
        return self.world_size * self.workers

    @property
    def dealt_by(self) -> str:
        """By what the items of a step are dealt, as text: a step that was begun continues if it is the same."""
        if self.balance is None:
            return ""
        described = repr(self.balance)
        return re.sub(r" at 0x[0-9a-fA-F]+", "", described)  # of costs without a text of their own

    # --- dealing ----------------------------------------------------------------------------------------------------

    def dealt(self, step: Step, rank: int) -> Items:
        """Returns what a rank has of a step, in the order of its micro-batches."""
        kept = self._kept("steps")
        found = kept.get((step.first_unit, rank))
        if found is None:
            items = self._items_of(step)
            own = self._own_items(step, items, rank)
            found = items if own is None else items.take(own)
            most = max(_KEPT_STEPS, _KEPT_UNITS // max(1, len(found.units)))
            keep(kept, (step.first_unit, rank), found, most)
        return found

    def _items_of(self, step: Step) -> Items:
        """Returns what is dealt of a step."""
        stop = step.first_unit + step.size
        return Items(np.arange(step.first_unit, stop), self._rows_of_job(step.first_unit, stop))

    def _own_items(self, step: Step, items: Items, rank: int) -> Int64Array | None:
        """Returns the indices of the items of a rank, in the order of its micro-batches; None for all as they are."""
        if self.balance is not None and self.world_size * step.micro_batches > 1:
            slots = self._slots(step, items)
            own = np.flatnonzero(slots // step.micro_batches == rank)
            return own[np.argsort(slots[own], kind="stable")]
        if self.world_size == 1:
            return None
        counts = len(items) // self.world_size + (np.arange(self.world_size) < len(items) % self.world_size)
        return np.flatnonzero(deal(self._homes(items), counts) == rank)

    def _homes(self, items: Items) -> Int64Array:
        """Returns which rank each item should go to: a lane has the same home in every step."""
        first = items.firsts
        # The lanes of other sources begin at other ranks.
        homes: Int64Array = (
            items.rows.lanes[first] + items.rows.sources[first].astype(np.int64) * 97
        ) % self.world_size
        return homes

    def _slots(self, step: Step, items: Items) -> Int64Array:
        """Returns int64[items]: which micro-batch each item is in, of which rank: rank * micro_batches + number."""
        kept = self._kept("slots")
        found = kept.get(step.first_unit)
        if found is None:
            assert self.balance is not None
            slots = self._slots_by(self.balance, items, self._counts(step), self.costs(items))
            found = keep(kept, step.first_unit, slots, _KEPT_STEPS)
        return found  # type: ignore[no-any-return]

    def _counts(self, step: Step) -> Int64Array:
        """Returns int64[ranks, micro_batches]: items of each micro-batch of a step."""
        least, longer = divmod(step.num_items, self.world_size)
        of_rank = least + (np.arange(self.world_size) < longer)[:, None]
        counts: Int64Array = of_rank // step.micro_batches
        return counts + (np.arange(step.micro_batches) < of_rank % step.micro_batches)

    def costs_by(
        self, step: Step, policies: Sequence[Balance | None]
    ) -> tuple[list[Int64Array], Int64Array, Int64Array]:
        """Returns what the micro-batches of a step cost if it is dealt by each of some policies.

        Args:
            step: A step of a plan with a balance, whose cost is taken.
            policies: Ways to deal; None is that of a plan without balance.

        Returns:
            (for each policy int64[ranks, micro_batches, 2], int64[items, 2]: the cost of each item, int64[ranks,
            micro_batches]: the items of each micro-batch).
        """
        items = self._items_of(step)
        costs, counts = self.costs(items), self._counts(step)
        found = []
        for policy in policies:
            slots = self._slots_by(policy, items, counts, costs)
            found.append(sum_by_slot(costs, slots, (self.world_size, step.micro_batches)))
        return found, costs, counts

    def _slots_by(self, policy: Balance | None, items: Items, counts: Int64Array, costs: Int64Array) -> Int64Array:
        """Returns int64[items]: the slot of each item if it is dealt by a policy; None is that without balance."""
        homes = self._homes(items)
        if policy is not None:
            return deal_balanced(costs, counts, homes, policy)
        slots = np.empty(len(items), np.int64)
        order = np.argsort(deal(homes, counts.sum(1)), kind="stable")
        slots[order] = np.repeat(np.arange(counts.size), counts.ravel())
        return slots

    def sums_by_slot(self, step: Step) -> tuple[Int64Array, Int64Array | None]:
        """Returns what the micro-batches of a step hold, and what that costs.

        Args:
            step: A step of a plan with measures.

        Returns:
            (int64[ranks, micro_batches, 6]: the terms of `fit_cost`, int64[ranks, micro_batches, 2]: the cost by the
            balance; None without one).
        """
        assert self.measured is not None
        items, shape = self._items_of(step), (self.world_size, step.micro_batches)
        values = {name: np.maximum(self.measured.of(name, items.rows), 0) for name in TERM_COLUMNS}
        terms = items.sums(terms_of(values))
        if self.balance is None:
            slots = self._slots_by(None, items, self._counts(step), terms)
            return sum_by_slot(terms, slots, shape), None
        slots = self._slots(step, items)
        return sum_by_slot(terms, slots, shape), sum_by_slot(self.costs(items), slots, shape)

    def costs(self, items: Items) -> Int64Array:
        """Returns int64[items, 2]: what each item costs the vision encoder and the language model.

        Args:
            items: Of a plan with a balance.

        Raises:
            ConfigError: A cost of the user's returns something else.
        """
        assert self.balance is not None
        assert self.measured is not None, "the constructor checks it"
        cost = self.balance.cost
        values = {name: np.maximum(self.measured.of(name, items.rows), 0) for name in cost.columns}
        return items.sums(_checked_costs(cost, cost.of(values), len(items.units)))

    def _rows_of_job(self, start: int, stop: int) -> Rows:
        """Returns units. Those of many steps are planned together: planning has a cost per source."""
        kept = self._kept("units")
        first, rows = kept.get("rows", (0, None))
        if rows is None or not first <= start or stop > first + len(rows):
            most = MOST_ROWS if self.is_endless else self.units.epoch_start(self.units.epoch_at(start) + 1)
            ahead = min(max(_PLANNED_UNITS, _PLANNED_PER_SOURCE * self.num_sources), _MOST_PLANNED_UNITS)
            first, rows = start, self.resolved_units.rows(start, max(stop, min(start + ahead, most)))
            kept["rows"] = first, rows
        return rows.take(slice(start - first, stop - first))  # type: ignore[no-any-return]

    def micro_batch(self, stream: int, epoch: int, number: int) -> MicroBatch:
        """Returns a micro-batch.

        Args:
            stream: Stream that makes it.
            epoch: Epoch, counted from the one that holds the start.
            number: Its number in the epoch of the stream.
        """
        kept = self._kept("micro-batches")
        key = stream, epoch, number
        found = kept.get(key)
        if found is None:
            step, of_step = self.place_of(stream, epoch, number)
            found = self.micro_batch_of_step(step, stream % self.world_size, of_step)
            keep(kept, key, found, _KEPT_MICRO_BATCHES)
        return found

    def micro_batch_of_step(self, step: Step, rank: int, number: int) -> MicroBatch:
        """Returns a micro-batch of a rank, by its number in a step."""
        items = self.dealt(step, rank)
        least, longer = divmod(len(items), step.micro_batches)
        first = number * least + min(number, longer)
        return MicroBatch(step, number, items.cut(first, first + least + (number < longer)))

    def place_of(self, stream: int, epoch: int, number: int) -> tuple[Step, int]:
        """Returns (step, number in the step of its rank) of a micro-batch of a stream."""
        of_rank = number * self.workers + stream // self.world_size + (self.start.micro_batch if not epoch else 0)
        of_epoch, of_step = divmod(of_rank, self.micro_batches_per_step)
        return self.step_at(epoch, of_epoch), of_step

    def size_of(self, stream: int, epoch: int, number: int) -> int:
        """Returns the number of units, or packs, of a micro-batch; deals nothing. See `micro_batch`."""
        step, of_step = self.place_of(stream, epoch, number)
        return part_of(part_of(step.num_items, self.world_size, stream % self.world_size), step.micro_batches, of_step)

    def num_units_of(self, stream: int, epoch: int, number: int) -> int:
        """Returns the number of units of a micro-batch; see `micro_batch`."""
        return self.size_of(stream, epoch, number)

    # --- rows of streams --------------------------------------------------------------------------------------------

    def micro_batches_of_stream(self, stream: int, epoch: int) -> int:
        """Returns how many micro-batches of an epoch a stream makes; `MOST_ROWS` without end."""
        if self.is_endless:
            return MOST_ROWS
        return max(0, -(-(self.micro_batches_of_epoch(epoch) - stream // self.world_size) // self.workers))

    def _rows_before(self, stream: int, epoch: int, number: int) -> int:
        """Returns how many rows the first `number` micro-batches of an epoch of a stream have."""
        in_last_step = 0
        if not self.is_endless:  # that one may be smaller
            first = self._first_of_last_step(stream, epoch)
            in_last_step = sum(self.size_of(stream, epoch, one) for one in range(first, number))
            number = min(number, first)
        if self.step_size % (self.world_size * self.micro_batch_size) == 0:
            return number * self.micro_batch_size + in_last_step
        # Sizes repeat: after as many micro-batches as a step has, a stream is at the same place of a step again.
        period = self.micro_batches_per_step
        rounds, rest = divmod(number, period)
        sizes = [self.size_of(stream, epoch, one) for one in range(min(period, number))]
        return rounds * sum(sizes) + sum(sizes[:rest]) + in_last_step

    def _first_of_last_step(self, stream: int, epoch: int) -> int:
        """Returns the first micro-batch of a stream that belongs to the last step of an epoch, or to none."""
        before = max(0, self.steps_of_epoch(epoch) - 1) * self.micro_batches_per_step
        before -= self.start.micro_batch if not epoch else 0
        return max(0, -(-(before - stream // self.world_size) // self.workers))

    def epoch_start(self, epoch: int, stream: int = 0) -> int:
        if self.is_endless:
            return 0
        stops: dict[int, int] = self._kept("epoch stops").setdefault(stream, {-1: 0})
        for one in range(len(stops) - 1, epoch):
            stops[one] = stops[one - 1] + self._rows_before(stream, one, self.micro_batches_of_stream(stream, one))
        return stops[epoch - 1]

    def locate(self, position: int, stream: int) -> tuple[int, int, int]:
        """Returns (epoch, number of the micro-batch in the epoch of its stream, place in it) of a row of a stream."""
        epoch = self.epoch_at(position, stream)
        rest = position - self.epoch_start(epoch, stream)
        number = self._find_micro_batch(stream, epoch, rest)
        return epoch, number, rest - self._rows_before(stream, epoch, number)

    def _find_micro_batch(self, stream: int, epoch: int, row: int) -> int:
        """Returns the last micro-batch of an epoch of a stream that begins at a row of it or before."""
        low, high = 0, min(self.micro_batches_of_stream(stream, epoch), row * self.step_size + self.step_size)
        while low + 1 < high:
            middle = (low + high) // 2
            if self._rows_before(stream, epoch, middle) <= row:
                low = middle
            else:
                high = middle
        return low

    def rows(self, start: int, stop: int, stream: int = 0) -> Rows:
        start, stop, stream = self.check_range(start, stop, stream)
        return Rows.joined([micro_batch.rows for _, micro_batch in self._between(start, stop, stream)])

    def places(self, start: int, stop: int, stream: int = 0) -> list[tuple[int, int, int, int]]:
        """Returns (unit, number of the micro-batch in its epoch, place in it, its step) of rows of a stream."""
        start, stop, stream = self.check_range(start, stop, stream)
        found = []
        for (number, place), micro_batch in self._between(start, stop, stream):
            step = micro_batch.step.number
            found += [(unit, number, place + n, step) for n, unit in enumerate(micro_batch.units.tolist())]
        return found

    def _between(self, start: int, stop: int, stream: int) -> list[tuple[tuple[int, int], MicroBatch]]:
        """Returns the micro-batches between two positions, each with its number and first place; cut at both ends."""
        if start == stop:
            return []
        epoch, number, place = self.locate(start, stream)
        found = []
        while start < stop:
            if number == self.micro_batches_of_stream(stream, epoch):
                epoch, number = epoch + 1, 0
                continue
            whole = self.micro_batch(stream, epoch, number)
            part = slice(place, place + stop - start)
            cut = MicroBatch(whole.step, whole.number, Items(whole.units[part], whole.rows.take(part)))
            found.append(((number, place), cut))
            start += len(cut.units)
            number, place = number + 1, 0
        return found

    def __str__(self) -> str:
        size = f"{self.step_size} units per step"
        ranks = f"{self.world_size} ranks, micro-batches of {self.micro_batch_size}"
        lines = [f"GlobalBatchPlan({size}, {ranks}, from step {self.start.step})"]
        return "\n".join([*lines, *("  " + line for line in str(self.units).splitlines())])


def _checked_costs(cost: Cost, found: object, n: int) -> Int64Array:
    """Returns what a cost returned for n samples.

    Raises:
        ConfigError: It is not int64[n, 2], at least 0.
    """
    if not isinstance(found, np.ndarray):
        what = f"a {type(found).__name__}"
    else:
        what = f"{found.dtype}{list(found.shape)}"
        if found.dtype.kind in "iu" and np.can_cast(found.dtype, np.int64) and found.shape == (n, 2):
            least = found.min(initial=0)
            if least >= 0:
                return found.astype(np.int64, copy=False)
            what += f" with numbers down to {least}"
    raise ConfigError(
        f"{type(cost).__name__}.of returned {what} for {n} samples. A cost must return int64[{n}, 2], at least 0: what "
        "each sample costs the vision encoder and the language model."
    )
