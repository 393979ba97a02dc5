"""What the statistics of a loader are called where they leave the program: name, kind, unit and description of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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
    value: Callable[[LoaderStatistics], float | Mapping[str, float] | None]
    """Returns the value, or values by label; None if there is nothing to say."""
    labels: tuple[str, ...] = ()
    """Names of its labels, other than the loader and its rank."""

    @property
    def full_name(self) -> str:
        """The name with prefix and unit, as Prometheus wants it; Prometheus adds "_total" to counters."""
        return "_".join(filter(None, ("energon_dali", self.name, self.unit)))

    def samples(self, statistics: LoaderStatistics) -> list[Sample]:
        """Returns the values with their labels; none if there is nothing to say."""
        found = self.value(statistics)
        if isinstance(found, Mapping):
            return [((name,), float(value)) for name, value in sorted(found.items())]
        return [] if found is None else [((), float(found))]


def _counter(
    name: str,
    value: str | Callable[[LoaderStatistics], float | Mapping[str, float] | None],
    description: str,
    unit: str = "",
    *labels: str,
) -> MetricDeclaration:
    """Declares a counter: an entry of `LoaderStatistics.counts` by its name, or another value."""
    if isinstance(value, str):
        _DECLARED_COUNTERS.add(value)
        value = partial(_count, value)
    return MetricDeclaration(name, "counter", unit, description, value, labels)


def _count(counter: str, statistics: LoaderStatistics) -> float | None:
    return statistics.counts.get(counter, 0 if counter in _ALWAYS else None)


def _column(table: Mapping[str, Mapping[str, float]], column: str) -> dict[str, float]:
    return {name: row[column] for name, row in table.items() if column in row}


def _prefixed(counts: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name[len(prefix) :]: count for name, count in counts.items() if name.startswith(prefix)}


def _others(statistics: LoaderStatistics) -> dict[str, float]:
    return {
        name: count
        for name, count in statistics.counts.items()
        if name not in _DECLARED_COUNTERS and not name.startswith(("skipped.", "failed."))
    }


_ALWAYS = frozenset({"samples.read", "bytes.read"})
"""Counters that are 0 until something is counted; the others have no value until then."""
_DECLARED_COUNTERS = {"samples.skipped", "samples.failed"}
"""Entries of `LoaderStatistics.counts` that have a metric of their own, or are the sum of one."""

DECLARATIONS: tuple[MetricDeclaration, ...] = (
    _counter("batches", lambda s: s.batches, "Batches delivered to the trainer."),
    _counter(
        "trainer_blocked",
        lambda s: s.blocked_seconds,
        "Time that the trainer waited for batches after the first; a wait counts while it lasts.",
        "seconds",
    ),
    _counter("elapsed", lambda s: s.elapsed_seconds, "Time since the first batch was asked for.", "seconds"),
    MetricDeclaration(
        "first_batch",
        "gauge",
        "seconds",
        "Time that the trainer waited for the first batch.",
        lambda s: s.first_batch_seconds,
    ),
    MetricDeclaration(
        "trainer_waiting",
        "gauge",
        "seconds",
        "How long the trainer has been waiting for a batch; 0 if it does not wait.",
        lambda s: s.waiting_seconds,
    ),
    _counter("stage", lambda s: s.stage_seconds, "Time per stage, summed over all processes.", "seconds", "stage"),
    _counter(
        "stage_cpu",
        lambda s: s.cpu_seconds,
        "How much of the time of each stage its thread computed.",
        "seconds",
        "stage",
    ),
    _counter(
        "core_wait",
        lambda s: s.core_wait_seconds,
        "Time in which the threads that run the stages were ready to compute, and no core was free.",
        "seconds",
    ),
    _counter(
        "worker_idle",
        lambda s: {name.removeprefix("worker "): seconds for name, seconds in s.idle_seconds.items()},
        "Time that each worker waited because the rank had no room for more.",
        "seconds",
        "worker",
    ),
    _counter("samples_read", "samples.read", "Samples read."),
    _counter("read", "bytes.read", "Bytes of the parts that were read.", "bytes"),
    _counter(
        "samples_skipped",
        lambda s: _prefixed(s.counts, "skipped."),
        "Samples that a stage dropped on purpose.",
        "",
        "stage",
    ),
    _counter(
        "samples_failed",
        lambda s: _prefixed(s.counts, "failed."),
        "Samples that were dropped because a stage failed.",
        "",
        "stage",
    ),
    _counter("media_parts", lambda s: s.routes, "Images and clips by decode route.", "", "route"),
    _counter("blocks", "blocks", "Blocks that came from worker processes."),
    _counter("blocks", lambda s: s.block_bytes, "Bytes that came from worker processes.", "bytes"),
    _counter("decode_process_batches", "decode_process.batches", "Batches that came from the decode process."),
    _counter("decode_process", "decode_process.bytes", "Bytes that came from the decode process.", "bytes"),
    _counter(
        "blend_samples",
        lambda s: _column(s.blend, "samples"),
        "Samples drawn from each dataset of a blend.",
        "",
        "dataset",
    ),
    _counter(
        "blend_units",
        lambda s: _column(s.blend, "units"),
        "Units, such as tokens, drawn from each dataset of a blend with blend_by.",
        "",
        "dataset",
    ),
    MetricDeclaration(
        "blend_wanted",
        "gauge",
        "ratio",
        "Share of each dataset of a blend that the weights want in the delivered steps of global batches.",
        lambda s: _column(s.planned_blend, "wanted_share"),
        ("dataset",),
    ),
    MetricDeclaration(
        "blend_planned",
        "gauge",
        "ratio",
        "Share of each dataset of a blend in the delivered steps of global batches.",
        lambda s: _column(s.planned_blend, "planned_share"),
        ("dataset",),
    ),
    _counter("storage_retries", lambda s: s.retries, "Requests for data that were repeated.", "", "store"),
    _counter(
        "storage_requests", lambda s: s.requests.get("requests"), "Requests for data of remote storage and slow disks."
    ),
    _counter(
        "storage_wanted",
        lambda s: s.requests.get("bytes_wanted"),
        "Bytes that samples wanted of remote storage and slow disks.",
        "bytes",
    ),
    _counter(
        "storage_fetched",
        lambda s: s.requests.get("bytes_fetched"),
        "Bytes that were fetched from remote storage and slow disks.",
        "bytes",
    ),
    MetricDeclaration(
        "storage_requests_in_flight",
        "gauge",
        "",
        "Mean number of requests at the same time since the first batch was asked for.",
        lambda s: s.requests.get("in_flight"),
    ),
    _counter("shard_cache_hits", "shard_cache.hits", "Blocks that the shard cache had."),
    _counter("shard_cache_misses", "shard_cache.misses", "Blocks that the shard cache had to fetch."),
    _counter("shard_cache_local", "shard_cache.bytes_local", "Bytes that the shard cache had.", "bytes"),
    _counter("shard_cache_remote", "shard_cache.bytes_remote", "Bytes that the shard cache fetched.", "bytes"),
    _counter("shard_cache_evicted", "shard_cache.evicted_bytes", "Bytes that the shard cache evicted.", "bytes"),
    _counter("events", _others, "All other counters of the loader, by name.", "", "event"),
    MetricDeclaration(
        "gpu_memory",
        "gauge",
        "bytes",
        "GPU memory of this process, as torch sees it: allocated, reserved, and their peaks.",
        lambda s: s.gpu_memory_bytes,
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
