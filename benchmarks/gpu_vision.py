"""Input for vision-language models from end to end on a GPU or, as a dry run, on the CPU."""

from __future__ import annotations

from benchmarks.contestants import CORES
from benchmarks.cpu import OURS
from benchmarks.data.recipe import Recipe
from benchmarks.vision import MODELS
from benchmarks.workload import Bar, Candidate, Device, Plain, Workload

PHOTOGRAPHS = Recipe(
    name="vision-photos",
    samples=800,
    shards=8,
    style="jpeg",
    width=1024,
    height=768,
    target_bytes=180_000,
    distinct=200,
)


def workloads(device: Device) -> tuple[Workload, ...]:
    """Returns one workload per model: rendered by the device, and by workers that send bytes to it."""
    return tuple(_workload(device, model, title) for model, title in MODELS.items())


def _workload(device: Device, model: str, title: str) -> Workload:
    options: dict[str, Plain] = {"library": OURS, "model": model, "resampling": "torch", "dtype": "bfloat16"}
    rendered = Candidate(
        name="energon_dali DALI", program="vision", options={**options, "decoder": "dali", "workers": 2}
    )
    by_workers = Candidate(
        name="energon_dali SampleDecoder", program="vision", options={**options, "decoder": "sample", "workers": CORES}
    )
    return Workload(
        name=f"vision-{model}",
        title=f"JPEG 1024 x 768 to {title}, bfloat16, batches of 16, on the {device.upper()}",
        metric="samples_per_second",
        unit="images/s",
        recipe=PHOTOGRAPHS,
        output="vision",
        device=device,
        seconds=2.0,
        trains=True,
        samples=100_000,
        batch_size=16,
        repetitions=3,
        candidates=(rendered, by_workers),
        bars=(Bar(of=rendered.name, to=by_workers.name),),
    )
