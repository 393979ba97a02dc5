"""The workloads that need no GPU, and the ratios that they have to reach."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.data.recipe import Recipe
from benchmarks.workload import Bar, Candidate, Limit, Plain, Workload

JPEGS = Recipe(name="jpegs", samples=1000, style="jpeg", seed=1)
"""400 x 500 pixels and 104 KB on average."""

OURS = "energon_dali"
ENERGON = "megatron.energon"
WINDOW = 100_000
"""A shuffle window far beyond the dataset."""


def ours(name: str, decoder: str, workers: int, **options: Plain) -> Candidate:
    """Returns our loader as a candidate."""
    told: Mapping[str, Plain] = {"library": OURS, "decoder": decoder, "workers": workers, **options}
    return Candidate(name=name, program="energon_style", options=told)


def energon(name: str, **options: Plain) -> Candidate:
    """Returns megatron-energon's loader with two workers as a candidate."""
    told: Mapping[str, Plain] = {"library": ENERGON, "workers": 2, **options}
    return Candidate(name=name, program="energon_style", options=told, environment="energon")


def bare_dali(name: str, **options: Plain) -> Candidate:
    """Returns DALI's own reader and pipeline as a candidate."""
    return Candidate(name=name, program="dali_native", options=options)


UINT8 = Workload(
    name="uint8",
    title="JPEG 400 x 500 to uint8, lists of 64",
    metric="samples_per_second",
    unit="samples/s",
    recipe=JPEGS,
    output="uint8",
    candidates=(
        ours("energon_dali DALI, in process, CHW", "dali", 0),
        ours("energon_dali DALI, 1 worker, CHW", "dali", 1),
        ours("energon_dali DALI, 2 workers, CHW", "dali", 2),
        ours("energon_dali DALI, 1 worker, HWC", "dali", 1, layout="HWC"),
        ours("energon_dali DALI, native feed, CHW", "dali", 0, feed="native"),
        ours("energon_dali PIL, 2 workers", "sample", 2),
        bare_dali("bare DALI, CHW", layout="CHW"),
        bare_dali("bare DALI, HWC", layout="HWC"),
        Candidate(name="PIL from memory, 2 processes", program="pil_memory", options={"processes": 2, "layout": "HWC"}),
        Candidate(name="webdataset + DataLoader, 2 workers", program="webdataset_loader", options={"workers": 2}),
        energon("megatron-energon, 2 workers"),
    ),
    bars=(
        Bar(of="energon_dali DALI, in process, CHW", to="bare DALI, CHW", at_least=0.95),
        Bar(of="energon_dali DALI, 1 worker, CHW", to="bare DALI, CHW", at_least=0.95),
        Bar(of="energon_dali DALI, 2 workers, CHW", to="bare DALI, CHW", at_least=0.95),
        Bar(of="energon_dali DALI, native feed, CHW", to="bare DALI, CHW", at_least=0.95),
        Bar(of="energon_dali DALI, 1 worker, HWC", to="bare DALI, HWC", at_least=0.95),
        Bar(of="energon_dali PIL, 2 workers", to="megatron-energon, 2 workers", at_least=1.3),
        Bar(of="energon_dali PIL, 2 workers", to="webdataset + DataLoader, 2 workers"),
    ),
)

FUSED = Workload(
    name="fused224",
    title="JPEG to 224 x 224 random resized crops, flipped, normalised, batches of 64",
    metric="samples_per_second",
    unit="samples/s",
    recipe=JPEGS,
    output="float224",
    candidates=(
        ours("energon_dali DALI, in process", "dali", 0),
        ours("energon_dali DALI, 1 worker", "dali", 1),
        ours("energon_dali DALI, 2 workers", "dali", 2),
        ours("energon_dali PIL, 2 workers", "sample", 2),
        bare_dali("bare DALI, fused"),
        energon("megatron-energon + torchvision, 2 workers"),
    ),
    bars=(
        Bar(of="energon_dali DALI, in process", to="bare DALI, fused", at_least=0.95),
        Bar(of="energon_dali DALI, 1 worker", to="bare DALI, fused", at_least=0.95),
        Bar(of="energon_dali DALI, 1 worker", to="megatron-energon + torchvision, 2 workers", at_least=2.0),
    ),
)


