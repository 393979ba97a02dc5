"""Images from end to end: five kinds of files, three outputs, on a GPU or, as a dry run, on the CPU."""

from __future__ import annotations

from benchmarks.contestants import bars, contestants, limits
from benchmarks.data.recipe import Recipe
from benchmarks.workload import Device, Workload

IMAGENET = Recipe(
    name="imagenet-like",
    samples=4000,
    shards=16,
    style="jpeg",
    width=500,
    height=375,
    target_bytes=110_000,
    distinct=800,
    seed=10,
)
FORMATS = Recipe(name="formats", samples=2400, shards=16, style="formats", width=640, height=480, distinct=480, seed=11)
HD = Recipe(name="photos-1080p", samples=640, shards=16, style="photo", width=1920, height=1080, distinct=96, seed=12)
UHD = Recipe(name="photos-4k", samples=256, shards=16, style="photo", width=3840, height=2160, distinct=48, seed=13)
PAGES = Recipe(name="pages", samples=256, shards=16, style="page", width=1700, height=2200, distinct=48, seed=14)

_KINDS = {
    "imagenet": (IMAGENET, 64, "JPEG of 110 KB, about 500 x 375"),
    "formats": (FORMATS, 64, "JPEG, PNG, WebP, BMP, TIFF, about 640 x 480"),
    "hd": (HD, 32, "photos, 1920 x 1080"),
    "uhd": (UHD, 16, "photos, 3840 x 2160"),
    "pages": (PAGES, 16, "pages as PNG, 1700 x 2200"),
}
_OUTPUTS = {
    "uint8": "uint8 at their size",
    "float224": "random resized crops of 224 pixels, normalised",
    "patches": "packed patch tokens",
}
_DEFAULT = (
    "imagenet-uint8",
    "imagenet-float224",
    "imagenet-patches",
    "formats-uint8",
    "hd-float224",
    "uhd-float224",
    "pages-patches",
)
"""Every kind and every output once; the other combinations run if they are named, or with --all."""


def workloads(device: Device) -> tuple[Workload, ...]:
    """Returns all combinations of files and outputs, those that run by default first."""
    found = {f"{kind}-{output}": _workload(device, kind, output) for kind in _KINDS for output in _OUTPUTS}
    first = [found.pop(name) for name in _DEFAULT]
    return (*first, *found.values())


def _workload(device: Device, kind: str, output: str) -> Workload:
    recipe, batch_size, title = _KINDS[kind]
    name = f"{kind}-{output}"
    return Workload(
        name=name,
        title=f"{title}, to {_OUTPUTS[output]}, batches of {batch_size}, on the {device.upper()}",
        metric="samples_per_second",
        unit="samples/s",
        recipe=recipe,
        output=output,
        device=device,
        seconds=2.0,
        trains=True,
        samples=100_000,
        batch_size=batch_size,
        repetitions=3,
        extra=name not in _DEFAULT,
        candidates=contestants(device, native=True),
        bars=bars(device, native=True, share=0.9),
        limits=limits(device, native=True),
    )
