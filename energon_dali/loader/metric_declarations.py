"""What the statistics of a loader are called where they leave the program: name, kind, unit and description of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from energon_dali.loader.statistics import LoaderStatistics

Sample = tuple[tuple[str, ...], float]
"""The values of a metric's labels, in the order of `MetricDeclaration.labels`, and the value."""


@dataclass(frozen=True, slots=True)
class MetricDeclaration:
    """One metric of a loader."""

    name: str
    """Its name without prefix, unit and "total"."""
    kind: Literal["counter", "gauge"]
    """A counter only grows while the loader lives; a gauge is a value at one time."""
    unit: str
    """"seconds", "bytes" or "ratio"; "" counts what the name says."""
    description: str
    """One sentence."""
    samples: Callable[[LoaderStatistics], Iterable[Sample]]
    """Returns the values; none if there is nothing to say."""
    labels: tuple[str, ...] = ()
    """Names of its labels, other than the loader and its rank."""

    @property
    def full_name(self) -> str:
        """The name with prefix and unit, as Prometheus wants it; Prometheus adds "_total" to counters."""
        return "_".join(filter(None, ("energon_dali", self.name, self.unit)))


def _one(value: float | None) -> Iterable[Sample]:
    return [] if value is None else [((), float(value))]


def _by_name(values: Mapping[str, float]) -> Iterable[Sample]:
    return [((name,), float(value)) for name, value in sorted(values.items())]


def _column(table: Mapping[str, Mapping[str, float]], column: str) -> Iterable[Sample]:
    return [((name,), float(row[column])) for name, row in sorted(table.items()) if column in row]


def _prefixed(statistics: LoaderStatistics, prefix: str) -> Iterable[Sample]:
    counts = statistics.counts
    return _by_name({name[len(prefix) :]: counts[name] for name in counts if name.startswith(prefix)})


def _counter(name: str, counter: str, description: str, unit: str = "", *, always: bool = False) -> MetricDeclaration:
    """Declares a metric that is one entry of `LoaderStatistics.counts`."""
    _DECLARED_COUNTERS.add(counter)

    def samples(statistics: LoaderStatistics) -> Iterable[Sample]:
        return _one(statistics.counts.get(counter, 0 if always else None))

    return MetricDeclaration(name, "counter", unit, description, samples)


def _others(statistics: LoaderStatistics) -> Iterable[Sample]:
    return _by_name(
        {
            name: count
            for name, count in statistics.counts.items()
            if name not in _DECLARED_COUNTERS and not name.startswith(("skipped.", "failed."))
        }
    )


_DECLARED_COUNTERS = {"samples.skipped", "samples.failed"}
"""Entries of `LoaderStatistics.counts` that have a metric of their own, or are the sum of one."""

