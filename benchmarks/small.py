"""Small samples, where nothing hides what a loader does for each of them: JSON, text, 32 x 32 PNGs, and a large blend.

The processor time is that of all processes, and counts what is read ahead of the last batch.
"""

from __future__ import annotations

from benchmarks.cpu import ENERGON, OURS
from benchmarks.data.recipe import Recipe
from benchmarks.workload import Bar, Candidate, Environment, Limit, Plain, Workload

JSON = Recipe(name="small-json", style="small-json", samples=200_000, shards=20, seed=50)
PNG = Recipe(name="small-png", style="small-png", samples=50_000, shards=10, seed=51)
TEXT = Recipe(name="small-text", style="small-text", samples=200_000, shards=20, seed=52)
DATASETS = 1000
BLENDED = Recipe(name="small-blend", style="small-json", samples=100 * DATASETS, shards=DATASETS, seed=53)
WINDOW = 1000
COST = "cpu_microseconds_per_sample"


def _candidates(workers: int, leaves: int = 1) -> tuple[Candidate, ...]:
    where = f"{workers} workers" if workers else "in process"
    options: dict[str, Plain] = {"workers": workers, "window": WINDOW, "leaves": leaves}

    def one(name: str, program: str, environment: Environment, format: str = "", library: str = "") -> Candidate:
        named = {**options, "library": library} if library else options
        return Candidate(
            name=f"{name}, {where}", program=program, environment=environment, format=format, options=named
        )

    blended = (
        one("energon_dali", "small_energon_style", "own", library=OURS),
        one("megatron-energon", "small_energon_style", "energon", library=ENERGON),
        one("Grain", "small_grain", "peers", "arrayrecord"),
    )
    if leaves > 1:
        return blended
    return (
        *blended,
        one("webdataset", "small_torch_style", "peers", library="webdataset"),
        one("LitData", "small_torch_style", "peers", "litdata", "litdata"),
        one("MosaicML Streaming", "small_torch_style", "peers", "mds", "mds"),
    )


def _workload(name: str, title: str, recipe: Recipe, microseconds: float | None, leaves: int = 1) -> Workload:
    with_workers = _candidates(2, leaves)
    candidates = (*_candidates(0, leaves), *with_workers)
    own = (candidates[0], with_workers[0])
    return Workload(
        name=name,
        title=title,
        metric="samples_per_second",
        unit="samples/s",
        recipe=recipe,
        output=recipe.style,
        candidates=candidates,
        bars=(
            *(Bar(of=with_workers[0].name, to=other.name, at_least=1.0) for other in with_workers[1:]),
            *(Bar(of=with_workers[0].name, to=other.name, metric=COST) for other in with_workers[1:]),
        ),
        limits=tuple(Limit(of=one.name, metric=COST, at_most=microseconds) for one in own),
        seconds=2,
        warmup_samples=40 * DATASETS if leaves > 1 else 20_000,
        samples=100_000,
        repetitions=3,
    )


WORKLOADS = (
    _workload("small-json", "JSON of 200 bytes, parsed, batches of 64, shuffled", JSON, 15),
    _workload("small-text", "Texts of 200 bytes, batches of 64, shuffled", TEXT, None),
    _workload("small-png", "PNGs of 32 x 32 to uint8 batches of 64, shuffled", PNG, 80),
    _workload("small-blend", f"JSON of 200 bytes, a blend of {DATASETS:,} datasets of 100", BLENDED, 50, DATASETS),
)
