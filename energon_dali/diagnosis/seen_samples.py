"""Which samples a state of a job with global batches has seen, and how often: from the plan and the log of the state.

No sample is read. Memory grows with the number of samples in the datasets, not with that of the steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.source import source_of
from energon_dali.datasets.step_entries import EMPTY, LEFT_OUT, Deviation, cursor_of
from energon_dali.datasets.stream import State
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.delivery_log import LogPart, history_of, parts_of, uncovered_ranks
from energon_dali.loader.loader_state import merge_states, unpack_config
from energon_dali.loader.state_compatibility import check_same_source
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import Cursor, spare_number
from energon_dali.plan.packs import PackedUnits
from energon_dali.plan.plan import Plan, Rows, source_offsets
from energon_dali.plan.rng import Int64Array
from energon_dali.plan.scheduled import FIRST, ScheduledBlendPlan
from energon_dali.shards.documents.state_entries import DamagedStateError

_AT_ONCE = 65_536
"""Units that are planned together."""
_SHOWN_RANKS = 8

Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class SeenSample:
    """A sample that was seen, or should have been."""

    source: int
    """Number of its source."""
    shard: int
    """Number of its shard."""
    index: int
    """Its index in the shard."""
    number: int
    """Its number in the dataset."""
    seen: int
    """How often it was delivered."""
    spare: int
    """How often of these in the place of another sample, which failed."""
    failed: int
    """How often it should have been delivered, and failed or was skipped by a hook."""


class SeenSamples:
    """The samples that a checkpoint has seen. Iterate it to get them, ordered by source and number.

    `find_seen` makes it.

    Args:
        dataset: The dataset of the job, with global batches.
        state: Of all of its ranks.
        progress: Called with the number of units that were passed, and the number of all.
    """

    def __init__(self, dataset: SavableDataset[Any], state: State, progress: Progress) -> None:
        batches = dataset.global_batches
        assert batches is not None
        self._batches = batches
        self._state = state
        self.cursor = cursor_of(state)
        """Where the job continues."""
        source = source_of(dataset)
        self.sources = source.sources
        """The datasets that it reads."""
        self.names = source.names
        """Their names, all different."""
        self._seed = dataset.worker_config.seed_offset
        self._numbers = _Numbers(self.sources)
        self._counts = np.zeros(self._numbers.total, np.int32)
        self._spares: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
        parts = parts_of(state)
        self._history = history_of(state)
        self._deviations = _Deviations.of(parts)
        self.incomplete = _incomplete(parts, self._reached, self._first_planned)
        """Why this is not exact, in sentences; [] if it is."""
        try:
            self._count_all(progress)
        except ConfigError as error:
            raise DamagedStateError(f"the weights in it do not fit this blend. {error}") from error

    @property
    def num_seen(self) -> int:
        """How many samples were delivered, over all of their repetitions."""
        return int(self._counts.sum(dtype=np.int64))

    @property
    def num_spares(self) -> int:
        """How many of them took the place of another sample."""
        return self._spares.total()

    @property
    def num_failed(self) -> int:
        """How many units failed."""
        return self._failed.total()

    def __iter__(self) -> Iterator[SeenSample]:
        failed = np.array(sorted(self._failed), np.int64)
        for number, source in enumerate(self.sources):
            first, stop = self._numbers.range_of(number)
            seen = np.flatnonzero(self._counts[first:stop])
            seen = np.union1d(seen, failed[np.searchsorted(failed, first) : np.searchsorted(failed, stop)] - first)
            starts = source.reader.shard_starts
            shards = np.searchsorted(starts, seen, side="right") - 1
            for inside, shard, start in zip(seen.tolist(), shards.tolist(), starts[shards].tolist(), strict=True):
                at = first + inside
                yield SeenSample(
                    number,
                    shard,
                    inside - start,
                    inside,
                    int(self._counts[at]),
                    self._spares.get(at, 0),
                    self._failed.get(at, 0),
                )

    # --- counting --------------------------------------------------------------------------------------------------

    @cached_property
    def _reached(self) -> int:
        begun = self._dealt.step_at(0, 0).size if self.cursor.micro_batch else 0
        return self.cursor.unit + begun

    @cached_property
    def _dealt(self) -> GlobalBatchPlan:
        """The steps from the cursor on, as they were dealt when the state was saved."""
        size, micro_batch = self._state["global_batch"]
        return replace(
            self._batches,
            global_batch_size=size,
            micro_batch_size=micro_batch,
            world_size=self._state["world_size"],
            workers=1,
            uneven="ragged",
            start=self.cursor,
        )

    def _count_all(self, progress: Progress) -> None:
        done, total = 0, self.cursor.unit
        plan: Plan = self._batches.units
        if self._first_planned:
            self._count_members()
        for plan, start, stop in self._stretches():
            for first, last in self._deviations.ranges_between(start, stop):
                for begin in range(first, last, _AT_ONCE):
                    end = min(begin + _AT_ONCE, last)
                    rows = plan.rows(begin, end)
                    if isinstance(plan, PackedUnits):  # samples that are in no pack are in no step
                        units = plan.packed_between(begin, end)
                        self._count(units, rows.take(units - begin))
                    else:
                        self._count(np.arange(begin, end), rows)
                    progress(end - done, total)
                    done = end
        if self.cursor.micro_batch:
            self._count_begun(plan)

    @cached_property
    def _first_planned(self) -> int:
        """The first unit whose row is known: without the history of a job, the one that its cursor counts from."""
        if not self._history.is_lost:
            return 0
        plan = self._plan_of(self._state["global_batch"][0], self.cursor)
        return plan.first_counted if isinstance(plan, PackedUnits) else self.cursor.base.drawn_from

    def _count_members(self) -> None:
        """Counts the units before the first whose row is known: the first rows of each dataset of the blend."""
        plan, counts = self._batches.units, self.cursor.base.counts
        packed = self._plan_of(self._state["global_batch"][0], self.cursor)
        if isinstance(packed, PackedUnits):
            counts = packed.counts_at(self._first_planned)
        if not isinstance(plan, ScheduledBlendPlan) or sum(counts) != self._first_planned:
            raise StateError("The state is damaged: the counts of its cursor are not those of a blend of the job.")
        for offset, member, count in zip(source_offsets(plan.members), plan.members, counts, strict=True):
            for begin in range(0, count, _AT_ONCE):
                rows = member.rows(begin, min(begin + _AT_ONCE, count)).renumbered(offset)
                np.add.at(self._counts, self._numbers.of_rows(rows), 1)

    def _stretches(self) -> Iterator[tuple[Plan, int, int]]:
        """Yields (plan of the units, first unit, unit after the last) for each range in which steps had one size.

        Raises:
            StateError: The log does not fit the cursor.
        """
        history, size = self._history, self._state["global_batch"][0]
        if history.is_lost:
            yield self._plan_of(size, self.cursor), self._first_planned, self.cursor.unit
            return
        whole = replace(self.cursor, unit=0, step=0, base=FIRST, weights=(*history.weights, *self.cursor.weights))
        start = 0
        for change in history.sizes:
            plan = self._plan_of(change.size, whole)
            if change.unit < start or change.unit > self.cursor.unit:
                raise StateError(f"The state is damaged: its log has a change of size at unit {change.unit:,}.")
            yield plan, start, change.unit
            base = FIRST
            if isinstance(plan, (ScheduledBlendPlan, PackedUnits)):
                base = plan.rebased(change.step, change.unit)
            whole, start = replace(whole, unit=change.unit, step=change.step, base=base), change.unit
        plan, own = self._plan_of(size, whole), self._plan_of(size, self.cursor)
        drawn = [one for one in (plan, own) if isinstance(one, (ScheduledBlendPlan, PackedUnits))]
        if drawn and drawn[0].counts_at(self.cursor.unit) != drawn[1].counts_at(self.cursor.unit):
            raise StateError("The state is damaged: the step sizes and weights in its log do not lead to its cursor.")
        yield plan, start, self.cursor.unit

    def _plan_of(self, size: int, start: Cursor) -> Plan:
        return replace(
            self._batches, global_batch_size=size, micro_batch_size=1, world_size=1, uneven="ragged", start=start
        ).resolved_units

    def _count_begun(self, plan: Plan) -> None:
        """Counts the micro-batches of the step that was begun."""
        batches = self._dealt
        if batches.dealt_by != self._state["balance"]:
            raise StateError(
                f"A step was begun, whose samples were dealt by {self._state['balance'] or 'no balance'}. Build the "
                "dataset with the same balance, or save the state after a whole step."
            )
        step = batches.step_at(0, 0)
        parts = [
            batches.micro_batch_of_step(step, rank, number).units
            for rank in range(batches.world_size)
            for number in range(min(self.cursor.micro_batch, step.micro_batches))
        ]
        units = np.sort(np.concatenate(parts))
        rows = plan.rows(step.first_unit, step.first_unit + step.size)
        self._count(units, rows.take(units - step.first_unit))

    def _count(self, units: Int64Array, rows: Rows) -> None:
        """Counts units that were delivered, or failed.

        Args:
            units: int64[n]: ascending.
            rows: Their rows.
        """
        flat = self._numbers.of_rows(rows)
        good = np.ones(len(units), np.bool_)
        for at, outcome in self._deviations.among(units):
            good[at] = False
            self._failed[int(flat[at])] += 1
            if outcome != EMPTY:
                self._count_spare(int(units[at]), int(rows.sources[at]), outcome)
        np.add.at(self._counts, flat[good], 1)

    def _count_spare(self, unit: int, number: int, attempt: int) -> None:
        source = self.sources[number]
        index = source.number_of(spare_number(self._seed, unit, attempt, source.num_samples))
        at = self._numbers.range_of(number)[0] + index
        self._counts[at] += 1
        self._spares[at] += 1


class _Numbers:
    """Numbers the samples of all sources, one source after the other.

    Args:
        sources: The sources.
    """

    def __init__(self, sources: tuple[Source, ...]) -> None:
        starts, first_shards, firsts = [], [], [0]
        num_shards = 0
        for source in sources:
            base, own = source.plan.base, source.reader.shard_starts
            first_shards.append(num_shards)
            num_shards += len(own)
            starts.append(own + firsts[-1])
            size = int((own[base.shard] + base.stop).max()) if len(base.shard) else 0
            firsts.append(firsts[-1] + size)
        self._firsts = firsts
        self._starts = np.concatenate(starts)
        self._first_shards = np.array(first_shards)

    @property
    def total(self) -> int:
        """How many numbers there are."""
        return self._firsts[-1]

    def range_of(self, source: int) -> tuple[int, int]:
        """Returns the first number of a source, and the number after its last."""
        return self._firsts[source], self._firsts[source + 1]

    def of_rows(self, rows: Rows) -> Int64Array:
        """Returns int64[n]: the number of the sample of each row."""
        numbers: Int64Array = self._starts[self._first_shards[rows.sources] + rows.shards] + rows.indices
        return numbers


@dataclass(frozen=True, eq=False)
class _Deviations:
    """The deviations of all ranks, by unit."""

    units: Int64Array
    """int64[n]: units that failed, ascending."""
    outcomes: NDArray[np.int8]
    """int8[n]: what took their places."""
    left_out: list[tuple[int, int]]
    """Ranges of units that were left out, ascending."""

    @classmethod
    def of(cls, parts: list[LogPart]) -> _Deviations:
        """Returns those of the parts of a log."""
        outcomes: dict[int, int] = {}
        ranges: list[Deviation] = []
        for part in parts:
            for one in part.unpacked():
                if one.outcome == LEFT_OUT:
                    ranges.append(one)
                else:
                    outcomes[one.unit] = one.outcome
        units = sorted(outcomes)
        return cls(
            np.array(units, np.int64),
            np.array([outcomes[unit] for unit in units], np.int8),
            sorted({(one.unit, one.unit + one.num_units) for one in ranges}),
        )

    def ranges_between(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yields (first unit, unit after the last) of what was not left out of a range."""
        for first, end in self.left_out:
            if start < min(first, stop):
                yield start, min(first, stop)
            start = max(start, end)
        if start < stop:
            yield start, stop

    def among(self, units: Int64Array) -> Iterator[tuple[int, int]]:
        """Yields (index among some units, outcome) of those that failed.

        Args:
            units: int64[n]: ascending.
        """
        if not len(units):
            return
        low, high = np.searchsorted(self.units, [units[0], units[-1] + 1])
        own = self.units[low:high]
        at = np.minimum(np.searchsorted(units, own), len(units) - 1)
        for index, unit, outcome in zip(at.tolist(), own.tolist(), self.outcomes[low:high].tolist(), strict=True):
            if units[index] == unit:
                yield index, outcome


