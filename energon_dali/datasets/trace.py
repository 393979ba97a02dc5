"""Metrics that also keep when each thing happened, for the trace that `WorkerConfig.trace_path` asks for."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from energon_dali.datasets.metrics import FailureRecord, Metrics
from energon_dali.datasets.stage_clock import StageClock, Work, describe_subject

if TYPE_CHECKING:
    from energon_dali.worker_config import WorkerConfig

KEPT_EVENTS = 100_000
"""Events that a process keeps until it can send them; more are dropped, and counted as `trace.dropped`."""


_NUMBERS = itertools.count()
"""Numbers of the spans that may overlap."""


class TraceProcess(NamedTuple):
    """A process as the trace shows it."""

    pid: int
    """Its process id."""
    name: str
    """What it is, such as "rank 0: worker 3"."""
    sort_index: int
    """Where it is shown, counted from the top."""


class TraceEvent(NamedTuple):
    """One event of a trace."""

    process: TraceProcess
    """Where it happened."""
    lane: str
    """The lane that shows it, such as the name of a stage."""
    thread: int
    """Distinguishes the threads of the process. Events of one lane and thread do not overlap."""
    phase: str
    """The letter of the Trace Event Format: X is a span; B and E are its begin and its end; b and e the same for spans
    that may overlap; i is an instant; C is a counter."""
    name: str
    """What happened."""
    start_seconds: float
    """When, by `time.perf_counter`, which all processes of a machine share."""
    duration_seconds: float
    """How long a span took; 0 for other events."""
    arguments: dict[str, Any] | None
    """What a viewer shows when the event is selected; the values of a counter."""


class TracedStageClock(StageClock):
    """Notes each time in the trace, too.

    Args:
        work: That of the thread.
        name: Name of the stage.
        metrics: Takes the events.
    """

    __slots__ = ("_metrics", "_running")

    def __init__(self, work: Work, name: str, metrics: TracedMetrics) -> None:
        super().__init__(work, name)
        self._metrics = metrics
        self._running: list[tuple[float, object]] = []
        """When it began, and on what."""

    def begin(self, subject: object = None) -> StageClock:
        outer = super().begin(subject)
        self._running.append((self._work.since, subject))
        return outer

    def end(self, outer: StageClock) -> None:
        super().end(outer)
        ended = self._work.since
        started, subject = self._running.pop()
        on = describe_subject(subject)
        self._metrics.note(self.name, "X", self.name, started, ended - started, {"of": on} if on else None)

    def count_since(self, began: float) -> None:
        super().count_since(began)
        self._metrics.note(self.name, "X", self.name, began, self.seconds)


class TracedMetrics(Metrics):
    """Metrics of one process that also keep an event for each time that is added, each block and each dropped sample.

    Args:
        process: Name of this process in the trace.
        sort_index: Where it is shown.
        sink: Takes the events at once, in the process that writes the trace; None keeps them until `drain`.
    """

    def __init__(self, process: str, sort_index: int, sink: Callable[[list[TraceEvent]], None] | None = None) -> None:
        super().__init__(process)
        self.process = TraceProcess(os.getpid(), process, sort_index)
        """This process."""
        self.sink = sink
        """Takes the events at once; None if they wait for `drain`."""
        self._events: deque[TraceEvent] = deque()
        self._block_started = 0.0

    def note(
        self,
        lane: str,
        phase: str,
        name: str,
        start_seconds: float,
        duration_seconds: float = 0.0,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """Adds an event of the calling thread; the arguments are the fields of `TraceEvent`."""
        thread = threading.get_ident()
        self._take([TraceEvent(self.process, lane, thread, phase, name, start_seconds, duration_seconds, arguments)])

    def _take(self, events: list[TraceEvent]) -> None:
        if self.sink is not None:
            self.sink(events)
            return
        with self._lock:
            room = max(0, KEPT_EVENTS - len(self._events))
            self._events.extend(events[:room])
            if len(events) > room:
                self._counts["trace.dropped"] += len(events) - room

    def _new_clock(self, work: Work, stage: str) -> StageClock:
        return TracedStageClock(work, stage, self)

    def skip(self, stage: str) -> None:
        self.note("dropped samples", "i", f"skipped by {stage}", time.perf_counter())
        super().skip(stage)

    def fail(self, failure: FailureRecord) -> int:
        arguments = {"key": failure.key, "shard": failure.shard, "reason": failure.reason[:500]}
        self.note("dropped samples", "i", f"failed in {failure.stage}", time.perf_counter(), arguments=arguments)
        return super().fail(failure)

    def begin_block(self) -> None:
        self._block_started = time.perf_counter()

    def end_block(self, stream: int, size_bytes: int) -> None:
        arguments = {"stream": stream, "bytes": size_bytes}
        self.note("blocks", "X", "block", self._block_started, time.perf_counter() - self._block_started, arguments)

    def watch(self, name: str, future: Future[Any], count: int) -> None:
        super().watch(name, future, count)
        started = time.perf_counter()
        number = f"{self.process.pid}.{next(_NUMBERS)}"

        def note_end(_: Future[Any]) -> None:
            # An asynchronous span: those of several blocks overlap.
            self.note(name, "b", name, started, arguments={"id": number, "media": count})
            self.note(name, "e", name, time.perf_counter(), arguments={"id": number})

        future.add_done_callback(note_end)

    def drain(self) -> dict[str, Any] | None:
        record = super().drain()
        with self._lock:
            events, self._events = self._events, deque()
        if not events:
            return record
        record = record or {"counts": {}, "failures": [], "kinds": {}}
        return {**record, "events": list(events)}

    def merge(self, record: dict[str, Any] | None, *, again: bool = False) -> None:
        super().merge(record, again=again)
        if record is not None and "events" in record:
            self._take(record["events"])


def child_metrics(config: WorkerConfig, name: str, sort_index: int) -> Metrics:
    """Returns the metrics of a process that a loader started.

    Args:
        config: Says whether there is a trace.
        name: What the process is, such as "worker 3".
        sort_index: Where the trace shows it.
    """
    if config.trace_path is None:
        return Metrics(name)
    return TracedMetrics(f"rank {config.rank}: {name}", sort_index)
