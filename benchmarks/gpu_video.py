"""Videos from end to end, on a GPU or, as a dry run, on the CPU, where DALI decodes VP9 and no H.264."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.contestants import bars, contestants, limits
from benchmarks.data.recipe import Recipe
from benchmarks.workload import Device, Workload

SHORT = Recipe(name="short-clips", samples=256, shards=16, style="video", seconds=10, distinct=32, seed=20)
LONG = Recipe(
    name="long-hd", samples=16, shards=8, style="video", seconds=120, rounds=30, width=1920, height=1080, distinct=8,
    seed=21,
)  # fmt: skip

_KINDS = {
    "short": (SHORT, 8, "files of 10 s, 640 x 360"),
    "long": (LONG, 2, "files of 2 minutes, 1920 x 1080"),
}
_OUTPUTS = {
    "frames": "uint8 at their size", "frames224": "uint8 at 224 x 224", "frame-patches": "packed patch tokens",
}  # fmt: skip
_DEFAULT = ("short-frames224", "short-frames", "long-frames224")
"""The other combinations run where they are named, or with --all."""


def workloads(device: Device) -> tuple[Workload, ...]:
    """Returns all combinations of files and outputs."""
    found = [_workload(device, kind, output) for kind in _KINDS for output in _OUTPUTS]
    return tuple(sorted(found, key=lambda one: (one.extra, _DEFAULT.index(one.name) if not one.extra else 0)))


def _workload(device: Device, kind: str, output: str) -> Workload:
    recipe, batch_size, title = _KINDS[kind]
    codec = "H.264"
    if device == "cpu":
        codec, recipe = "VP9", replace(recipe, name=f"{recipe.name}-vp9", codec="vp9")
    name = f"{kind}-{output}"
    return Workload(
        name=name,
        title=f"2 clips of 16 frames from {codec} {title}, to {_OUTPUTS[output]}, batches of {batch_size}, "
        f"on the {device.upper()}",
        metric="samples_per_second", unit="videos/s", recipe=recipe, output=output, device=device, seconds=3.0,
        trains=True, warmup_samples=4 * batch_size, samples=100_000, batch_size=batch_size, repetitions=3,
        extra=name not in _DEFAULT, candidates=contestants(device, native=False),
        bars=bars(device, native=False, share=0.85), limits=limits(device, native=False),
    )  # fmt: skip
