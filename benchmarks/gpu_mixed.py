"""What a GPU's pipeline alone does not decode well: files of mixed sizes and formats, and results that are copied."""

from __future__ import annotations

from benchmarks.contestants import BACKENDS, BLOCK, CEILING, COPIED, CORES, NATIVE, READERS, ours
from benchmarks.data.recipe import Recipe
from benchmarks.gpu_images import IMAGENET
from benchmarks.gpu_vision import front_ends
from benchmarks.workload import Bar, Candidate, Device, Workload

WEBP = Recipe(name="webp-30", samples=1600, shards=16, style="webp", width=640, height=480, distinct=320, seed=15)
SIZES = Recipe(
    name="clips-of-mixed-sizes",
    samples=256,
    shards=16,
    style="video",
    seconds=4,
    width=1280,
    height=720,
    distinct=16,
    seed=22,
    mixed_sizes=True,
)
VP9_SIZES = Recipe(
    name="clips-of-mixed-sizes-vp9",
    samples=64,
    shards=8,
    style="video",
    seconds=4,
    codec="vp9",
    width=640,
    height=360,
    distinct=8,
    seed=23,
    mixed_sizes=True,
)
WORKERS_ONLY = "energon_dali SampleDecoder, all cores"
NATIVE_COPIED = "energon_dali DALI, native feed, copied"


def workloads(device: Device) -> tuple[Workload, ...]:
    """Returns 30 % WebP as pixels and through a front end, clips of mixed sizes, and the cost of copies."""
    webp = (
        Candidate(name=CEILING, program="ceiling"),
        ours(BLOCK, decoder="dali", workers=CORES),
        ours(WORKERS_ONLY, decoder="sample", workers=CORES),
    )
    clips = (
        Candidate(name=CEILING, program="ceiling", options={"unchecked": True}),
        ours(BLOCK, decoder="dali", workers=CORES),
        ours(WORKERS_ONLY, decoder="sample", workers=CORES),
        *(
            ours(name, decoder="dali", workers=CORES, video_backend=backend)
            for backend, name in BACKENDS.items()
            if device == "gpu"
        ),
    )
    of_backends = [Bar(of=name, to=BLOCK) for name in BACKENDS.values() if device == "gpu"]
    copies = (
        Candidate(name=CEILING, program="ceiling"),
        ours(BLOCK, decoder="dali", workers=READERS),
        ours(COPIED, decoder="dali", workers=READERS, copies=True),
        ours(NATIVE, decoder="dali", workers=0, feed="native"),
        ours(NATIVE_COPIED, decoder="dali", workers=0, feed="native", copies=True),
    )
    wanted = 0.8 if device == "gpu" else None
    least = 1.0 if device == "gpu" else None
    kept = 0.98 if device == "gpu" else None
    sizes = "2 clips of 16 frames, to 224 x 224, of files of 4 s and four sizes in turn"
    return (
        _workload(
            device,
            "clips-sizes",
            f"{sizes}: H.264 of 720, 714, 360 and 1080 rows",
            SIZES,
            "frames224",
            clips,
            (Bar(of=BLOCK, to=CEILING), Bar(of=BLOCK, to=WORKERS_ONLY, at_least=least), *of_backends),
        ),
        _workload(
            device,
            "webp",
            "70 % JPEG and 30 % WebP, about 640 x 480, to uint8 at their size",
            WEBP,
            "uint8",
            webp,
            (Bar(of=BLOCK, to=CEILING, at_least=wanted), Bar(of=BLOCK, to=WORKERS_ONLY, at_least=least)),
        ),
        front_ends(device, "webp-qwen2-vl", "qwen2-vl", "70 % JPEG and 30 % WebP to Qwen2-VL: patches", WEBP, CORES),
        _workload(
            device,
            "copies",
            "JPEG of 110 KB, to uint8 at their size, with and without copies to torch's memory",
            IMAGENET,
            "uint8",
            copies,
            (
                Bar(of=COPIED, to=CEILING),
                Bar(of=COPIED, to=BLOCK, at_least=kept),
                Bar(of=NATIVE_COPIED, to=NATIVE, at_least=kept),
            ),
        ),
        _workload(
            device,
            "clips-sizes-vp9",
            f"{sizes}: VP9 of 360, 354, 180 and 540 rows",
            VP9_SIZES,
            "frames224",
            clips,
            (Bar(of=BLOCK, to=CEILING),),
            extra=True,
        ),
    )


def _workload(
    device: Device,
    name: str,
    title: str,
    recipe: Recipe,
    output: str,
    candidates: tuple[Candidate, ...],
    bars: tuple[Bar, ...],
    *,
    extra: bool = False,
) -> Workload:
    return Workload(
        name=name,
        title=f"{title}, on the {device.upper()}",
        metric="samples_per_second",
        unit="samples/s",
        recipe=recipe,
        output=output,
        device=device,
        seconds=2.0,
        samples=100_000,
        batch_size=8 if recipe.style == "video" else 64,
        repetitions=3,
        extra=extra,
        candidates=candidates,
        bars=bars,
    )
