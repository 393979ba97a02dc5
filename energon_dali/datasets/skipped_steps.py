"""Ranges of steps that a run leaves out: what a state says of them, and which of them are still to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from energon_dali.errors import ConfigError, StateError
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.state_entries import MAX_COUNT
from energon_dali.worker_config import WorkerConfig

SkipBy = Literal["plan", "run"]
SKIPPED = "skipped"
"""Name of the entry of a state; it is only there while a range is still to come."""


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
        ConfigError: The numbers are no range.
    """
    if type(first) is not int or type(stop) is not int or not 0 <= first < stop <= MAX_COUNT // config.world_size:
        raise ConfigError(
            f"skip_steps({first!r}, {stop!r}) names no range of steps: give the first step to leave out and the step "
            f"after the last, two whole numbers, 0 <= first < stop <= {MAX_COUNT // config.world_size}. Steps count "
            "the batches of a rank from 0."
        )
    return SkippedSteps(first * config.world_size, stop * config.world_size, by)
