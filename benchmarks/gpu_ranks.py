"""What a host does at once: all of its GPUs decode, and trainers are busy in Python."""

from __future__ import annotations

from benchmarks.contestants import APART, BLOCK, CEILING, READERS, ours
from benchmarks.gpu_images import IMAGENET
from benchmarks.workload import Bar, Candidate, Device, Limit, Plain, Workload

THREAD, PROCESS = "next to a busy thread", "next to a busy process"


def workloads(device: Device) -> tuple[Workload, ...]:
    """Returns a rank per GPU, next to as many of bare DALI; and one rank next to Python that never waits."""
    return _all_gpus(device), _busy(device)


def _all_gpus(device: Device) -> Workload:
    def ranks(name: str, inner: str, **options: Plain) -> Candidate:
        return Candidate(name=name, program="ranks", options={"inner": inner, **options})

    loader: dict[str, Plain] = {"library": "energon_dali", "decoder": "dali", "workers": READERS}
    wanted = 0.85 if device == "gpu" else None
    return Workload(
        name="all-gpus",
        title=f"JPEG of 110 KB to crops of 224 pixels, all GPUs of the host at once, on the {device.upper()}",
        metric="samples_per_second",
        unit="samples/s",
        recipe=IMAGENET,
        output="float224",
        device=device,
        seconds=4.0,
        samples=1_000_000,
        batch_size=64,
        repetitions=2,
        candidates=(
            ranks(CEILING, "ceiling"),
            ranks(BLOCK, "energon_style", **loader),
            ranks(APART, "energon_style", **loader, decode_process=True),
        ),
        bars=(Bar(of=BLOCK, to=CEILING, at_least=wanted), Bar(of=APART, to=CEILING, at_least=wanted)),
        limits=(Limit(of=BLOCK, metric="slowest_rank_share", at_least=0.8 if device == "gpu" else None),),
    )


def _busy(device: Device) -> Workload:
    forms: dict[str, dict[str, Plain]] = {BLOCK: {}, APART: {"decode_process": True}}
    candidates = [Candidate(name=CEILING, program="ceiling")]
    for form, options in forms.items():
        candidates += [
            ours(f"{form}, {neighbour}", decoder="dali", workers=READERS, trainer=trainer, **options)
            for trainer, neighbour in (("thread", THREAD), ("process", PROCESS))
        ]
    apart, in_process = f"{APART}, {THREAD}", f"{BLOCK}, {THREAD}"
    on_gpu = device == "gpu"
    return Workload(
        name="busy-trainer",
        title=f"JPEG of 110 KB to crops of 224, next to a trainer that is busy in Python, on the {device.upper()}",
        metric="samples_per_second",
        unit="samples/s",
        recipe=IMAGENET,
        output="float224",
        device=device,
        seconds=2.0,
        samples=100_000,
        batch_size=64,
        repetitions=3,
        candidates=tuple(candidates),
        bars=(
            Bar(of=apart, to=CEILING, at_least=0.85 if on_gpu else None),
            Bar(of=apart, to=f"{APART}, {PROCESS}", at_least=0.9 if on_gpu else None),
            Bar(of=in_process, to=CEILING),
            Bar(of=apart, to=in_process),
        ),
    )
