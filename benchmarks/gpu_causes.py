"""Why a ratio on a GPU host falls short: causes, ordered by what the run's own numbers say for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COUNT = 3
"""Causes that are given."""
_FULL = 0.9
"""Share of the cores or of the GPU from which on they count as used up."""
_IDLE_GPU_PERCENT = 50
_SPREAD = 1.3
"""Fastest over slowest run of a candidate from which on other programs are suspected."""
_FAST_READING = 2e9
"""Bytes per second from which on copying files through workers is suspected."""
_SETTINGS = "python -m benchmarks.tuning --device gpu (stage profile) measures each setting of DALI."


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible cause."""

    weight: float
    """How much speaks for it: 1 is proof, 0 a guess."""
    what: str
    """In a sentence."""
    evidence: str
    """What speaks for it."""
    remedy: str
    """What to do."""


def likely_causes(
    work: dict[str, Any], judged: dict[str, Any], doctor: dict[str, Any], machine: dict[str, Any]
) -> list[Cause]:
    """Returns the three likeliest causes of a ratio or number that was not reached, the likeliest first.

    Args:
        work: Result of the workload.
        judged: The bar or limit.
        doctor: Output of `energon-dali doctor --json`; {} if there is none.
        machine: Description of the machine.
    """
    causes = [
        *_from_doctor(work, doctor),
        *_from_numbers(work, judged, machine),
        *_guesses(work, judged),
    ]
    return sorted(causes, key=lambda cause: -cause.weight)[:COUNT]


def _median(work: dict[str, Any], candidate: str, metric: str) -> float | None:
    for one in work["candidates"]:
        if one["name"] == candidate and metric in one["summary"]:
            return float(one["summary"][metric]["median"])
    return None


def _from_doctor(work: dict[str, Any], doctor: dict[str, Any]) -> Iterator[Cause]:
    """Yields what doctor found missing or broken, if the workload uses it."""
    video = work["recipe"]["style"] == "video"
    names = {
        "images": ("nvImageCodec", "nvJPEG", "hardware JPEG engine", "JPEG, GPU"),
        "videos": ("NVDEC", "codecs of NVDEC", "H.264, NVDEC"),
        "kernels": ("Triton", "C compiler and headers", "Triton kernel"),
    }
    wanted = [*names["videos" if video else "images"]]
    if "patches" in work["output"] or work["output"] == "vision" or video:
        wanted += names["kernels"]
    for check in doctor.get("checks", ()):
        if check["name"] in wanted and check["state"] != "ok":
            # A GPU without a JPEG engine is not a fault.
            weight = 0.6 if check["name"] == "hardware JPEG engine" else 1.0
            yield Cause(
                weight,
                f"{check['name']} is {check['state']}.",
                f"Doctor found: {check['found']}.",
                check["remedy"],
            )


