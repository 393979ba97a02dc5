"""The video workloads that need no GPU, and the ratios that they have to reach."""

from __future__ import annotations

from benchmarks.data.recipe import Recipe
from benchmarks.workload import Bar, Candidate, Environment, Plain, Workload

SHORT = Recipe(name="videos", samples=48, shards=2, style="video", seed=2)
"""10 seconds each: 300 frames with keyframes at 0 and 250."""
LONG = Recipe(name="long-videos", samples=1, shards=1, style="video", seed=3, seconds=600)
"""10 minutes."""

_ENERGON: Environment = "energon"
_PER_CPU = "files_per_cpu_second"


def _candidate(name: str, library: str, environment: Environment = "own", **options: Plain) -> Candidate:
    return Candidate(
        name=name, program="clips", environment=environment, options={"library": library, "processes": 2, **options}
    )


CLIPS = Workload(
    name="clips",
    title="2 clips of 16 frames at 224 x 224 from 10-second files, 640 x 360 H.264, in 2 processes",
    metric="files_per_second",
    unit="files/s",
    recipe=SHORT,
    output="clips",
    warmup_samples=4,
    samples=48,
    repetitions=5,
    candidates=(
        _candidate("energon_dali AVDecoder", "energon_dali"),
        _candidate("megatron-energon AVDecoder", "megatron.energon", _ENERGON),
        _candidate("torchcodec", "torchcodec", _ENERGON),
        _candidate("PyAV, seeking", "pyav"),
    ),
    bars=(
        Bar(of="energon_dali AVDecoder", to="megatron-energon AVDecoder", at_least=1.5),
        Bar(of="energon_dali AVDecoder", to="torchcodec", at_least=1.1),
        Bar(of="energon_dali AVDecoder", to="PyAV, seeking", at_least=1.1),
        Bar(of="energon_dali AVDecoder", to="megatron-energon AVDecoder", at_least=1.5, metric=_PER_CPU),
        Bar(of="energon_dali AVDecoder", to="torchcodec", at_least=1.1, metric=_PER_CPU),
        Bar(of="energon_dali AVDecoder", to="PyAV, seeking", at_least=1.1, metric=_PER_CPU),
    ),
)

SEEK = Workload(
    name="seek",
    title="The last second of a 10-minute file, 640 x 360 H.264, 30 frames at 224 x 224",
    metric="files_per_second",
    unit="files/s",
    recipe=LONG,
    output="clips",
    warmup_samples=1,
    samples=3,
    repetitions=3,
    candidates=(
        _candidate("energon_dali AVDecoder", "energon_dali", place="end", processes=1),
        _candidate("megatron-energon AVDecoder", "megatron.energon", _ENERGON, place="end", processes=1),
        _candidate("torchcodec", "torchcodec", _ENERGON, place="end", processes=1),
        _candidate("PyAV, seeking", "pyav", place="end", processes=1),
        _candidate("PyAV, decoding up to it", "pyav from the start", place="end", processes=1),
    ),
    bars=(
        Bar(of="energon_dali AVDecoder", to="PyAV, decoding up to it", at_least=5.0),
        Bar(of="energon_dali AVDecoder", to="megatron-energon AVDecoder"),
        Bar(of="energon_dali AVDecoder", to="torchcodec"),
    ),
)

WORKLOADS = (CLIPS, SEEK)
