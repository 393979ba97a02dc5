"""The suite `scale`: what large datasets cost, from made-up indices of 1 to 100 million samples.

An index takes 37 bytes per sample, so that all of them take 12 GB of disk.
"""

from __future__ import annotations

import dataclasses

from benchmarks.data.recipe import Recipe
from benchmarks.workload import Bar, Candidate, Limit, Plain, Workload

OURS, ENERGON = "energon_dali", "megatron.energon"
MILLION = 1_000_000
SAMPLES = (1 * MILLION, 10 * MILLION, 50 * MILLION, 100 * MILLION)
SHARDS = (10, 10_000)
WINDOWS = (1, 1000, 100_000)
COST = "cpu_microseconds_per_sample"
SMALLEST = "1 million samples, 10 shards, window 1"
DATASETS = 1000

_ENERGON_CASES = {(100 * MILLION, 10_000): 1000}
"""Window that megatron-energon is measured with, by samples and shards."""


def index(samples: int, shards: int) -> Recipe:
    """Returns the recipe of a made-up index."""
    return Recipe(name=f"index-{samples // MILLION}m-{shards}", samples=samples, shards=shards, style="index")


def reading(samples: int, shards: int, window: int, library: str = OURS) -> Candidate:
    """Returns the candidate that reads an index with a window."""
    name = SMALLEST if samples is SAMPLES[0] and (shards, window) == (SHARDS[0], 1) else _name(shards, window)
    options: dict[str, Plain] = {"library": library, "window": window, "max_samples_per_sequence": 100}
    own = library == OURS
    return Candidate(
        name=name if own else f"megatron-energon, {name}",
        program="scale",
        options=options,
        environment="own" if own else "energon",
        series=f"{shards:,} shards" if own else "",
        at=window,
        recipe=index(samples, shards),
    )


def _name(shards: int, window: int) -> str:
    return f"{shards:,} shards, window {window:,}"


def _workload(samples: int) -> Workload:
    candidates = [reading(samples, shards, window) for shards in SHARDS for window in WINDOWS]
    smallest = dataclasses.replace(reading(SAMPLES[0], SHARDS[0], 1), series="")  # on no line of the other sizes
    if samples != SAMPLES[0]:
        candidates.insert(0, smallest)
    bars = [
        Bar(of=_name(shards, WINDOWS[2]), to=_name(shards, WINDOWS[1]), metric=COST, at_most=1.3) for shards in SHARDS
    ]
    bars += [
        Bar(of=_name(shards, WINDOWS[2]), to=SMALLEST, metric="uss_mib", at_most=64, difference=True)
        for shards in SHARDS
    ]
    for shards in SHARDS:
        window = _ENERGON_CASES.get((samples, shards))
        if window is not None:
            foreign = reading(samples, shards, window, ENERGON)
            candidates.append(foreign)
            bars.append(Bar(of=_name(shards, window), to=foreign.name, metric=COST, at_most=1))
    return Workload(
        name=f"scale-{samples // MILLION}m",
        title=f"A worker's processor time per sample: {samples // MILLION} million samples of 200 bytes of text",
        metric=COST,
        unit="us/sample",
        better="lower",
        x_label="window",
        recipe=index(samples, SHARDS[0]),
        candidates=tuple(candidates),
        bars=tuple(bars),
        seconds=6,
        warmup_samples=5000,
        samples=45_000,
        batch_size=50,
        repetitions=2,
    )


BLEND = Workload(
    name="scale-blend",
    title=f"Files opened per sample: a blend of {DATASETS:,} datasets of 100 samples",
    metric="files_opened_per_sample",
    unit="files/sample",
    better="lower",
    recipe=Recipe(name="scale-blend", samples=100 * DATASETS, shards=DATASETS, style="text"),
    candidates=(
        Candidate(name="energon_dali", program="blend_files", options={"library": OURS, "leaves": DATASETS}),
        Candidate(name="one dataset", program="blend_files", options={"library": OURS, "leaves": 1}),
        Candidate(
            name="megatron-energon",
            program="blend_files",
            options={"library": ENERGON, "leaves": DATASETS},
            environment="energon",
        ),
    ),
    bars=(
        Bar(of="energon_dali", to="one dataset", metric=COST),
        Bar(of="energon_dali", to="megatron-energon", metric=COST),
    ),
    limits=(Limit(of="energon_dali", metric="files_opened_per_sample", at_most=0.01),),
    warmup_samples=10_000,
    samples=10_000,
    batch_size=50,
    repetitions=3,
)
"""Until all datasets have been read once, their files are opened for the first time: that is the warm-up."""

WORKLOADS = (*(_workload(samples) for samples in SAMPLES), BLEND)