def find_seen(dataset: SavableDataset[Any], states: list[State], *, progress: Progress | None = None) -> SeenSamples:
    """Returns which samples a checkpoint has seen, and how often. Reads no sample.

    Args:
        dataset: The dataset of the job, with global batches; its ranks and sizes do not matter.
        states: Those of all ranks, or one of all of them. With fewer, it is not known which samples failed elsewhere.
        progress: Called with the number of units that were passed since the last call, and the number of all.

    Raises:
        ConfigError: The dataset has no global batches.
        StateError: The states are of another dataset, have no global batches, or are not of one job at one time.
    """
    whole = merge_states(states)
    refuse_streams(whole)
    if dataset.global_batches is None:
        raise ConfigError("The dataset has no global batches. Build it with global_batch_size, as the job did.")
    check_same_source(unpack_config(whole), source_of(dataset))
    return SeenSamples(dataset, whole, progress or (lambda done, total: None))


def refuse_streams(state: State) -> None:
    """Refuses a state that does not say what was seen.

    Args:
        state: A loader's.

    Raises:
        StateError: It has no global batches.
    """
    if "cursor" not in state:
        raise StateError(
            "The state is of a job without global batches. It does not hold which samples failed, and which of them "
            "wait in buffers, so that nothing can say exactly what was seen. Give get_train_dataset the option "
            "global_batch_size, or list the planned samples of steps with energon-dali plan --step."
        )


def _incomplete(parts: list[LogPart], reached: int, first_planned: int) -> list[str]:
    found = []
    if first_planned:
        found.append(
            "The log has no room for all changes of weights and of step sizes. Samples that failed or were left out in "
            f"units 0 to {first_planned - 1:,} of the job count as seen, and spares in their places do not."
        )
    dropped = sum(part.dropped for part in parts)
    if dropped:
        found.append(
            f"The log has no room for {dropped:,} units that failed or were left out: they count as seen, and their "
            "spares do not."
        )
    for start, stop, ranks in uncovered_ranks(parts, reached):
        shown = ", ".join(map(str, ranks[:_SHOWN_RANKS])) + (", ..." if len(ranks) > _SHOWN_RANKS else "")
        of = f"of rank{'s' if len(ranks) > 1 else ''} {shown}" if ranks else "of all ranks"
        found.append(
            f"The log {of} is missing for units {start:,} to {stop - 1:,} of the job: samples that failed there count "
            "as seen, and their spares do not. Give the states of all ranks."
        )
    return found
