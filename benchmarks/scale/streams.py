"""Workloads on what grows with the number of streams, of shards and of samples: 1 to 32 streams in one process.

An index of 100 million samples takes 3.7 GB of disk.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.data.recipe import Recipe
from benchmarks.scale.workloads import COST, MILLION, index
from benchmarks.workload import Bar, Candidate, Limit, Workload

STREAMS = (1, 32)
SHARDS = (10, 1000, 100_000)
SAMPLES = (1 * MILLION, 10 * MILLION, 100 * MILLION)
SLICE = 100
"""Samples of a slice; None reads shards as a whole."""
WINDOW = 10_000


def _point(streams: int, unit: str, value: int, recipe: Recipe, slice_length: int | None) -> Candidate:
    what = "whole shards" if slice_length is None else f"slices of {slice_length}"
    series = f"{streams} stream{'s' if streams > 1 else ''}, {what}"
    return Candidate(
        name=f"{series}, {value:,} {unit}",
        program="streams",
        options={"streams": streams, "window": WINDOW, "max_samples_per_sequence": slice_length},
        series=series,
        at=value,
        recipe=recipe,
    )


def _workload(name: str, unit: str, values: tuple[int, ...], recipe_of: Callable[[int], Recipe]) -> Workload:
    lines = [(streams, SLICE) for streams in STREAMS] + [(STREAMS[-1], None)]
    points = [[_point(streams, unit, value, recipe_of(value), length) for value in values] for streams, length in lines]
    ends = [(line[-1].name, line[0].name) for line in points]
    bars = [Bar(of=last, to=first) for last, first in ends]
    bars += [Bar(of=last, to=first, metric="added_mib", difference=True) for last, first in ends]
    return Workload(
        name=name,
        title=f"Processor time per sample over {unit}: up to {SAMPLES[-1] // MILLION} million samples of 200 bytes",
        metric=COST,
        unit="us/sample",
        better="lower",
        x_label=unit,
        recipe=recipe_of(values[0]),
        candidates=tuple(point for line in points for point in line),
        bars=tuple(bars),
        limits=tuple(Limit(of=last, metric="cpu_milliseconds_per_further_stream") for last, _ in ends),
        warmup_samples=12_800,
        samples=25_600,
        batch_size=50,
        repetitions=2,
    )


WORKLOADS = (
    _workload("streams-shards", "shards", SHARDS, lambda shards: index(SAMPLES[-1], shards)),
    _workload("streams-samples", "samples", SAMPLES, lambda samples: index(samples, SHARDS[1])),
)
