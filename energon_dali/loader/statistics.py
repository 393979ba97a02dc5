"""What a loader did: how long the trainer waited, what each stage took, how media were decoded, and what failed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

NumberT = TypeVar("NumberT", int, float)
_SHOWN_FAILURES = 10
_SHOWN_STAGES = 8
"""Stages that a card shows, those that took most time."""
_TRAINER = (
    "blocked_seconds",
    "blocked_share",
    "starting_seconds",
    "first_batch_seconds",
    "waiting_seconds",
    "waiting_for",
    "elapsed_seconds",
    "batches",
)
"""What `as_dict` has of the trainer."""


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """A snapshot; `as_dict` gives plain values, `str` a table."""

    batches: int
    """Batches delivered."""
    elapsed_seconds: float
    """Time since the first batch was asked for."""
    blocked_seconds: float
    """Time the trainer waited for batches after the first; a wait counts while it lasts."""
    first_batch_seconds: float | None
    """Time the trainer waited for the first batch; None until it arrived."""
    starting_seconds: float = 0.0
    """Time the trainer has waited for the first batch so far."""
    waiting_seconds: float = 0.0
    """How long the trainer has been waiting for a batch now; 0 if it does not wait."""
    waiting_for: str = ""
    """What it is waiting for, such as "worker 1 is in encode_sample of captions/000123"; "" if it does not wait."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    """Time per stage, summed over all processes and without the stages inside it; it grows while a stage lasts."""
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    """How much of that time the stage's thread computed, estimated from samples. In the rest it slept, or waited for
    storage, for other threads or for a core."""
    hooks: list[str] = field(default_factory=list)
    """Names of the stages that are hooks of the user's."""
    core_wait_seconds: float = 0.0
    """Time in which the threads that run the stages were ready to compute, and no core was free."""
    idle_seconds: dict[str, float] = field(default_factory=dict)
    """How long each worker waited because the rank had no room for more, such as {"worker 0": 3.2}."""
    routes: dict[str, int] = field(default_factory=dict)
    """Media parts per decode route."""
    block_bytes: int = 0
    """Bytes that came from worker processes."""
    blend: dict[str, dict[str, float]] = field(default_factory=dict)
    """Realised shares of blended datasets, by name: samples and their share; units and their share with blend_by.
    Counted where samples are drawn, ahead of the trainer."""
    planned_blend: dict[str, dict[str, float]] = field(default_factory=dict)
    """Shares of a blend with global batches in the steps that were delivered, of all ranks, by name: `wanted` samples,
    the integral of the weights, `planned` samples, those that the plan has, and the shares `wanted_share` and
    `planned_share`. Counted since steps have their present size, and equal on all ranks."""
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    """Losses that the trainer reported, by dataset: the mean `loss`, their `sum` and what it is a mean over, `weight`.
    Those of this rank."""
    retries: dict[str, int] = field(default_factory=dict)
    """Requests for data that were repeated, by store: a mount point, or scheme and host or bucket."""
    requests: dict[str, float] = field(default_factory=dict)
    """Requests for data of remote storage and slow disks, over all processes: `requests`, `bytes_wanted` by the samples
    that they were made for, `bytes_fetched`, and `in_flight`, the mean number at the same time since the first batch
    was asked for. Empty if there were none."""
    counts: dict[str, int] = field(default_factory=dict)
    """All other counters."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    """The last dropped samples, with dataset, shard and key."""
    failure_kinds: dict[str, int] = field(default_factory=dict)
    """How many samples failed, by stage, error type and line that raised it."""
    failure_examples: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The first sample that failed in each of these ways."""
    gpu_memory_bytes: dict[str, int] = field(default_factory=dict)
    """GPU memory of this process in bytes, as torch sees it: allocated, reserved, their peaks; empty without CUDA."""

    @classmethod
    def collect(cls, record: dict[str, Any], **trainer: Any) -> LoaderStatistics:
        """Returns the statistics.

        Args:
            record: What the metrics of all processes counted, see `Metrics.snapshot`.
            **trainer: The fields that the trainer's clock measured, `waiting_for`, `planned_blend` and `losses`.
        """
        counts = dict(record["counts"])
        return cls(
            **trainer,
            stage_seconds=record["seconds"],
            cpu_seconds=record["cpu_seconds"],
            hooks=record["hooks"],
            core_wait_seconds=record["core_wait_seconds"],
            idle_seconds=record["idle_seconds"],
            routes=_take_by_prefix(counts, "route."),
            retries=_take_by_prefix(counts, "retries."),
            block_bytes=counts.pop("blocks.bytes", 0),
            blend=take_shares(counts),
            requests=_take_requests(counts, trainer["elapsed_seconds"]),
            counts=counts,
            failures=record["failures"],
            failure_kinds=record["kinds"],
            failure_examples=record["examples"],
            gpu_memory_bytes=_gpu_memory(),
        )

    @property
    def blocked_share(self) -> float:
        """Share of the time after the first batch that the trainer waited, 0 to 1."""
        running = self.elapsed_seconds - self.starting_seconds
        return min(1.0, self.blocked_seconds / running) if running > 0 else 0.0

    @property
    def batches_per_second(self) -> float:
        """Batches per second, without the first and the wait for it; 0 before the second."""
        running = self.elapsed_seconds - self.starting_seconds
        batches = self.batches - (self.first_batch_seconds is not None)
        return batches / running if running > 0 else 0.0

    def since(self, earlier: LoaderStatistics) -> LoaderStatistics:
        """Returns what happened after another snapshot of the same loader: counts and times are differences.

        Args:
            earlier: What `stats()` returned before.
        """
        elapsed = self.elapsed_seconds - earlier.elapsed_seconds
        failure_kinds = _less(self.failure_kinds, earlier.failure_kinds)
        requests: dict[str, float] = _less(self.requests, earlier.requests)
        if requests:
            # Means since the start become sums, whose difference is a mean of the time between.
            seconds = self.requests["in_flight"] * self.elapsed_seconds
            seconds -= earlier.requests.get("in_flight", 0.0) * earlier.elapsed_seconds
            requests["in_flight"] = seconds / elapsed if elapsed > 0 else 0.0
        drawn: dict[str, Any] = {}
        for name, row in self.blend.items():
            for kind in ("samples", "units"):
                if kind in row:
                    drawn[f"blend.{kind}.{name}"] = row[kind] - earlier.blend.get(name, {}).get(kind, 0)
        return replace(
            self,
            batches=self.batches - earlier.batches,
            elapsed_seconds=elapsed,
            blocked_seconds=self.blocked_seconds - earlier.blocked_seconds,
            first_batch_seconds=self.first_batch_seconds if earlier.first_batch_seconds is None else None,
            starting_seconds=self.starting_seconds - earlier.starting_seconds,
            stage_seconds=_less(self.stage_seconds, earlier.stage_seconds),
            cpu_seconds=_less(self.cpu_seconds, earlier.cpu_seconds),
            core_wait_seconds=self.core_wait_seconds - earlier.core_wait_seconds,
            idle_seconds=_less(self.idle_seconds, earlier.idle_seconds),
            routes=_less(self.routes, earlier.routes),
            block_bytes=self.block_bytes - earlier.block_bytes,
            blend=take_shares(drawn),
            planned_blend=_planned_since(self.planned_blend, earlier.planned_blend),
            losses=_losses_since(self.losses, earlier.losses),
            retries=_less(self.retries, earlier.retries),
            requests=requests,
            counts=_less(self.counts, earlier.counts),
            failures=self.failures[max(0, len(self.failures) - sum(failure_kinds.values())) :],
            failure_kinds={kind: count for kind, count in failure_kinds.items() if count},
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns everything as plain values."""
        plain = asdict(self)
        trainer = {name: getattr(self, name) for name in _TRAINER}
        return {"trainer": trainer, **{name: value for name, value in plain.items() if name not in _TRAINER}}

    def __getitem__(self, name: str) -> Any:
        return self.as_dict()[name]

    def __repr__(self) -> str:
        return (
            f"LoaderStatistics({self.batches:,} batches in {self.elapsed_seconds:.1f} s, "
            f"trainer blocked {self.blocked_share:.1%})"
        )

    def _repr_html_(self) -> str:
        from energon_dali.samples.cards import Bar, card

        stages = sorted(self.stage_seconds.items(), key=lambda row: -row[1])[:_SHOWN_STAGES]
        most = max([seconds for _, seconds in stages], default=0.0) or 1.0
        rows: list[tuple[str, str | Bar]] = [
            ("trainer blocked", Bar(self.blocked_share, f"{self.blocked_share:.1%}, {self.blocked_seconds:.1f} s")),
            ("batches", f"{self.batches:,} in {self.elapsed_seconds:.1f} s, {self.batches_per_second:.1f} per second"),
            ("first batch", "-" if self.first_batch_seconds is None else f"{self.first_batch_seconds:.1f} s"),
        ]
        if self.waiting_seconds:
            rows.append(("waiting now", f"{self.waiting_seconds:.1f} s for a batch: {self.waiting_for}"))
        rows += [(f"time in {name}", Bar(seconds / most, f"{seconds:.2f} s")) for name, seconds in stages]
        rows += [(f"decoded by {name}", f"{count:,}") for name, count in sorted(self.routes.items())]
        rows += [(f"blend {name}", Bar(row["share"], _share_text(row))) for name, row in self.blend.items()]
        rows += [(f"failed {count:,} times", kind) for kind, count in sorted(self.failure_kinds.items())]
        return card("LoaderStatistics", rows, text=("All values", str(self)))

    def __str__(self) -> str:
        rows = [
            ("trainer blocked", f"{self.blocked_seconds:.3f} s ({self.blocked_share:.1%})"),
            ("first batch", "-" if self.first_batch_seconds is None else f"{self.first_batch_seconds:.3f} s"),
            ("batches", f"{self.batches} in {self.elapsed_seconds:.1f} s"),
        ]
        if self.waiting_seconds:
            rows.append(("waiting now", f"{self.waiting_seconds:.1f} s for a batch: {self.waiting_for}"))
        for name, seconds in sorted(self.stage_seconds.items()):
            computing = f", computing {self.cpu_seconds[name]:.3f} s" if name in self.cpu_seconds else ""
            rows.append((f"time in {name}", f"{seconds:.3f} s{computing}"))
        rows.append(("waiting for a core", f"{self.core_wait_seconds:.3f} s"))
        rows += [(f"route {name}", str(count)) for name, count in sorted(self.routes.items())]
        rows.append(("from workers", f"{self.block_bytes / 1e6:.1f} MB"))
        rows += [(f"blend {name}", _share_text(row)) for name, row in self.blend.items()]
        rows += [(f"planned {name}", _planned_text(row)) for name, row in self.planned_blend.items()]
        rows += [(f"loss of {name}", f"{row['loss']:.4f}") for name, row in self.losses.items()]
        rows += [(f"retries of {name}", str(count)) for name, count in sorted(self.retries.items())]
        if self.requests:
            rows.append(("requests", f"{self.requests['requests']:.0f}, {self.requests['in_flight']:.1f} in flight"))
            rows.append(("bytes wanted", f"{self.requests['bytes_wanted'] / 1e6:.1f} MB"))
            rows.append(("bytes fetched", f"{self.requests['bytes_fetched'] / 1e6:.1f} MB"))
        rows += [(name, str(count)) for name, count in sorted(self.counts.items())]
        rows += [(f"GPU memory {name}", f"{size / 2**20:.0f} MiB") for name, size in self.gpu_memory_bytes.items()]
        rows += [(f"failed {count} times", kind) for kind, count in sorted(self.failure_kinds.items())]
        for failure in self.failures[-_SHOWN_FAILURES:]:
            rows.append((f"failed in {failure['stage']}", f"{failure['shard']}/{failure['key']}: {failure['reason']}"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _less(new: dict[str, NumberT], old: dict[str, NumberT]) -> dict[str, NumberT]:
    """Returns the differences of two dicts of numbers; what the second lacks is 0 there."""
    return {name: value - old[name] if name in old else value for name, value in new.items()}


def _take_by_prefix(counts: dict[str, int], prefix: str) -> dict[str, int]:
    """Removes the counters whose names start with a prefix, and returns them without it."""
    return {name[len(prefix) :]: counts.pop(name) for name in list(counts) if name.startswith(prefix)}


def _take_requests(counts: dict[str, int], elapsed_seconds: float) -> dict[str, float]:
    """Removes the counters of requests for data, and returns what LoaderStatistics shows of them."""
    found = _take_by_prefix(counts, "read_ahead.")
    if not found.get("requests"):
        return {}
    seconds = found.get("request_microseconds", 0) / 1e6
    return {
        "requests": found["requests"],
        "bytes_wanted": found.get("bytes_wanted", 0),
        "bytes_fetched": found.get("bytes_fetched", 0),
        "in_flight": seconds / elapsed_seconds if elapsed_seconds > 0 else 0.0,
    }


def take_shares(counts: dict[str, int]) -> dict[str, dict[str, float]]:
    """Removes the counters of blended datasets, and returns what each of them gave, by name.

    Args:
        counts: `blend.samples.NAME` and `blend.units.NAME` among other counters.
    """
    table: dict[str, dict[str, float]] = {}
    for kind, share in (("samples", "share"), ("units", "unit_share")):
        found = dict(sorted(_take_by_prefix(counts, f"blend.{kind}.").items()))
        total = sum(found.values())
        for name, amount in found.items():
            table.setdefault(name, {}).update({kind: amount, share: amount / total if total else 0.0})
    return table


def planned_shares(
    names: Sequence[str], wanted: Sequence[float], planned: Sequence[float]
) -> dict[str, dict[str, float]]:
    """Returns what `LoaderStatistics.planned_blend` holds; {} before the first step.

    Args:
        names: Of the datasets.
        wanted: Samples that each should have.
        planned: Samples that each has.
    """
    total = sum(planned)
    if total <= 0:
        return {}
    return {
        name: {"wanted": want, "planned": have, "wanted_share": want / total, "planned_share": have / total}
        for name, want, have in zip(names, wanted, planned, strict=True)
    }


def losses_of(sums: dict[str, float], weights: dict[str, float]) -> dict[str, dict[str, float]]:
    """Returns the mean loss, the sum and the weight of each dataset that has any.

    Args:
        sums: Weighted sums of losses, by dataset.
        weights: Sums of their weights.
    """
    return {
        name: {"loss": sums[name] / weight, "sum": sums[name], "weight": weight}
        for name, weight in weights.items()
        if weight > 0
    }


def _losses_since(new: dict[str, dict[str, float]], old: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Returns the losses that were reported after an earlier snapshot."""
    sums, weights = (
        {name: row[kind] - old.get(name, {}).get(kind, 0.0) for name, row in new.items()} for kind in ("sum", "weight")
    )
    return losses_of(sums, weights)


def _planned_since(new: dict[str, dict[str, float]], old: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Returns what was planned after an earlier snapshot; all of it if the counts have begun again since then."""
    if new.keys() != old.keys() or any(row["planned"] < old[name]["planned"] for name, row in new.items()):
        return new
    wanted, planned = ([row[kind] - old[name][kind] for name, row in new.items()] for kind in ("wanted", "planned"))
    return planned_shares(list(new), wanted, planned)


def _planned_text(row: dict[str, float]) -> str:
    return f"{row['planned']} samples ({row['planned_share']:.2%}), wanted {row['wanted_share']:.2%}"


def _share_text(row: dict[str, float]) -> str:
    text = f"{row.get('samples', 0)} samples ({row.get('share', 0):.2%})"
    return f"{text}, {row['units']} units ({row['unit_share']:.2%})" if "units" in row else text


def _gpu_memory() -> dict[str, int]:
    """Returns the GPU memory of this process in bytes; never initialises CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {
        "allocated": torch.cuda.memory_allocated(),
        "allocated_peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "reserved_peak": torch.cuda.max_memory_reserved(),
    }
