"""Schedules of blends for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from energon_dali.plan.scheduled import Over, Schedule, WeightPoint


def linear(*points: tuple[int, Sequence[float]], over: Over = "steps") -> Schedule:
    """Returns the schedule whose shares move from point to point, and hold from the last one on."""
    made: list[WeightPoint] = []
    for at, weights in reversed(points):
        after = replace(made[-1], towards=None) if made else None
        made.append(WeightPoint(at, tuple(weights), after))
    return Schedule(tuple(reversed(made)), over)
