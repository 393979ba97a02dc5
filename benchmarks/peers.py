"""The suite `peers`: other loaders next to ours, on the same photographs and with the same outputs, in two workers.

Loaders without a decoder of their own decode with torchvision's fast path. Those with a format of their own read the
same files in that. Settings are what their documentation recommends: LitData's chunks of 64 MB, MosaicML's shards of
64 MiB, Grain's 16 threads and 500 elements per worker (and one thread, which suits two cores better), and in SPDL a
thread for collating in addition to those that decode. FFCV 1.0.2 is not among them: pip cannot build it where the
system has no OpenCV for C++ ("Could not find required package: opencv4").
"""

from __future__ import annotations

from benchmarks.cpu import bare_dali, energon, ours
from benchmarks.data.recipe import Recipe
from benchmarks.workload import Bar, Candidate, Plain, Workload

PHOTOGRAPHS = Recipe(
    name="peers", samples=2400, style="jpeg", width=1024, height=768, target_bytes=100_000, distinct=240, seed=40
)
FFMPEG_LEVELS = 3.0
"""Tolerance of pixels that FFmpeg decodes, scales and converts, on average: its chroma filters are not libjpeg's."""

DALI, SAMPLE = "energon_dali DALI, 1 worker", "energon_dali PIL, 2 workers"
BARE_DALI, ENERGON = "bare DALI", "megatron-energon"
TORCHVISION = "torchvision + DataLoader"


def _peer(name: str, program: str, format: str = "", **options: Plain) -> Candidate:
    given: dict[str, Plain] = {"workers": 2, **options}
    return Candidate(name=name, program=program, environment="peers", format=format, options=given)


PEERS = (
    _peer(TORCHVISION, "torch_loader", decode="torchvision"),
    _peer("LitData + torchvision", "peer_litdata", format="litdata", chunk_bytes=64_000_000),
    _peer("MosaicML Streaming + torchvision", "peer_mds", format="mds", shard_bytes=1 << 26),
    _peer("Grain + torchvision", "peer_grain", threads=16, buffer=500),
    _peer("Grain + torchvision, 1 thread", "peer_grain", threads=1, buffer=2),
    _peer("webdataset + torchvision", "webdataset_loader", decode="torchvision"),
    _peer("SPDL + FFmpeg, 2 threads", "peer_spdl", decode="ffmpeg", levels=FFMPEG_LEVELS, threads=3),
    _peer("SPDL + torchvision, 2 threads", "peer_spdl", decode="torchvision", threads=3),
)


def _workload(name: str, title: str, output: str, candidates: tuple[Candidate, ...]) -> Workload:
    found = (*candidates, bare_dali(BARE_DALI), energon(ENERGON), *PEERS)
    bars = [Bar(of=own.name, to=other) for own in candidates for other in (BARE_DALI, ENERGON, TORCHVISION)]
    return Workload(
        name=name,
        title=title,
        metric="samples_per_second",
        unit="images/s",
        recipe=PHOTOGRAPHS,
        output=output,
        candidates=found,
        bars=tuple(bars),
        batch_size=32,
        warmup_samples=128,
        samples=640,
        repetitions=5,
    )


WORKLOADS = (
    _workload(
        "peers-uint8",
        "JPEG 1024 x 768 of 100 KB to uint8 tensors at their size, lists of 32",
        "uint8",
        (ours(DALI, "dali", 1), ours(SAMPLE, "sample", 2)),
    ),
    _workload(
        "peers-float224",
        "JPEG 1024 x 768 of 100 KB to random resized crops of 224, flipped, normalised, float32 batches of 32",
        "float224",
        (
            ours(DALI, "dali", 1),
            ours(SAMPLE, "sample", 2),
            *(
                ours(f'{name}, decode_scale="{scale}"', decoder, workers, decode_scale=scale)
                for scale in ("fast", "fastest")
                for name, decoder, workers in ((DALI, "dali", 1), (SAMPLE, "sample", 2))
            ),
        ),
    ),
)
