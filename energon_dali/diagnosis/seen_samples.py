"""Which samples a state of a job with global batches has seen, and how often: from the plan and the log of the state.

No sample is read. Memory grows with the number of samples in the datasets, not with that of the steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.row_sources import Source
from energon_dali.datasets.step_entries import EMPTY
from energon_dali.datasets.stream import State
from energon_dali.diagnosis.job_history import JobHistory
from energon_dali.errors import ConfigError, StateError
from energon_dali.plan.global_step import spare_number
from energon_dali.plan.packs import PackedUnits
from energon_dali.plan.plan import Plan, Rows, source_offsets
from energon_dali.plan.rng import Int64Array
from energon_dali.plan.scheduled import ScheduledBlendPlan
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
        job: What the states of the job say.
        progress: Called with the number of units that were passed, and the number of all.
    """

    def __init__(self, job: JobHistory, progress: Progress) -> None:
        self._job = job
        self.cursor = job.cursor
        """Where the job continues."""
        self.sources = job.sources
        """The datasets that it reads."""
        self.names = job.names
        """Their names, all different."""
        self.incomplete = job.incomplete
        """Why this is not exact, in sentences; [] if it is."""
        self._numbers = _Numbers(self.sources)
        self._counts = np.zeros(self._numbers.total, np.int32)
        self._spares: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
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

    def _count_all(self, progress: Progress) -> None:
        done, total = 0, self.cursor.unit
        plan: Plan = self._job.batches.units
        if self._job.first_planned:
            self._count_members()
        for stretch in self._job.stretches():
            plan = stretch.plan
            for first, last in self._job.deviations.ranges_between(stretch.start, stretch.stop):
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

    def _count_members(self) -> None:
        """Counts the units before the first whose row is known: the first rows of each dataset of the blend."""
        job = self._job
        plan, counts = job.batches.units, self.cursor.base.counts
        packed = job.steps_of(job.state["global_batch"][0], self.cursor).resolved_units
        if isinstance(packed, PackedUnits):
            counts = packed.counts_at(job.first_planned)
        if not isinstance(plan, ScheduledBlendPlan) or sum(counts) != job.first_planned:
            raise StateError("The state is damaged: the counts of its cursor are not those of a blend of the job.")
        for offset, member, count in zip(source_offsets(plan.members), plan.members, counts, strict=True):
            for begin in range(0, count, _AT_ONCE):
                rows = member.rows(begin, min(begin + _AT_ONCE, count)).renumbered(offset)
                np.add.at(self._counts, self._numbers.of_rows(rows), 1)

    def _count_begun(self, plan: Plan) -> None:
        """Counts the micro-batches of the step that was begun."""
        batches, state = self._job.dealt, self._job.state
        if batches.dealt_by != state["balance"]:
            raise StateError(
                f"A step was begun, whose samples were dealt by {state['balance'] or 'no balance'}. Build the "
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
        for at, outcome in self._job.deviations.among(units):
            good[at] = False
            self._failed[int(flat[at])] += 1
            if outcome != EMPTY:
                self._count_spare(int(units[at]), int(rows.sources[at]), outcome)
        np.add.at(self._counts, flat[good], 1)

    def _count_spare(self, unit: int, number: int, attempt: int) -> None:
        source = self.sources[number]
        index = source.number_of(spare_number(self._job.seed, unit, attempt, source.num_samples))
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
    return SeenSamples(JobHistory(dataset, states), progress or (lambda done, total: None))
