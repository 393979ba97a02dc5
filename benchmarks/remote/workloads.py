"""The suite `remote`: loaders that read from an S3 server on loopback, which has the latency of a real one.

Client and server share the cores of this machine. `samples_per_second_without_server` deducts the server's processor
time, as if it ran elsewhere; it is right where the cores are busy (`busy_cores`), and says nothing where they are not.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.data.recipe import Recipe
from benchmarks.scale.workloads import BLEND, DATASETS
from benchmarks.workload import Bar, Candidate, Limit, Plain, Workload

OURS, ENERGON = "energon_dali", "megatron.energon"
WINDOWS = (1, 1000, 10_000, 100_000)
RUNS = (1, 1000)
"""Windows whose orders are made of runs, which are streamed."""
SEQUENTIAL = "energon_dali, shard by shard"
SHARDS, RANGES = "bound: whole shards, one thread", "bound: random ranges, 64 in flight"
LEAST_SAMPLES = {"jpeg": 5000, "decoded": 1500, "text": 20_000}
"""Samples that a loader is timed with at least: several times as many as it may have fetched when the clock starts.
megatron-energon fetches whole shards, 16 per worker."""
AFTER_SERVER = "samples_per_second_without_server"

JPEG = Recipe(name="remote-jpeg", samples=102_400, shards=800, own_shards=64, style="jpeg", distinct=1024, seed=41)
"""JPEGs of about 100 KB, 128 in a shard of 13 MB; 800 shards, of which 64 are on the disk."""
TEXT = Recipe(name="remote-text", samples=400_000, shards=400, style="text", distinct=20_000, seed=42)
"""200 bytes of text, 1000 samples in a shard of 1 MB."""


def ours(window: int, *, local: bool = False) -> Candidate:
    """Returns our loader with a window; 0 reads shard by shard."""
    options: dict[str, Plain] = {"library": OURS, "window": window, **({} if window else {"lanes": 1})}
    name = _ours(window, local=local)
    return Candidate(
        name=name,
        program="remote_loader",
        options={**options, "local": True} if local else options,
        series="energon_dali, local disk" if local else "energon_dali",
        at=window,
    )


def _ours(window: int, *, local: bool = False) -> str:
    name = f"energon_dali, window {window:,}" if window else SEQUENTIAL
    return f"{name}, local disk" if local else name


def energon(window: int) -> Candidate:
    """Returns megatron-energon with a window."""
    return Candidate(
        name=f"megatron-energon, window {window:,}",
        program="remote_loader",
        options={"library": ENERGON, "window": window},
        environment="energon",
        series="megatron-energon",
        at=window,
    )


def webdataset(window: int) -> Candidate:
    """Returns webdataset with a shuffle buffer."""
    return Candidate(
        name=f"webdataset, window {window:,}",
        program="remote_webdataset",
        options={"window": window},
        series="webdataset",
        at=window,
    )


def streaming(window: int) -> Candidate:
    """Returns MosaicML Streaming with a shuffle block."""
    return Candidate(
        name=f"MosaicML Streaming, shuffle block {window:,}",
        program="remote_mds",
        options={"window": window, "one_epoch": True},
        environment="peers",
        format="mds",
        series="MosaicML Streaming",
        at=window,
    )


def litdata(*, shuffle: bool) -> Candidate:
    """Returns LitData, which has no window: it shuffles chunks, and samples within them."""
    return Candidate(
        name=f"LitData, {'shuffled' if shuffle else 'in order'}",
        program="remote_litdata",
        options={"shuffle": shuffle, "one_epoch": True},
        environment="peers",
        format="litdata",
    )


BOUNDS = (
    Candidate(name=SHARDS, program="remote_bounds", options={"bound": "shards"}),
    Candidate(name=RANGES, program="remote_bounds", options={"bound": "ranges", "in_flight": 64}),
)


def _workload(
    name: str,
    title: str,
    recipe: Recipe,
    output: str,
    milliseconds: float,
    candidates: tuple[Candidate, ...],
    most_fetched: float = 1.2,
    *,
    extra: bool = False,
) -> Workload:
    names = {one.name for one in candidates}
    candidates = tuple(
        replace(one, options={**one.options, "least_samples": LEAST_SAMPLES[output]})
        if one.program in ("remote_loader", "remote_webdataset")
        else one
        for one in candidates
    )
    bars = []
    for window in WINDOWS:
        own, other = _ours(window), f"megatron-energon, window {window:,}"
        bars.append(Bar(of=own, to=other, at_least=1 if milliseconds == 20 and window in RUNS else None))
        bars.append(Bar(of=own, to=RANGES, at_least=None if window in RUNS or milliseconds != 20 else 0.8))
    bars.append(Bar(of=SEQUENTIAL, to=SHARDS, at_least=0.8 if milliseconds == 20 else None))
    for window in (0, *WINDOWS):
        local = _ours(window, local=True)
        bars.append(Bar(of=_ours(window), to=local, at_least=0.95 if window <= RUNS[-1] else 0.85))
        bars.append(Bar(of=_ours(window), to=local, at_least=0.95, metric=AFTER_SERVER))
    limits = [
        Limit(of=one.name, metric="bytes_fetched_over_wanted", at_most=most_fetched)
        for one in candidates
        if one.options.get("library") == OURS and not one.options.get("local")
    ]
    return Workload(
        name=name,
        title=f"{title}, {milliseconds:g} ms per request",
        metric="samples_per_second",
        unit="samples/s",
        recipe=recipe,
        output=output,
        storage={"latency_seconds": milliseconds / 1000},
        x_label="window",
        candidates=candidates,
        bars=tuple(bar for bar in bars if {bar.of, bar.to} <= names),
        limits=tuple(limits),
        seconds=1.5,
        samples=200_000,
        repetitions=3,
        extra=extra,
    )


def _opening(datasets: int, library: str = OURS) -> Candidate:
    who = "energon_dali" if library == OURS else "megatron-energon"
    return Candidate(
        name=f"{who}, {datasets:,} datasets",
        program="remote_opening",
        options={"library": library, "leaves": datasets},
        environment="own" if library == OURS else "energon",
    )


OPENING = Workload(
    name="opening-20ms",
    title="Opening a metadataset, 20 ms per request",
    metric="opening_seconds",
    unit="s",
    better="lower",
    recipe=BLEND.recipe,
    storage={"latency_seconds": 0.02},
    candidates=(_opening(DATASETS), _opening(100), _opening(100, ENERGON)),
    bars=(Bar(of="energon_dali, 100 datasets", to="megatron-energon, 100 datasets"),),
    limits=(Limit(of=f"energon_dali, {DATASETS:,} datasets", metric="opening_seconds", at_most=5),),
    repetitions=3,
)


def _packed() -> Candidate:
    """Returns our loader with packs of about 8 samples, planned in windows of 10,000."""
    one = ours(10_000)
    return replace(one, name=f"{one.name}, planned packs", options={**one.options, "packs": 8}, series="planned packs")


PACKED = Workload(
    name="packs-20ms",
    title="JPEGs of 100 KB, not decoded, in planned packs, 20 ms per request",
    metric="samples_per_second",
    unit="samples/s",
    recipe=JPEG,
    output="jpeg",
    storage={"latency_seconds": 0.02},
    candidates=(ours(10_000), _packed()),
    bars=(Bar(of=_packed().name, to=_ours(10_000), at_least=0.9),),
    seconds=1.5,
    samples=200_000,
    repetitions=5,
)

_FEW = (ours(0), ours(1000), ours(100_000), energon(1000), *BOUNDS)

WORKLOADS = (
    PACKED,
    _workload(
        "jpeg-20ms",
        "JPEGs of 100 KB, not decoded",
        JPEG,
        "jpeg",
        20,
        (
            ours(0),
            *map(ours, WINDOWS),
            *map(energon, RUNS),
            webdataset(1000),
            streaming(1000),
            litdata(shuffle=True),
            *BOUNDS,
        ),
    ),
    _workload(
        "decoded-20ms",
        "JPEGs of 100 KB, decoded",
        JPEG,
        "decoded",
        20,
        (
            *(ours(window, local=local) for window in (0, 1000, 100_000) for local in (False, True)),
            energon(1000),
            webdataset(1000),
            streaming(1000),
            litdata(shuffle=True),
        ),
    ),
    _workload(
        "text-20ms",
        "Text of 200 bytes",
        TEXT,
        "text",
        20,
        (
            *map(ours, (0, 1000, 10_000, 100_000)),
            energon(1000),
            webdataset(1000),
            streaming(1000),
            litdata(shuffle=True),
            *BOUNDS,
        ),
        most_fetched=4,
    ),
    OPENING,
    _workload("jpeg-0ms", "JPEGs of 100 KB, not decoded", JPEG, "jpeg", 0, _FEW),
    _workload("jpeg-100ms", "JPEGs of 100 KB, not decoded", JPEG, "jpeg", 100, _FEW),
    _workload(
        "jpeg-20ms-more",
        "JPEGs of 100 KB, not decoded",
        JPEG,
        "jpeg",
        20,
        (
            energon(10_000),
            webdataset(1),
            webdataset(10_000),
            streaming(0),
            streaming(100_000),
            litdata(shuffle=False),
        ),
        extra=True,
    ),
    *(
        _workload(
            f"{name}-{milliseconds}ms",
            title,
            recipe,
            output,
            milliseconds,
            (*map(ours, WINDOWS), energon(1000), *(() if output == "decoded" else BOUNDS)),
            most_fetched,
            extra=True,
        )
        for milliseconds in (0, 100)
        for name, title, recipe, output, most_fetched in (
            ("decoded", "JPEGs of 100 KB, decoded", JPEG, "decoded", 1.2),
            ("text", "Text of 200 bytes", TEXT, "text", 4.0),
        )
    ),
)
