"""The entry of a state that says where a job with global batches continues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from energon_dali.datasets.stream import State
from energon_dali.errors import StateError
from energon_dali.plan import Cursor
from energon_dali.plan.scheduled import OVER, Base, WeightChange
from energon_dali.shards.documents.state_entries import (
    checked_count,
    count_of,
    damaged,
    entry_of,
    list_of,
    numbers_of,
    state_of,
)


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
    return replace(cursor, weights=changes, weights_over=over, base=begin)


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
        "base": {"step": base.step, "unit": base.unit, "drawn_from": base.drawn_from, "counts": list(base.counts)},
    }