def _scaled(
    name: str, size: tuple[int, int], style: str, target_bytes: int, samples: int, wanted: tuple[float, float]
) -> Workload:
    """Returns the workload of small crops from large images, decoded at full size and at smaller ones.

    Args:
        name: Of the workload.
        size: (width, height) of the images, about.
        style: Of the recipe: "jpeg", or "camera" with sensor noise.
        target_bytes: Size of a file, about.
        samples: Samples that are timed.
        wanted: Ratios to DALI's fused pipeline at "fast" and "fastest".
    """
    dali, rival = "energon_dali DALI, 2 workers", "bare DALI, fused"
    return Workload(
        name=name,
        title=f"JPEG {size[0]} x {size[1]} to 224 x 224 random resized crops, flipped, normalised, batches of 32",
        metric="samples_per_second",
        unit="samples/s",
        recipe=Recipe(
            name=f"{name}-{style}",
            samples=2 * samples,
            style=style,
            width=size[0],
            height=size[1],
            target_bytes=target_bytes,
            distinct=24,
            seed=7,
        ),
        output="float224",
        warmup_samples=64,
        samples=samples,
        batch_size=32,
        repetitions=5,
        candidates=(
            ours(f"{dali}, exact", "dali", 2),
            ours(f"{dali}, fast", "dali", 2, decode_scale="fast"),
            ours(f"{dali}, fastest", "dali", 2, decode_scale="fastest"),
            ours("energon_dali PIL, 2 workers, exact", "sample", 2),
            ours("energon_dali PIL, 2 workers, fast", "sample", 2, decode_scale="fast"),
            ours("energon_dali PIL, 2 workers, fastest", "sample", 2, decode_scale="fastest"),
            bare_dali(rival),
            energon("megatron-energon + torchvision, 2 workers"),
        ),
        bars=(
            Bar(of=f"{dali}, exact", to=rival, at_least=0.95),
            Bar(of=f"{dali}, fast", to=rival, at_least=wanted[0]),
            Bar(of=f"{dali}, fastest", to=rival, at_least=wanted[1]),
            Bar(of="energon_dali PIL, 2 workers, fast", to=rival),
            Bar(of="energon_dali PIL, 2 workers, fastest", to=rival),
        ),
    )


SCALED_HD = _scaled("scaled-hd", (1920, 1080), "jpeg", 350_000, 480, (1.15, 1.6))
SCALED_12MP = _scaled("scaled-12mp", (4000, 3000), "camera", 4_000_000, 128, (2.0, 2.5))


def _next_to_a_trainer() -> tuple[tuple[Candidate, ...], tuple[Bar, ...]]:
    candidates: list[Candidate] = []
    bars: list[Bar] = []
    for name, make, wanted in (
        ("energon_dali DALI, 1 worker", lambda n, **o: ours(n, "dali", 1, **o), 0.9),
        ("energon_dali PIL, 2 workers", lambda n, **o: ours(n, "sample", 2, **o), None),
        ("bare DALI, CHW", lambda n, **o: bare_dali(n, layout="CHW", **o), None),
        ("bare DALI, permuted in Python", lambda n, **o: bare_dali(n, layout="CHW", permute=True, **o), None),
        ("megatron-energon, 2 workers", energon, None),
    ):
        for trainer in ("thread", "process"):
            candidates.append(make(f"{name}, next to a {trainer}", trainer=trainer))
        thread, process = (candidate.name for candidate in candidates[-2:])
        bars.append(Bar(of=thread, to=process, at_least=wanted))
        bars.append(Bar(of=thread, to=process, at_least=wanted, metric="trainer_turns_per_second"))
    return tuple(candidates), tuple(bars)


TRAINER_CANDIDATES, TRAINER_BARS = _next_to_a_trainer()
TRAINER = Workload(
    name="trainer",
    title="The same next to a thread that never releases the interpreter lock, and next to an equally busy process",
    metric="samples_per_second",
    unit="samples/s",
    recipe=JPEGS,
    output="uint8",
    warmup_samples=128,
    samples=1500,
    candidates=TRAINER_CANDIDATES,
    bars=TRAINER_BARS,
)

RESTORE = Workload(
    name="restore",
    title=f"First batch after a restore, with a shuffle window of {WINDOW:,}",
    metric="first_batch_restored_seconds",
    unit="s",
    better="lower",
    recipe=JPEGS,
    output="uint8",
    repetitions=3,
    candidates=(
        Candidate(
            name="energon_dali DALI, 2 workers",
            program="restoring",
            options={"library": OURS, "decoder": "dali", "workers": 2, "shuffle_window": WINDOW},
        ),
        Candidate(
            name="energon_dali PIL, 2 workers",
            program="restoring",
            options={"library": OURS, "decoder": "sample", "workers": 2, "shuffle_window": WINDOW},
        ),
        Candidate(
            name="megatron-energon, 2 workers, window 500",
            program="restoring",
            environment="energon",
            options={"library": ENERGON, "workers": 2, "shuffle_window": 500},
        ),
    ),
    limits=(
        Limit(of="energon_dali DALI, 2 workers", metric="first_batch_cold_seconds", at_most=3.0),
        Limit(of="energon_dali DALI, 2 workers", metric="restored_over_fresh", at_most=1.2),
        Limit(of="energon_dali PIL, 2 workers", metric="restored_over_fresh", at_most=1.2),
        Limit(of="energon_dali DALI, 2 workers", metric="state_bytes", at_most=8192),
        Limit(of="energon_dali PIL, 2 workers", metric="state_bytes", at_most=8192),
    ),
)