DECLARATIONS: tuple[MetricDeclaration, ...] = (
    MetricDeclaration("batches", "counter", "", "Batches delivered to the trainer.", lambda s: _one(s.batches)),
    MetricDeclaration(
        "trainer_blocked",
        "counter",
        "seconds",
        "Time that the trainer waited for batches after the first.",
        lambda s: _one(s.blocked_seconds),
    ),
    MetricDeclaration(
        "elapsed", "counter", "seconds", "Time since the first batch was asked for.", lambda s: _one(s.elapsed_seconds)
    ),
    MetricDeclaration(
        "first_batch",
        "gauge",
        "seconds",
        "Time that the trainer waited for the first batch.",
        lambda s: _one(s.first_batch_seconds),
    ),
    MetricDeclaration(
        "queue_occupancy",
        "gauge",
        "ratio",
        "Mean share of the queue that was full when a batch was taken, 0 to 1.",
        lambda s: _one(s.queue_occupancy),
    ),
    MetricDeclaration(
        "stage",
        "counter",
        "seconds",
        "Time at work per stage, summed over all processes.",
        lambda s: _by_name(s.stage_seconds),
        ("stage",),
    ),
    _counter("samples_read", "samples.read", "Samples read.", always=True),
    _counter("read", "bytes.read", "Bytes of the parts that were read.", "bytes", always=True),
    MetricDeclaration(
        "samples_skipped",
        "counter",
        "",
        "Samples that a stage dropped on purpose.",
        lambda s: _prefixed(s, "skipped."),
        ("stage",),
    ),
    MetricDeclaration(
        "samples_failed",
        "counter",
        "",
        "Samples that were dropped because a stage failed.",
        lambda s: _prefixed(s, "failed."),
        ("stage",),
    ),
    MetricDeclaration(
        "media_parts", "counter", "", "Images and clips by decode route.", lambda s: _by_name(s.routes), ("route",)
    ),
    _counter("blocks", "blocks", "Blocks that came from worker processes."),
    MetricDeclaration(
        "blocks", "counter", "bytes", "Bytes that came from worker processes.", lambda s: _one(s.block_bytes)
    ),
    _counter("decode_process_batches", "decode_process.batches", "Batches that came from the decode process."),
    _counter("decode_process", "decode_process.bytes", "Bytes that came from the decode process.", "bytes"),
    MetricDeclaration(
        "blend_samples",
        "counter",
        "",
        "Samples drawn from each dataset of a blend.",
        lambda s: _column(s.blend, "samples"),
        ("dataset",),
    ),
    MetricDeclaration(
        "blend_units",
        "counter",
        "",
        "Units, such as tokens, drawn from each dataset of a blend with blend_by.",
        lambda s: _column(s.blend, "units"),
        ("dataset",),
    ),
    MetricDeclaration(
        "storage_retries",
        "counter",
        "",
        "Requests for data that were repeated.",
        lambda s: _by_name(s.retries),
        ("store",),
    ),
    MetricDeclaration(
        "storage_requests",
        "counter",
        "",
        "Requests for data of remote storage and slow disks.",
        lambda s: _one(s.requests.get("requests")),
    ),
    MetricDeclaration(
        "storage_wanted",
        "counter",
        "bytes",
        "Bytes that samples wanted of remote storage and slow disks.",
        lambda s: _one(s.requests.get("bytes_wanted")),
    ),
    MetricDeclaration(
        "storage_fetched",
        "counter",
        "bytes",
        "Bytes that were fetched from remote storage and slow disks.",
        lambda s: _one(s.requests.get("bytes_fetched")),
    ),
    MetricDeclaration(
        "storage_requests_in_flight",
        "gauge",
        "",
        "Mean number of requests at the same time since the first batch was asked for.",
        lambda s: _one(s.requests.get("in_flight")),
    ),
    _counter("shard_cache_hits", "shard_cache.hits", "Blocks that the shard cache had."),
    _counter("shard_cache_misses", "shard_cache.misses", "Blocks that the shard cache had to fetch."),
    _counter("shard_cache_local", "shard_cache.bytes_local", "Bytes that the shard cache had.", "bytes"),
    _counter("shard_cache_remote", "shard_cache.bytes_remote", "Bytes that the shard cache fetched.", "bytes"),
    _counter("shard_cache_evicted", "shard_cache.evicted_bytes", "Bytes that the shard cache evicted.", "bytes"),
    MetricDeclaration("events", "counter", "", "All other counters of the loader, by name.", _others, ("event",)),
    MetricDeclaration(
        "gpu_memory",
        "gauge",
        "bytes",
        "GPU memory of this process, as torch sees it: allocated, reserved, and their peaks.",
        lambda s: _by_name(s.gpu_memory_bytes),
        ("kind",),
    ),
)
"""All metrics, in the order in which they are shown."""


def scalars_between(earlier: LoaderStatistics, later: LoaderStatistics) -> dict[str, float]:
    """Returns numbers for a plot over the steps of a training: shares and rates of the time between two snapshots.

    Seconds, bytes and batches become rates per second; the other counters are totals since the start. A stage's rate
    is the mean number of processes that worked on it.

    Args:
        earlier: A snapshot.
        later: A later one of the same loader.

    Returns:
        Numbers by names such as "blocked_share", "batches_per_second" and "stage_seconds_per_second/load".
    """
    between = later.since(earlier)
    scalars = {"blocked_share": between.blocked_share}
    for declaration in DECLARATIONS:
        if declaration.name in ("trainer_blocked", "elapsed"):
            continue
        name = "_".join(filter(None, (declaration.name, declaration.unit)))
        is_rate = declaration.kind == "counter" and (
            declaration.unit or declaration.name in ("batches", "samples_read")
        )
        seconds = between.elapsed_seconds if is_rate else 1.0
        if seconds <= 0:
            continue
        is_total = declaration.kind == "counter" and not is_rate
        for labels, value in declaration.samples(later if is_total else between):
            scalars["/".join((f"{name}_per_second" if is_rate else name, *labels))] = value / seconds
    return scalars
