"""Videos from end to end on a GPU or on the CPU, where DALI decodes only VP9, not H.264: the dry run uses VP9."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.contestants import bars, contestants, limits
from benchmarks.data.recipe import Recipe
from benchmarks.workload import Device, Workload

SHORT = Recipe(name="short-clips", samples=256, shards=16, style="video", seconds=10, distinct=16, seed=20)
LONG = Recipe(
    name="long-hd",
    samples=16,
    shards=8,
    style="video",
    seconds=120,
    rounds=30,
    width=1920,
    height=1080,
    distinct=8,
    seed=21,
)
VP9 = replace(SHORT, name="short-clips-vp9", codec="vp9", distinct=8, samples=64)

_KINDS = {
    "short": (SHORT, 8, "H.264 files of 10 s, 640 x 360"),
    "long": (LONG, 2, "H.264 files of 2 minutes, 1920 x 1080"),
    "short-vp9": (VP9, 8, "VP9 files of 10 s, 640 x 360"),
}
_OUTPUTS = {"frames": "uint8 at their size", "frames224": "uint8 at 224 x 224", "frame-patches": "packed patch tokens"}
_DEFAULT: dict[Device, tuple[str, ...]] = {
    "gpu": ("short-frames224", "short-frames", "long-frames224"),
    "cpu": ("short-frames224", "short-vp9-frames224", "long-frames224"),
}
"""The other combinations run if they are named, or with --all."""


def workloads(device: Device) -> tuple[Workload, ...]:
    """Returns all combinations of files and outputs, those that run by default first."""
    found = {f"{kind}-{output}": _workload(device, kind, output) for kind in _KINDS for output in _OUTPUTS}
    first = [found.pop(name) for name in _DEFAULT[device]]
    return (*first, *found.values())


def _workload(device: Device, kind: str, output: str) -> Workload:
    recipe, batch_size, title = _KINDS[kind]
    name = f"{kind}-{output}"
    return Workload(
        name=name,
        title=f"2 clips of 16 frames from {title}, to {_OUTPUTS[output]}, on the {device.upper()}",
        metric="samples_per_second",
        unit="videos/s",
        recipe=recipe,
        output=output,
        device=device,
        seconds=3.0,
        trains=True,
        samples=100_000,
        batch_size=batch_size,
        repetitions=3,
        extra=name not in _DEFAULT[device],
        candidates=contestants(device, native=False),
        bars=bars(device, native=False, share=0.85),
        limits=limits(device, native=False),
    )
