"""Input for vision-language models from end to end on a GPU or, as a dry run, on the CPU."""

from __future__ import annotations

from benchmarks.contestants import CEILING, CORES, READERS
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
    return tuple(
        front_ends(device, f"vision-{model}", model, f"JPEG 1024 x 768 to {title}", PHOTOGRAPHS)
        for model, title in MODELS.items()
    )


def front_ends(device: Device, name: str, model: str, title: str, recipe: Recipe, workers: int = READERS) -> Workload:
    """Returns a workload of a model's input, next to DALI that decodes the same files and renders nothing.

    Args:
        device: Where DALI decodes.
        name: Of the workload.
        model: See `benchmarks.vision.MODELS`.
        title: Beginning of the workload's title.
        recipe: The files.
        workers: Of the loader in whose process DALI decodes; they decode what it does not.
    """
    options: dict[str, Plain] = {"library": OURS, "model": model, "resampling": "torch", "dtype": "bfloat16"}
    rendered = Candidate(
        name="energon_dali DALI", program="vision", options={**options, "decoder": "dali", "workers": workers}
    )
    by_workers = Candidate(
        name="energon_dali SampleDecoder", program="vision", options={**options, "decoder": "sample", "workers": CORES}
    )
    ceiling = Candidate(name=CEILING, program="ceiling")
    on_gpu = device == "gpu"
    return Workload(
        name=name,
        title=f"{title}, bfloat16, batches of 16, on the {device.upper()}",
        metric="samples_per_second",
        unit="images/s",
        recipe=recipe,
        output="vision",
        device=device,
        seconds=2.0,
        trains=True,
        samples=100_000,
        batch_size=16,
        repetitions=3,
        candidates=(rendered, ceiling, by_workers),
        bars=(
            Bar(of=rendered.name, to=CEILING, at_least=0.8 if on_gpu else None),
            Bar(of=rendered.name, to=by_workers.name, at_least=1.0 if on_gpu else None),
        ),
    )