def _from_numbers(work: dict[str, Any], judged: dict[str, Any], machine: dict[str, Any]) -> Iterator[Cause]:
    ours = judged["of"]
    cores, used = float(machine["cores"]), _median(work, ours, "cpu_cores")
    gpu, blocked = _median(work, ours, "gpu_percent"), _median(work, ours, "trainer_blocked_share")
    rate = _median(work, ours, "samples_per_second")
    if used is not None and used >= _FULL * cores:
        yield Cause(
            0.9,
            "All cores are busy.",
            f"{used:.1f} of {cores:.0f} cores were used.",
            "Give the job more cores, or the loader fewer workers; energon-dali doctor prints how cores are divided.",
        )
    if gpu is not None and gpu >= 100 * _FULL:
        yield Cause(
            0.85,
            "The GPU is busy.",
            f"It worked {gpu:.0f} % of the time.",
            "Decode a part on the CPU (DaliDecoder(image_decode_device='auto')), or smaller (decode_scale='fast').",
        )
    if gpu is not None and gpu < _IDLE_GPU_PERCENT and (used is None or used < _FULL * cores):
        waiting = "" if blocked is None else f", and the trainer was blocked {100 * blocked:.0f} % of the time"
        yield Cause(
            0.7,
            "Python, not a decoder, is the limit: hooks or the interpreter lock.",
            f"The GPU worked {gpu:.0f} % of the time{waiting}.",
            "loader.stats() says which stage takes the time; get_loader(decode_process=True) moves it out of the "
            "trainer's process, and energon-dali tune chooses the number of workers.",
        )
    for one in work["candidates"]:
        found = one["summary"].get(work["metric"]) if one["name"] in (ours, judged.get("to")) else None
        if found and found["low"] and found["high"] / found["low"] >= _SPREAD:
            yield Cause(
                0.65,
                "Something else used the machine.",
                f"The runs of {one['name']} range from {found['low']:.4g} to {found['high']:.4g}.",
                "Repeat the stage while nothing else runs; the load at the beginning is shown under Machine.",
            )
            break
    size = work.get("bytes_per_sample")
    if size and rate and size * rate >= _FAST_READING:
        yield Cause(
            0.5,
            "Reading and copying files takes long.",
            f"{size * rate / 1e9:.1f} GB/s passed through the workers.",
            "Give more workers, and read from local disks.",
        )
    slowest = _median(work, ours, "slowest_rank_share")
    if slowest is not None and slowest < _FULL:
        yield Cause(
            0.8,
            "Ranks are not equally fast: cores or memory of another socket.",
            f"The slowest rank reached {100 * slowest:.0f} % of the mean.",
            "Bind each rank to the cores next to its GPU (numactl, or torchrun --numa-binding=node), and look at "
            "nvidia-smi topo -m.",
        )


def _guesses(work: dict[str, Any], judged: dict[str, Any]) -> Iterator[Cause]:
    """Yields what is likely for such a workload, whatever the numbers say."""
    recipe = work["recipe"]
    if "decode process" in judged["of"]:
        yield Cause(0.3, "Sending batches from the decode process takes long.", "", "Compare it with the block feed.")
    if "native" in judged["of"]:
        yield Cause(0.3, "DALI's own reader reads one shard after the other.", "", "Use larger shards.")
    if recipe["style"] == "video":
        if recipe.get("mixed_sizes"):
            yield Cause(
                0.45,
                "Videos whose coded size differs from their shown size are decoded by PyAV.",
                "714 and 1080 rows are coded as 720 and 1088; DALI would get their colours wrong.",
                "Give more workers.",
            )
        yield Cause(
            0.35,
            "NVDEC makes a decoder for each new size, and works with few files at a time.",
            "",
            "DaliDecoder(num_threads=16), and more videos per block; " + _SETTINGS,
        )
        yield Cause(0.25, "The files' sound or times are read on the CPU.", "", "loader.stats().routes counts routes.")
    elif recipe["style"] == "jpeg":
        yield Cause(
            0.35,
            "nvJPEG reads the Huffman codes of images below 1 megapixel on the CPU.",
            "",
            "DaliTuning(hybrid_huffman_threshold=100_000) moves it to the GPU; " + _SETTINGS,
        )
    elif recipe["style"] in ("webp", "formats"):
        yield Cause(
            0.4,
            "What no GPU decodes (WebP, PNG) takes the CPU's time.",
            "",
            "Give as many workers as the rank has cores, or store JPEG.",
        )
    yield Cause(
        0.3,
        "DALI's settings do not fit this GPU.",
        "",
        _SETTINGS,
    )
    if work["output"] == "vision":
        yield Cause(0.28, "Resampling takes the GPU's time.", "", "Compare with resampling='torch' at another size.")
    yield Cause(
        0.2,
        "Blocks are too small to fill the GPU.",
        "",
        "Try a larger batch_size, and prefetch_factor=4.",
    )
    yield Cause(
        0.15, "The CPU threads of the pipeline are too few.", "", "Try DaliDecoder(num_threads=...). " + _SETTINGS
    )
