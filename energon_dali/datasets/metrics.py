"""Metrics of one process, in constant memory: counters, seconds per stage, and the last failures."""

from __future__ import annotations

import math
import operator
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from energon_dali.datasets.stage_clock import StageClock, Work
from energon_dali.shards.storage.forks import drop_in_child

KEPT_FAILURES = 1000
"""Failures that are kept with the names of their samples; all are counted."""

KEPT_EXAMPLES = 100
"""Kinds of failures of which the first one is kept."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """One sample that was dropped because something failed."""

    stage: str
    """Stage or hook: "read", "load", "decode", "encode_sample", ..."""
    reason: str
    """The error, in words."""
    dataset: str = ""
    """Path of the dataset."""
    shard: str = ""
    """Name of the shard."""
    key: str = ""
    """The sample's `__key__`."""
    epoch: int = 0
    """The epoch in which it was dropped."""
    kind: str = ""
    """What failures with one cause share: the stage, the type of the error, the line that raised it, and of data that
    cannot be decoded the reason without its numbers and names."""
    index: int = -1
    """Index of the sample in its whole dataset; -1 if it is not known."""
    error: str = ""
    """The class of the error, such as "DecodeError"."""
    route: str = ""
    """What decoded, such as "pil" or "screen"; "" for other errors."""


class WorkReport(NamedTuple):
    """What a process worked on until now."""

    process: str
    """What it is, such as "worker 3"."""
    written: float
    """When it reported this, by `time.perf_counter`, which all processes of a machine share."""
    stage: str
    """The stage that its thread is in; "" outside the pipeline."""
    since: float
    """When it entered the stage."""
    subject: str
    """What it works on there; "" if it is not known."""
    seconds: dict[str, float]
    """Time by stage."""
    cpu_seconds: dict[str, float]
    """How much of it the thread computed, by stage."""
    core_wait_seconds: float
    """How long the thread waited for a core."""
    hooks: list[str]
    """Names of the stages that are hooks of the user's."""


