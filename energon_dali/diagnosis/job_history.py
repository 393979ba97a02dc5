"""How a job with global batches came to the state that it saved: the plan of each step, and what failed in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.source import source_of
from energon_dali.datasets.step_entries import LEFT_OUT, Deviation, cursor_of
from energon_dali.datasets.stream import State
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.delivery_log import LogPart, history_of, parts_of, uncovered_ranks
from energon_dali.loader.loader_state import merge_states, unpack_config
from energon_dali.loader.state_compatibility import check_same_source
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import Cursor
from energon_dali.plan.packs import PackedUnits
from energon_dali.plan.plan import Plan
from energon_dali.plan.rng import Int64Array
from energon_dali.plan.scheduled import FIRST, ScheduledBlendPlan

_SHOWN_RANKS = 8


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range in which the steps of a job had one size."""

    batches: GlobalBatchPlan
    """The steps, of one rank that has all of each at once."""
    start: int
    """First unit."""
    stop: int
    """Unit after the last; after that, the job had another size, or the state was saved."""
    first_step: int
    """Number of the first step."""

    @property
    def plan(self) -> Plan:
        """The plan of the units."""
        return self.batches.resolved_units


class JobHistory:
    """What the states of a job with global batches say about its steps. Reads no sample.

    Args:
        dataset: The dataset of the job, with global batches; its ranks and sizes do not matter.
        states: Those of all ranks, or one of all of them.

    Raises:
        ConfigError: The dataset has no global batches.
        StateError: The states are of another dataset, have no global batches, or are not of one job at one time.
    """

    def __init__(self, dataset: SavableDataset[Any], states: list[State]) -> None:
        self.state = merge_states(states)
        """Of all ranks."""
        refuse_streams(self.state)
        if dataset.global_batches is None:
            raise ConfigError("The dataset has no global batches. Build it with global_batch_size, as the job did.")
        source = source_of(dataset)
        check_same_source(unpack_config(self.state), source)
        self.batches = dataset.global_batches
        """The steps of the dataset, with the sizes that it was built with."""
        self.sources = source.sources
        """The datasets that it reads."""
        self.names = source.names
        """Their names, all different."""
        self.seed = dataset.worker_config.seed_offset
        self.cursor = cursor_of(self.state)
        """Where the job continues."""
        self.parts = parts_of(self.state)
        """What ranks noted."""
        self._history = history_of(self.state)
        self.deviations = Deviations.of(self.parts)
        """Units that failed or were left out."""

    @property
    def is_lost(self) -> bool:
        """Whether earlier sizes and weights were too many to be kept, so that only the units after the cursor's base
        are known.
        """
        return self._history.is_lost

    @cached_property
    def reached(self) -> int:
        """Unit after the last that was delivered."""
        begun = self.dealt.step_at(0, 0).size if self.cursor.micro_batch else 0
        return self.cursor.unit + begun

    @cached_property
    def dealt(self) -> GlobalBatchPlan:
        """The steps from the cursor on, as they were dealt when the state was saved."""
        return self.dealt_as_saved(self.state["global_batch"][0], self.cursor)

    def dealt_as_saved(self, size: int, start: Cursor) -> GlobalBatchPlan:
        """Returns steps that are dealt to the ranks and micro-batches that the job had when the state was saved.

        Args:
            size: Units, or packs, of each step.
            start: Where they begin.
        """
        return replace(
            self.batches,
            global_batch_size=size,
            micro_batch_size=self.state["global_batch"][1],
            world_size=self.state["world_size"],
            workers=1,
            uneven="ragged",
            start=start,
        )

    @cached_property
    def first_planned(self) -> int:
        """The first unit whose row is known: without the history of a job, the one that its cursor counts from."""
        if not self.is_lost:
            return 0
        plan = self.steps_of(self.state["global_batch"][0], self.cursor).resolved_units
        return plan.first_counted if isinstance(plan, PackedUnits) else self.cursor.base.drawn_from

    @cached_property
    def incomplete(self) -> list[str]:
        """Why the log is not whole, in sentences; [] if it is."""
        return _incomplete(self.parts, self.reached, self.first_planned)

    def steps_of(self, size: int, start: Cursor) -> GlobalBatchPlan:
        """Returns steps of one rank that has all of each at once.

        Args:
            size: Units, or packs, of each step.
            start: Where they begin.
        """
        return replace(
            self.batches, global_batch_size=size, micro_batch_size=1, world_size=1, uneven="ragged", start=start
        )

    def stretches(self) -> Iterator[Stretch]:
        """Yields the ranges in which steps had one size, up to the cursor.

        Raises:
            StateError: The log does not fit the cursor.
        """
        history, size = self._history, self.state["global_batch"][0]
        if history.is_lost:
            first = self.cursor.base.step
            yield Stretch(self.steps_of(size, self.cursor), self.first_planned, self.cursor.unit, first)
            return
        whole = replace(self.cursor, unit=0, step=0, base=FIRST, weights=(*history.weights, *self.cursor.weights))
        start = 0
        for change in history.sizes:
            batches = self.steps_of(change.size, whole)
            if change.unit < start or change.unit > self.cursor.unit:
                raise StateError(f"The state is damaged: its log has a change of size at unit {change.unit:,}.")
            yield Stretch(batches, start, change.unit, whole.step)
            base, plan = FIRST, batches.resolved_units
            if isinstance(plan, (ScheduledBlendPlan, PackedUnits)):
                base = plan.rebased(change.step, change.unit)
            whole, start = replace(whole, unit=change.unit, step=change.step, base=base), change.unit
        batches, own = self.steps_of(size, whole), self.steps_of(size, self.cursor).resolved_units
        drawn = [one for one in (batches.resolved_units, own) if isinstance(one, (ScheduledBlendPlan, PackedUnits))]
        if drawn and drawn[0].counts_at(self.cursor.unit) != drawn[1].counts_at(self.cursor.unit):
            raise StateError("The state is damaged: the step sizes and weights in its log do not lead to its cursor.")
        yield Stretch(batches, start, self.cursor.unit, whole.step)


@dataclass(frozen=True, eq=False)
class Deviations:
    """The deviations of all ranks, by unit."""

    units: Int64Array
    """int64[n]: units that failed, ascending."""
    outcomes: NDArray[np.int8]
    """int8[n]: what took their places."""
    left_out: list[tuple[int, int]]
    """Ranges of units that were left out, ascending."""

    @classmethod
    def of(cls, parts: list[LogPart]) -> Deviations:
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
