"""The entry of a state that says where a job with global batches continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from energon_dali.datasets.stream import State
from energon_dali.errors import StateError
from energon_dali.plan import Cursor
from energon_dali.plan.scheduled import Base
from energon_dali.shards.documents.state_entries import checked_count, count_of, damaged, list_of, numbers_of, state_of


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
    weights = []
    for row in list_of(entry, "weights"):
        if not isinstance(row, (list, tuple)) or len(row) != 2:
            raise damaged("weights", row, "a step and a list of weights")
        change = {"step": row[0], "weights": row[1]}
        numbers = numbers_of(change, "weights", len(list_of(change, "weights")))
        weights.append((count_of(change, "step"), tuple(numbers)))
    base = state_of(entry, "base")
    counts = tuple(checked_count(count, "counts") for count in list_of(base, "counts"))
    begin = Base(count_of(base, "step"), count_of(base, "unit"), count_of(base, "drawn_from"), counts)
    return replace(cursor, weights=tuple(weights), base=begin)


def cursor_entry(cursor: Cursor) -> State:
    """Returns the entry of a state for a cursor; see `cursor_of`."""
    base = cursor.base
    return {
        "unit": cursor.unit,
        "step": cursor.step,
        "micro_batch": cursor.micro_batch,
        "skipped": [list(one) for one in cursor.skipped],
        "weights": [[step, list(weights)] for step, weights in cursor.weights],
        "base": {"step": base.step, "unit": base.unit, "drawn_from": base.drawn_from, "counts": list(base.counts)},
    }