@dataclass(frozen=True, slots=True)
class WorkTimes:
    """What several processes worked, in all."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Time by stage."""
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    """How much of it their threads computed, by stage."""
    core_wait_seconds: float = 0.0
    """How long they waited for a core."""
    idle_seconds: dict[str, float] = field(default_factory=dict)
    """How long each worker waited until there was room for more, by the name of the process."""
    hooks: frozenset[str] = frozenset()
    """Names of the stages that are hooks of the user's."""

    @classmethod
    def of(cls, reports: Sequence[WorkReport]) -> WorkTimes:
        """Returns the times until now."""
        seconds: defaultdict[str, float] = defaultdict(float)
        cpu_seconds: defaultdict[str, float] = defaultdict(float)
        idle: dict[str, float] = {}
        for report in reports:
            if report.stage == "start" and not report.seconds:  # it was launched, and has not reported since then
                seconds[report.stage] += time.perf_counter() - report.since
            for stage, amount in report.seconds.items():
                seconds[stage] += amount
            for stage, amount in report.cpu_seconds.items():
                cpu_seconds[stage] += amount
            if report.process.startswith("worker "):
                idle[report.process] = report.seconds.get("wait for trainer", 0.0)
        return cls(
            dict(seconds),
            {stage: min(amount, seconds[stage]) for stage, amount in cpu_seconds.items()},
            sum(report.core_wait_seconds for report in reports),
            idle,
            frozenset(hook for report in reports for hook in report.hooks),
        )

    def plus(self, other: WorkTimes) -> WorkTimes:
        """Returns the sums."""
        return self._combine(other, operator.add)

    def at_least(self, other: WorkTimes) -> WorkTimes:
        """Returns the larger of each time."""
        return self._combine(other, max)

    def _combine(self, other: WorkTimes, combine: Callable[[float, float], float]) -> WorkTimes:
        def both(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
            return {name: combine(ours.get(name, 0.0), theirs.get(name, 0.0)) for name in {**ours, **theirs}}

        return WorkTimes(
            both(self.seconds, other.seconds),
            both(self.cpu_seconds, other.cpu_seconds),
            combine(self.core_wait_seconds, other.core_wait_seconds),
            both(self.idle_seconds, other.idle_seconds),
            self.hooks | other.hooks,
        )


class ReportSource(Protocol):
    """Where other processes report what they work on."""

    def read_all(self) -> list[WorkReport]:
        """Returns the last report of each process."""


class Metrics:
    """Counters of one process, for use from several threads. `drain` returns what was added since the last drain.

    Times of stages are not drained: they are read while they grow, see `work_report`.

    Args:
        process: What the process is, such as "worker 3".
    """

    def __init__(self, process: str = "the trainer") -> None:
        self.after_fork()
        self.process_name = process
        self.work = Work(new_clock=self._new_clock)
        """What the thread of the pipeline works on. Only one thread at a time runs a pipeline."""
        self._decoding = Work()
        """Has one stage, for as long as a decoder that works ahead of that thread has something to do."""
        self._decoding.cpu_due = math.inf  # it computes in threads of its own
        self._in_flight = 0
        self._others: ReportSource | None = None
        self._ended = WorkTimes()
        """What processes that have ended worked."""
        self._shown = WorkTimes()
        """The times that `snapshot` returned last."""
        drop_in_child(self)
        self._counts: Counter[str] = Counter()
        self._failures: deque[FailureRecord] = deque(maxlen=KEPT_FAILURES)
        self.kinds: Counter[str] = Counter()
        """How many samples failed, by kind. `failure_kinds` returns a copy, for other threads than those that count."""
        self._examples: dict[str, FailureRecord] = {}
        self._dropped: Counter[str] = Counter()
        self._kinds_here: Counter[str] = Counter()
        self.on_dropped: Callable[[], None] | None = None
        """Called after each dropped sample, by the thread that dropped it; its exceptions end the run. A process that
        works without yielding a batch is noticed and can be stopped here."""

    def after_fork(self) -> None:
        """Replaces the lock in a forked child: a thread that the child does not have may hold it."""
        self._lock = threading.RLock()  # a signal handler may save a state while this thread counts

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter, such as "samples.skipped" or "route.dali-cpu"."""
        with self._lock:
            self._counts[name] += amount

    def count_read(self, samples: int, size_bytes: int) -> None:
        """Adds samples that were read, and the bytes of their parts."""
        with self._lock:
            self._counts["samples.read"] += samples
            self._counts["bytes.read"] += size_bytes

    def clock(self, stage: str) -> StageClock:
        """Returns what measures a stage of the pipeline."""
        return self.work.stage(stage)

    def _new_clock(self, work: Work, stage: str) -> StageClock:
        return StageClock(work, stage)

    def work_report(self) -> WorkReport:
        """Returns what the thread of the pipeline works on, and the times of its stages until now."""
        current, seconds, cpu_seconds, waited = self.work.read()
        seconds.update(self._decoding.read()[1])
        hooks = self.work.hooks
        return WorkReport(self.process_name, time.perf_counter(), *current, seconds, cpu_seconds, waited, hooks)

    def read_others(self, others: ReportSource) -> None:
        """Takes the reports of other processes from now on; those that were read so far have ended.

        Args:
            others: Where they report.
        """
        with self._lock:
            if self._others is not None:
                self.note_end_of(self._others)
            self._others = others

    def note_end_of(self, others: ReportSource) -> None:
        """Notes that processes have ended: their times stay as they are now.

        Args:
            others: Where they reported; nothing happens if other processes took their place.
        """
        with self._lock:
            if others is self._others:
                self._ended = WorkTimes.of(others.read_all()).plus(self._ended)
                self._others = None

    def other_reports(self) -> list[WorkReport]:
        """Returns what the other processes of the rank report."""
        others = self._others
        return [] if others is None else others.read_all()

    def skip(self, stage: str) -> None:
        """Counts a sample that a stage dropped on purpose."""
        with self._lock:
            self._counts["samples.skipped"] += 1
            self._counts[f"skipped.{stage}"] += 1
            self._dropped[f"skipped.{stage}"] += 1
        self.note_dropped()

    def fail(self, failure: FailureRecord) -> int:
        """Counts a failed sample, keeps its name, and returns how many of its kind failed in this process so far."""
        with self._lock:
            self._counts["samples.failed"] += 1
            self._counts[f"failed.{failure.stage}"] += 1
            self._dropped[f"failed.{failure.stage}"] += 1
            self._failures.append(failure)
            self._keep_example(failure)
            self.kinds[failure.kind] += 1
            self._kinds_here[failure.kind] += 1
            return self._kinds_here[failure.kind]

    def has_room_for(self, kind: str) -> bool:
        """Returns whether failures of a kind have been counted in this process, or there are few kinds yet."""
        with self._lock:
            return kind in self._kinds_here or len(self._kinds_here) < KEPT_EXAMPLES

    def note_dropped(self) -> None:
        """Calls `on_dropped`, if it is set.

        Raises:
            Exception: Whatever `on_dropped` raises.
        """
        if self.on_dropped is not None:
            self.on_dropped()

    def begin_block(self) -> None:
        """Notes that the work on a block begins; only a trace wants to know."""

    def end_block(self, stream: int, size_bytes: int) -> None:
        """Notes that a block is ready to be sent; only a trace wants to know."""

    def watch(self, name: str, future: Future[Any], count: int) -> None:
        """Counts the time of work that has just been started and goes on next to the pipeline, but not twice at once.

        Args:
            name: What is done, such as "decode".
            future: Is done when the work is.
            count: Number of media.
        """
        clock = self._decoding.stage(name)
        with self._lock:
            if not self._in_flight:
                clock.begin()
            self._in_flight += 1

        def end(_: Future[Any]) -> None:
            with self._lock:
                self._in_flight -= 1
                if not self._in_flight:
                    clock.end(self._decoding.idle)

        future.add_done_callback(end)

    def dropped(self) -> Counter[str]:
        """Returns how many samples each stage dropped since the start, drained or not.

        Returns:
            Counts by "skipped.STAGE" and "failed.STAGE".
        """
        with self._lock:
            return self._dropped.copy()

    def failure_kinds(self) -> dict[str, int]:
        """Returns how many samples failed for each kind of failure (see `FailureRecord.kind`), since the last drain."""
        with self._lock:
            return dict(self.kinds)

    def last_failure(self) -> FailureRecord | None:
        """Returns the last failure since the last drain; None if there is none."""
        with self._lock:
            return self._failures[-1] if self._failures else None

    def drain(self) -> dict[str, Any] | None:
        """Returns what was added since the last drain as plain values, and clears it; None if nothing was added."""
        with self._lock:
            if not (self._counts or self._failures):
                return None
            record = {
                "counts": dict(self._counts),
                "failures": [asdict(failure) for failure in self._failures],
                "kinds": dict(self.kinds),
            }
            self._counts.clear()
            self._failures.clear()
            self.kinds.clear()
            return record

    def merge(self, record: dict[str, Any] | None, *, again: bool = False) -> None:
        """Adds what another process drained.

        Args:
            record: What `drain` returned.
            again: The record was drained from this object and is put back.
        """
        if record is None:
            return
        with self._lock:
            self._counts.update(record["counts"])
            for failure in (FailureRecord(**values) for values in record["failures"]):
                self._failures.append(failure)
                self._keep_example(failure)
            self.kinds.update(record["kinds"])
            if not again:
                dropped = ("skipped.", "failed.")
                self._dropped.update({name: n for name, n in record["counts"].items() if name.startswith(dropped)})

    def snapshot(self) -> dict[str, Any]:
        """Returns what was added since the last drain as plain values, without clearing it.

        Returns:
            What `drain` returns; "examples": the first failure of each kind; and the fields of `WorkTimes`, of all
            processes that report here.
        """
        with self._lock:
            others, ended = self._others, self._ended
        reports = [self.work_report(), *([] if others is None else others.read_all())]
        times = WorkTimes.of(reports).plus(ended)
        with self._lock:
            counts, kinds = dict(self._counts), dict(self.kinds)
            failures, examples = list(self._failures), dict(self._examples)
            # Processes are read while they work, and some are killed: no time may seem to run backwards for that.
            times = self._shown = times.at_least(self._shown)
        # Outside the lock, and without asdict's copies: a panel asks for this twice per second.
        return {
            "counts": counts,
            "seconds": times.seconds,
            "cpu_seconds": times.cpu_seconds,
            "core_wait_seconds": times.core_wait_seconds,
            "idle_seconds": times.idle_seconds,
            "hooks": sorted(times.hooks),
            "failures": [_fields(failure) for failure in failures],
            "kinds": kinds,
            "examples": {kind: _fields(failure) for kind, failure in examples.items()},
        }

    def _keep_example(self, failure: FailureRecord) -> None:
        if len(self._examples) < KEPT_EXAMPLES:
            self._examples.setdefault(failure.kind, failure)


def _fields(failure: FailureRecord) -> dict[str, Any]:
    return {name: getattr(failure, name) for name in FailureRecord.__slots__}


def describe_dropped(dropped: Counter[str]) -> str:
    """Returns counts of dropped samples as a phrase: "30 failed in decode and 12,000 were skipped by encode_sample".

    Args:
        dropped: As `Metrics.dropped` returns them, or a difference of two; "" where it holds none.
    """
    phrases = []
    for name, count in sorted(dropped.items()):
        way, _, stage = name.partition(".")
        if way == "failed":
            phrases.append(f"{count:,} failed in {stage}")
        else:
            phrases.append(f"{count:,} {'was' if count == 1 else 'were'} skipped by {stage}")
    return " and ".join(phrases)
