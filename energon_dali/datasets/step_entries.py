"""Entries of states about steps: where global batches continue, what they did not deliver as planned, steps to skip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, cast

from energon_dali.datasets.restore_key import UNIT_NAME
from energon_dali.datasets.stream import State
from energon_dali.errors import ConfigError, StateError
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import MOST_UNITS, SPARES, Cursor, attempts_of, unit_of_number
from energon_dali.plan.scheduled import OVER, Base, WeightChange
from energon_dali.samples.base import Key
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.state_entries import (
    MAX_COUNT,
    checked_count,
    count_of,
    damaged,
    entry_of,
    list_of,
    numbers_of,
    state_of,
)
from energon_dali.worker_config import WorkerConfig

EMPTY = SPARES
"""The outcome of a unit that failed and has no spare."""
LEFT_OUT = SPARES + 1
"""The outcome of units that no step delivers: those of skipped steps, or of the smaller step that is dropped."""
DEVIATIONS = "deviations"
"""Name of the entry in the state of a RankIterator."""
ENDS_EPOCH = "ends_epoch"
"""Name of an entry of a state, which is only there, and True, if the data has ended and the epoch is still to end."""
SkipBy = Literal["plan", "run"]
SKIPPED = "skipped"
"""Name of the entry of a state; it is only there while a range is still to come."""


# --- where global batches continue ------------------------------------------------------------------------------------


def cursor_of(state: Mapping[str, Any]) -> Cursor:
    """Returns where a state of global batches continues.

    Raises:
        StateError: It has no cursor, or a damaged one.
    """
    entry = state.get("cursor")
    if not isinstance(entry, Mapping):
        raise StateError(
            "The state is of a job without global batches, and this one has global_batch_size. Build it as it was "
            "built when the state was saved."
        )
    cursor = Cursor(count_of(entry, "unit"), count_of(entry, "step"), count_of(entry, "micro_batch"))
    packs = count_of(entry, "packs")
    # Step 0 begins after the units that are in no pack.
    if (packs or cursor.unit) > max(1, cursor.step) * MOST_UNITS:
        raise damaged("unit", cursor.unit, f"the first one of step {cursor.step}")
    ranges = list_of(entry, "skipped")
    good = all(isinstance(row, (list, tuple)) and len(row) == 2 for row in ranges)
    if not good or not all(checked_count(row[0], "skipped") < checked_count(row[1], "skipped") for row in ranges):
        raise damaged("skipped", ranges, "a list of ranges of steps")
    for first, stop in ranges:
        cursor = replace(cursor, skipped=cursor.without_steps(first, stop).skipped)
    over = entry_of(entry, "weights_over")
    if over not in OVER:
        raise damaged("weights_over", over, " or ".join(OVER))
    changes = weights_of(entry)
    base = state_of(entry, "base")
    counts = tuple(checked_count(count, "counts") for count in list_of(base, "counts"))
    begin = Base(count_of(base, "step"), count_of(base, "unit"), count_of(base, "drawn_from"), counts)
    if not begin.drawn_from <= begin.unit <= cursor.unit or begin.step > cursor.step or sum(counts) != begin.drawn_from:
        raise damaged("base", base, "counts of the units before the cursor")
    return replace(cursor, weights=changes, weights_over=over, base=begin, packs=packs)


def weights_of(entry: Mapping[str, Any]) -> tuple[WeightChange, ...]:
    """Returns the changes of weights of an entry, in their order.

    Raises:
        StateError: They are missing or damaged.
    """
    changes = tuple(_weight_change(row) for row in list_of(entry, "weights"))
    if any(a.at >= b.at for a, b in pairwise(changes)):
        raise damaged("weights", [change.at for change in changes], "changes of weights at steps or samples that rise")
    return changes


def _weight_change(row: Any) -> WeightChange:
    if not isinstance(row, (list, tuple)) or len(row) not in (2, 3, 4):
        raise damaged("weights", row, "a step or sample and a list of weights")
    change = {"at": row[0], "weights": row[1], "begin": row[3] if len(row) == 4 else []}
    at, weights = count_of(change, "at"), numbers_of(change, "weights", len(list_of(change, "weights")))
    until = None if len(row) == 2 else checked_count(row[2], "weights")
    if until is not None and until <= at:
        raise damaged("weights", row, "weights that are reached later than they begin to move")
    begin = tuple(numbers_of(change, "begin", len(weights))) if len(row) == 4 else None
    for given in (weights, begin):
        if given is not None and not any(given):
            raise damaged("weights", row, "weights of which one is positive")
    return WeightChange(at, tuple(weights), until, begin)


def weights_entry(changes: Iterable[WeightChange]) -> list[list[Any]]:
    """Returns the entry of a state for changes of weights; see `weights_of`."""
    rows: list[list[Any]] = []
    for change in changes:
        row: list[Any] = [change.at, list(change.weights)]
        if change.until is not None:
            row.append(change.until)
            if change.begin is not None:
                row.append(list(change.begin))
        rows.append(row)
    return rows


def cursor_entry(cursor: Cursor) -> State:
    """Returns the entry of a state for a cursor; see `cursor_of`."""
    base = cursor.base
    return {
        "unit": cursor.unit,
        "step": cursor.step,
        "micro_batch": cursor.micro_batch,
        "skipped": [list(one) for one in cursor.skipped],
        "weights": weights_entry(cursor.weights),
        "weights_over": cursor.weights_over,
        "packs": cursor.packs,
        "base": {"step": base.step, "unit": base.unit, "drawn_from": base.drawn_from, "counts": list(base.counts)},
    }


# --- what global batches did not deliver as planned -------------------------------------------------------------------


class Deviation(NamedTuple):
    """Units that were not delivered as planned."""

    unit: int
    """The first of them."""
    outcome: int
    """Which spare took its place, from 0 on; or EMPTY, or LEFT_OUT."""
    num_units: int
    """How many units; 1 unless they were left out."""


def units_of_key(key: Key) -> list[int]:
    """Returns the numbers of the units and spares that a batch is made of.

    Args:
        key: The restore key of the batch.
    """
    samples = [part for part in key if type(part) is tuple]
    if samples and type(samples[0][-1]) is tuple:  # packs, whose keys have those of their samples
        samples = [part for pack in samples for part in pack if type(part) is tuple]
    return [part[part.index(UNIT_NAME) + 1] for part in samples]


def find_deviations(plan: GlobalBatchPlan, stream: int, epoch: int, number: int, key: Key) -> tuple[Deviation, ...]:
    """Returns where a micro-batch differs from its units, in their order; () if it does not.

    Args:
        plan: The global batches.
        stream: Stream that made it.
        epoch: Epoch, counted from the one that holds the start.
        number: Its number in the epoch of the stream.
        key: Its restore key.
    """
    numbers, size = units_of_key(key), plan.num_units_of(stream, epoch, number)
    if len(numbers) == size and not attempts_of(max(numbers)):
        return ()
    outcomes = {unit_of_number(one): attempts_of(one) - 1 for one in numbers if attempts_of(one) <= SPARES}
    found = [Deviation(unit, attempt, 1) for unit, attempt in outcomes.items() if attempt >= 0]
    if len(outcomes) < size:
        units = plan.micro_batch(stream, epoch, number).units.tolist()
        found += [Deviation(unit, EMPTY, 1) for unit in units if unit not in outcomes]
    return tuple(sorted(found))


# --- steps that are left out ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class SkippedSteps:
    """A range of batches that are not delivered."""

    first: int
    """First batch, in the order of the job: rank r delivers batch number step * world_size + r at a step."""
    stop: int
    """Batch after the last."""
    by: SkipBy
    """"plan" moves past them by integers; "run" makes them and drops them."""

    def steps(self, config: WorkerConfig) -> range:
        """Returns the steps of a rank, whose number of ranks may differ from that of the rank that saved the range."""
        ranks = config.world_size
        return range(-(-(self.first - config.rank) // ranks), -(-(self.stop - config.rank) // ranks))


def skipped_by_state(state: Mapping[str, Any]) -> list[SkippedSteps]:
    """Returns the ranges that a state holds, in order.

    Raises:
        StateError: The entry is damaged.
    """
    entry = state.get(SKIPPED, [])
    good = isinstance(entry, (list, tuple)) and all(
        isinstance(row, (list, tuple))
        and len(row) == 3
        and all(type(number) is int and 0 <= number <= MAX_COUNT for number in row[:2])
        and row[0] < row[1]
        and row[2] in ("plan", "run")
        for row in entry
    )
    if not good:
        raise StateError(f"The state is damaged: {SKIPPED} is {excerpt(entry)}, not a list of ranges. Restore another.")
    return sorted({SkippedSteps(row[0], row[1], cast("SkipBy", row[2])) for row in entry})


def as_entry(ranges: Iterable[SkippedSteps]) -> dict[str, Any]:
    """Returns the entry of a state for ranges; {} for none."""
    rows = [[one.first, one.stop, one.by] for one in sorted(set(ranges))]
    return {SKIPPED: rows} if rows else {}


def steps_to_skip(first: object, stop: object, by: SkipBy, config: WorkerConfig) -> SkippedSteps:
    """Returns a range of steps that a user gave.

    Args:
        first: First step.
        stop: Step after the last.
        by: How they are passed.
        config: The job.

    Raises:
        ConfigError: The numbers are not a range.
    """
    if type(first) is not int or type(stop) is not int or not 0 <= first < stop <= MAX_COUNT // config.world_size:
        raise ConfigError(
            f"skip_steps({first!r}, {stop!r}) is not a range of steps: give the first step to leave out and the step "
            f"after the last, two whole numbers, 0 <= first < stop <= {MAX_COUNT // config.world_size}. Steps count "
            "the batches of a rank from 0."
        )
    return SkippedSteps(first * config.world_size, stop * config.world_size, by)
