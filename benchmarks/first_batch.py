"""How long a trainer waits for its first batch, from `iter(loader)` on, next to megatron-energon."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.cpu import ENERGON, JPEGS, OURS
from benchmarks.data.recipe import Recipe
from benchmarks.workload import Bar, Candidate, Plain, Workload

VIDEOS = Recipe(name="short-videos", samples=24, shards=2, style="video", seed=2, seconds=3, distinct=4)
"""3 seconds each."""

_PIL = "energon_dali SampleDecoder"
_DALI = "energon_dali DaliDecoder on the CPU"
_CLIPS = "energon_dali VideoClips"
_ENERGON = "megatron-energon"
_SPAWNED = ", spawned"
_CUDA = {
    "after": ", CUDA in use after the loader is made",
    "prepared": ", CUDA in use before, with prepare_workers()",
    "before": ", CUDA in use before",
}
"""By the option `cuda`. CUDA is pretended: what decides how workers start finds it in use."""


def _ours(name: str, decoder: str, **options: Plain) -> Candidate:
    told: Mapping[str, Plain] = {"library": OURS, "decoder": decoder, "workers": 2, "shuffle_window": 100, **options}
    return Candidate(name=name, program="first_batch", options=told)


def _energon() -> Candidate:
    told: Mapping[str, Plain] = {"library": ENERGON, "workers": 2, "shuffle_window": 100}
    return Candidate(name=_ENERGON, program="first_batch", options=told, environment="energon")


def _workload(
    name: str, title: str, recipe: Recipe, output: str, batch_size: int, bars: Mapping[str, float]
) -> Workload:
    """Returns a workload in which each candidate of `bars` may take that many times as long as megatron-energon.

    Opening and the first batch together may take as long as megatron-energon's, and 1.2 times as long with CUDA in use.
    """
    decoders = {_PIL: "sample", _DALI: "dali", _CLIPS: "sample"}
    ours = [_ours(one, decoders[one]) for one in bars]
    spawned = [_ours(one + _SPAWNED, decoders[one], start_method="spawn") for one in bars]
    in_use = [_ours(one + text, decoders[one], cuda=when) for one in bars for when, text in _CUDA.items()]
    return Workload(
        name=name,
        title=title,
        metric="first_batch_seconds",
        unit="s",
        better="lower",
        recipe=recipe,
        output=output,
        batch_size=batch_size,
        repetitions=7,
        candidates=(*ours, _energon(), *in_use, *spawned),
        bars=tuple(
            bar
            for one, most in bars.items()
            for bar in (
                Bar(of=one, to=_ENERGON, at_most=most),
                Bar(of=one, to=_ENERGON, metric="first_batch_cpu_seconds"),
                Bar(of=one, to=_ENERGON, metric="start_seconds", at_most=1.0),
                Bar(of=one, to=_ENERGON, metric="start_cpu_seconds"),
                *(
                    Bar(of=one + _CUDA[when], to=_ENERGON, metric=metric, at_most=most_cuda)
                    for when, most_cuda in (("after", 1.2), ("prepared", 1.2), ("before", None))
                    for metric in ("start_seconds", "start_cpu_seconds")
                ),
                Bar(of=one + _SPAWNED, to=_ENERGON),
            )
        ),
    )


WORKLOADS = (
    _workload(
        "first-images",
        "The first batch, 32 JPEGs of 400 x 500 to uint8, 2 workers, a shuffle window of 100",
        JPEGS,
        "uint8",
        32,
        {_PIL: 1.2, _DALI: 0.9},
    ),
    _workload(
        "first-clips",
        "The first batch, 4 x 2 clips of 16 frames at 224 x 224, 640 x 360 H.264, 2 workers, a shuffle window of 100",
        VIDEOS,
        "frames224",
        4,
        {_CLIPS: 1.2},
    ),
)