PREPARE = Workload(
    name="prepare",
    title="Preparing a dataset with one worker",
    metric="megabytes_per_second",
    unit="MB/s",
    recipe=JPEGS,
    repetitions=3,
    candidates=(
        Candidate(name="energon-dali prepare", program="preparing", options={"command": "energon-dali"}),
        Candidate(name="energon prepare", program="preparing", options={"command": "energon"}, environment="energon"),
    ),
    limits=(Limit(of="energon-dali prepare", metric="megabytes_per_second", at_least=100.0),),
)

IMPORT = Workload(
    name="import",
    title="Importing every public name, beyond importing torch",
    metric="import_seconds",
    unit="s",
    better="lower",
    recipe=JPEGS,
    candidates=(
        Candidate(name="energon_dali", program="importing", options={"library": OURS}),
        Candidate(name="megatron.energon", program="importing", options={"library": ENERGON}, environment="energon"),
    ),
    limits=(Limit(of="energon_dali", metric="import_seconds", at_most=1.0),),
)

MANY_SHARDS = Recipe(name="many-shards", samples=2000, shards=200, style="jpeg", seed=3)
"""The same kind of images in 200 shards, each of which can be a dataset of the smallest realistic size."""

BLEND = Workload(
    name="blend",
    title="200 datasets of 10 images, blended, and the same images as one dataset",
    metric="samples_per_second",
    unit="samples/s",
    recipe=MANY_SHARDS,
    output="uint8",
    warmup_samples=2048,
    candidates=(
        ours("energon_dali PIL, one dataset", "sample", 2),
        ours("energon_dali PIL, blend of 200", "sample", 2, leaves=200),
        ours("energon_dali DALI, one dataset", "dali", 2),
        ours("energon_dali DALI, blend of 200", "dali", 2, leaves=200),
        energon("megatron-energon, one dataset"),
        energon("megatron-energon, blend of 200", leaves=200),
    ),
    bars=(
        Bar(of="energon_dali PIL, blend of 200", to="energon_dali PIL, one dataset", at_least=0.95),
        Bar(of="energon_dali DALI, blend of 200", to="energon_dali DALI, one dataset", at_least=0.95),
        Bar(of="megatron-energon, blend of 200", to="megatron-energon, one dataset"),
    ),
)

BLEND_CPU = Workload(
    name="blend-cpu",
    title="CPU time per sample in a worker: one dataset / 200 datasets of 10 images, batch by batch in turn",
    metric="one_over_blend",
    unit="",
    recipe=MANY_SHARDS,
    warmup_samples=2048,
    samples=3000,
    repetitions=3,
    candidates=(
        Candidate(
            name="energon_dali PIL", program="blending", options={"library": OURS, "decoder": "sample", "leaves": 200}
        ),
        Candidate(
            name="energon_dali PIL, shuffled",
            program="blending",
            options={"library": OURS, "decoder": "sample", "leaves": 200, "shuffle_window": WINDOW},
        ),
    ),
    limits=(
        Limit(of="energon_dali PIL", metric="one_over_blend", at_least=0.95),
        Limit(of="energon_dali PIL, shuffled", metric="one_over_blend", at_least=0.95),
    ),
)

BLEND_RESTORE = Workload(
    name="blend-restore",
    title=f"First batch of a blend of 100 datasets after a restore, with a shuffle window of {WINDOW:,}",
    metric="first_batch_restored_seconds",
    unit="s",
    better="lower",
    recipe=MANY_SHARDS,
    output="uint8",
    repetitions=3,
    candidates=(
        Candidate(
            name="energon_dali DALI, 2 workers",
            program="restoring",
            options={"library": OURS, "decoder": "dali", "workers": 2, "shuffle_window": WINDOW, "leaves": 100},
        ),
        Candidate(
            name="megatron-energon, 2 workers, window 500",
            program="restoring",
            environment="energon",
            options={"library": ENERGON, "workers": 2, "shuffle_window": 500, "leaves": 100},
        ),
    ),
    limits=(
        Limit(of="energon_dali DALI, 2 workers", metric="restored_over_fresh", at_most=1.2),
        Limit(of="energon_dali DALI, 2 workers", metric="state_bytes", at_most=65_536),
    ),
)

WORKLOADS = (UINT8, FUSED, SCALED_HD, SCALED_12MP, TRAINER, RESTORE, PREPARE, IMPORT, BLEND, BLEND_CPU, BLEND_RESTORE)
