"""The video workloads that need no GPU, and the ratios that they have to reach."""

from __future__ import annotations

import dataclasses

from benchmarks.data.recipe import Recipe
from benchmarks.workload import Bar, Candidate, Environment, Plain, Workload

SHORT = Recipe(name="videos-with-sound", samples=48, shards=4, style="video", seed=2, distinct=8, sound=True)
"""10 seconds each: 300 frames with keyframes at 0 and 250, and sound."""
INDEXED = dataclasses.replace(SHORT, name="videos-with-sound-indexed", media_index=True)
"""The same, with the media index of `energon-dali prepare-media`."""
LONG = Recipe(name="long-videos-repeated", samples=1, shards=1, style="video", seed=3, seconds=600, rounds=20)
"""10 minutes: 30 seconds, repeated."""

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

_OWN_LOADER, _FOREIGN_LOADER = "energon_dali loader", "megatron-energon loader"
_INDEXED_LOADER = "energon_dali loader, media index"


def _through_loader(name: str, title: str, *, at_least: float, **options: Plain) -> Workload:
    """Returns a comparison of whole loaders: shards to batches, in 2 workers.

    Args:
        name: Of the workload.
        title: Of the workload.
        at_least: Files per second and per second of processor time, with a media index, over megatron-energon's.
        **options: Of the candidates.
    """
    return Workload(
        name=name,
        title=title,
        metric="samples_per_second",
        unit="files/s",
        recipe=SHORT,
        output="frames224",
        batch_size=8,
        warmup_samples=32,
        samples=192,
        repetitions=3,
        candidates=(
            _loader(_OWN_LOADER, "energon_dali", "own", **options),
            dataclasses.replace(_loader(_INDEXED_LOADER, "energon_dali", "own", **options), recipe=INDEXED),
            _loader(_FOREIGN_LOADER, "megatron.energon", _ENERGON, **options),
        ),
        bars=(
            Bar(of=_OWN_LOADER, to=_FOREIGN_LOADER, at_least=1.8),
            Bar(of=_FOREIGN_LOADER, to=_OWN_LOADER, at_least=1.8, metric="cpu_milliseconds_per_sample"),
            Bar(of=_OWN_LOADER, to=_FOREIGN_LOADER, at_most=1.0, metric="memory_mib"),
            Bar(of=_INDEXED_LOADER, to=_FOREIGN_LOADER, at_least=at_least),
            Bar(of=_FOREIGN_LOADER, to=_INDEXED_LOADER, at_least=at_least, metric="cpu_milliseconds_per_sample"),
            Bar(of=_INDEXED_LOADER, to=_FOREIGN_LOADER, at_most=1.0, metric="memory_mib"),
        ),
    )


def _loader(name: str, library: str, environment: Environment, **options: Plain) -> Candidate:
    return Candidate(
        name=name,
        program="energon_style",
        environment=environment,
        options={"library": library, "workers": 2, "memory": True, **options},
    )


LOADED = _through_loader(
    "clips-loader", "2 clips of 16 frames at 224 x 224, from shards to batches, in 2 workers", at_least=2.0
)
LOADED_SOUND = _through_loader("clips-sound-loader", "The same with the sound of the clips", at_least=1.8, sound=True)

WORKLOADS = (CLIPS, LOADED, LOADED_SOUND, SEEK)
