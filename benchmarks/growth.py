"""How throughput scales with the batch size, the image size, datasets, shards and workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.contestants import CORES, READERS
from benchmarks.data.recipe import Recipe
from benchmarks.gpu_images import IMAGENET
from benchmarks.workload import Bar, Candidate, Device, Plain, Workload

DALI, SAMPLE, BARE = "energon_dali DALI", "energon_dali SampleDecoder", "DALI alone, from memory"

THUMBNAILS = {
    shards: Recipe(
        name=f"shards-{shards}",
        samples=20_000,
        shards=shards,
        style="photo",
        width=128,
        height=96,
        distinct=200,
        seed=30,
    )
    for shards in (10, 100, 1000, 10_000)
}
"""The same small images, 2000 to 2 in a shard: the cost of a shard shows best with cheap samples."""
LEAVES = Recipe(
    name="growth-leaves",
    samples=4000,
    shards=200,
    style="jpeg",
    width=500,
    height=375,
    target_bytes=110_000,
    distinct=400,
    seed=31,
)
SIDES = {
    side: Recipe(
        name=f"side-{side}",
        samples=max(64, min(4000, 2**28 // side**2)),
        shards=8,
        style="photo",
        width=side,
        height=side,
        distinct=64,
        seed=32,
    )
    for side in (128, 256, 512, 1024, 2048)
}
_WORKERS = tuple(count for count in (1, 2, 4, 8, 16) if count <= max(2, CORES))


def workloads(device: Device) -> tuple[Workload, ...]:
    """Returns one workload per question; its candidates are the points of its lines."""
    sample: dict[str, Plain] = {"decoder": "sample", "workers": CORES}
    dali: dict[str, Plain] = {"decoder": "dali", "workers": READERS}
    batch, image, leaf, shard = (
        ((1, 4, 16, 64, 256), {"batch_size": lambda x: x}),
        (tuple(SIDES), {"recipe": lambda x: SIDES[x]}),
        ((1, 10, 50, 200), {"leaves": lambda x: x}),
        (tuple(THUMBNAILS), {"recipe": lambda x: THUMBNAILS[x]}),
    )
    return (
        _workload(
            device,
            "batch-size",
            "samples in a batch",
            IMAGENET,
            [*_line(DALI, dali, *batch), *_line(BARE, None, *batch)],
        ),
        _workload(
            device,
            "image-size",
            "pixels of a side",
            IMAGENET,
            [*_line(DALI, dali, *image), *_line(BARE, None, *image)],
            batch_size=32,
        ),
        _workload(
            device,
            "datasets",
            "datasets in the blend",
            LEAVES,
            [*_line(DALI, dali, *leaf), *_line(SAMPLE, sample, *leaf)],
        ),
        _workload(
            device, "shards", "shards", THUMBNAILS[10], [*_line(DALI, dali, *shard), *_line(SAMPLE, sample, *shard)]
        ),
        _workload(
            device,
            "workers",
            "workers",
            IMAGENET,
            [
                *_line(DALI, dali, (0, *_WORKERS), {"workers": lambda x: x}),
                *_line(SAMPLE, sample, _WORKERS, {"workers": lambda x: x}),
            ],
        ),
    )


def _line(series: str, options: dict[str, Plain] | None, places: Sequence[int], change: Any) -> list[Candidate]:
    """Returns a candidate per point; without options it is bare DALI.

    Args:
        series: Name of the line.
        options: Of `energon_style`.
        places: Positions of the points.
        change: Which option, or field of the candidate, becomes what at a place.
    """
    found = []
    ((name, at),) = change.items()
    for place in places:
        fields: dict[str, Any] = {name: at(place)} if name in ("recipe", "batch_size") else {}
        told = {"library": "energon_dali", **options, **({} if fields else {name: at(place)})} if options else {}
        found.append(
            Candidate(
                name=f"{series}, {place:,}",
                program="energon_style" if options else "ceiling",
                options=told,
                series=series,
                at=place,
                **fields,
            )
        )
    return found


def _workload(
    device: Device, name: str, x_label: str, recipe: Recipe, candidates: list[Candidate], batch_size: int = 64
) -> Workload:
    lines: dict[str, list[str]] = {}
    for candidate in candidates:
        lines.setdefault(candidate.series, []).append(candidate.name)
    return Workload(
        name=name,
        title=f"Throughput against {x_label}, uint8 at their size, on the {device.upper()}",
        x_label=x_label,
        metric="samples_per_second",
        unit="samples/s",
        recipe=recipe,
        output="uint8",
        device=device,
        seconds=2.0,
        samples=100_000,
        batch_size=batch_size,
        repetitions=3,
        candidates=tuple(candidates),
        bars=tuple(Bar(of=names[-1], to=names[0]) for names in lines.values()),
    )
