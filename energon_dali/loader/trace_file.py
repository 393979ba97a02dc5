"""Writes the trace of a rank in the Trace Event Format, which Perfetto and chrome://tracing open.

The format is described in "Trace Event Format" by the Chromium project. The file is a JSON array that is complete after
each write, so that it can be opened while the run goes on, and after the run was killed.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.trace import TracedMetrics, TraceEvent
from energon_dali.errors import ConfigError
from energon_dali.loader.watchdog import TrainerClock
from energon_dali.shards.storage.atomic_file import write_failure

if TYPE_CHECKING:
    from energon_dali.loader.advice import Diagnosis
    from energon_dali.worker_config import WorkerConfig

_LOG = logging.getLogger("energon_dali.loader")

_END = b"\n]\n"
_WRITE_SECONDS = 0.5
"""How long events wait in memory."""
_IDLE_SECONDS = 5.0
"""How long the thread that writes waits for events before it ends."""
_RESERVED_BYTES = 1000
"""Room that is left for the last event of a trace that is full."""
_MOST_HEADS = 10_000
"""Beginnings of events that are kept to be written again."""
_MOST_WAITING = 20_000
"""Events in memory at which the thread that adds one writes them itself."""


class TraceFile:
    """The trace of one rank. The loaders of a process that have the same path share it.

    Args:
        path: Where it is written; an older file is replaced.
        max_bytes: Size at which the trace ends.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._pid = os.getpid()
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._lock = threading.RLock()  # a signal handler may take a batch while this thread adds events
        self._write_lock = threading.Lock()
        self._waiting: list[TraceEvent] = []
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._processes: set[int] = set()
        self._lanes: dict[tuple[int, str, int], int] = {}
        self._heads: dict[tuple[int, str, str], str] = {}
        self._end = 0
        self._stopped = False
        self.num_loaders = 0
        """Loaders that write here."""
        started = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        labels = _metadata("process_labels", self._pid, 0, {"labels": f"energon_dali, started {started}"})
        self._append([labels], first=True)

    @property
    def usable(self) -> bool:
        """Whether this process writes it: a forked copy of the process does not."""
        return os.getpid() == self._pid

    def add(self, events: list[TraceEvent]) -> None:
        """Takes events; they are written within a second."""
        if self._stopped or not self.usable:
            return
        with self._lock:
            self._waiting += events
            full = len(self._waiting) >= _MOST_WAITING
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="energon-dali-trace", daemon=True)
                self._thread.start()
        if full:
            self.flush()
        elif not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        """Thread body: writes now and then, and ends when nothing happens."""
        while True:
            if not self._wake.wait(_IDLE_SECONDS):
                with self._lock:
                    if not self._waiting:
                        self._thread = None
                        return
            self._wake.clear()
            time.sleep(_WRITE_SECONDS)
            self.flush()

    def flush(self) -> None:
        """Writes what was added."""
        if not self.usable:
            return
        with self._write_lock:
            with self._lock:
                events, self._waiting = self._waiting, []
            if not events or self._stopped:
                return
            texts = [text for event in events for text in self._texts(event)]
            sizes = itertools.accumulate((len(text) + 2 for text in texts), initial=self._end + _RESERVED_BYTES)
            room = sum(1 for size in sizes if size <= self._max_bytes) - 1
            if room < len(texts):
                self._stopped = True
                full = events[-1]._replace(lane="trace", phase="i", name="the trace is full", arguments=None)
                texts = texts[: max(0, room)] + self._texts(full)
                _LOG.warning(
                    "The trace %s has reached trace_max_bytes=%d and ends here; training continues without it.",
                    self.path,
                    self._max_bytes,
                )
            self._append(texts)

    def _append(self, texts: list[str], *, first: bool = False) -> None:
        """Writes events over the end of the array, and the end again, in one call."""
        data = (b"[\n" if first else b",\n") + ",\n".join(texts).encode() + _END
        try:
            written = os.pwrite(self._descriptor, data, self._end)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes could be written")
            self._end += len(data) - len(_END)
        except OSError as error:
            self._stopped = True  # training is more important than its trace
            _LOG.warning(
                "The trace ends here, and training continues without it: could not write %s: %s",
                self.path,
                write_failure(error),
            )

    def _texts(self, event: TraceEvent) -> list[str]:
        """Returns an event as JSON, after the names of its process and lane if they are new."""
        texts = []
        process = event.process
        if process.pid not in self._processes:
            self._processes.add(process.pid)
            texts += [
                _metadata("process_name", process.pid, 0, {"name": process.name}),
                _metadata("process_sort_index", process.pid, 0, {"sort_index": process.sort_index}),
            ]
        key = (process.pid, event.lane, event.thread)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = len(self._lanes) + 1
            twins = sum(1 for pid, name, _ in self._lanes if (pid, name) == key[:2])
            name = event.lane if twins == 1 else f"{event.lane} (thread {twins})"
            texts.append(_metadata("thread_name", process.pid, lane, {"name": name}))
        head = self._heads.get((lane, event.name, event.phase))
        if head is None:
            values = {"name": event.name, "cat": event.lane, "ph": event.phase, "pid": process.pid, "tid": lane}
            if len(self._heads) >= _MOST_HEADS:  # part names can be of any number
                self._heads.clear()
            head = self._heads[lane, event.name, event.phase] = json.dumps(values)[:-1]
        text = f'{head}, "ts": {event.start_seconds * 1e6:.3f}'
        if event.phase == "X":
            text += f', "dur": {event.duration_seconds * 1e6:.3f}'
        elif event.phase == "i":
            text += ', "s": "t"'
        arguments = event.arguments
        if arguments is not None:
            if event.phase in "be":
                arguments = dict(arguments)
                text += f', "id": {json.dumps(arguments.pop("id"))}'
            text += f', "args": {json.dumps(arguments, default=str)}'
        texts.append(text + "}")
        return texts


def _metadata(name: str, pid: int, lane: int, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "ph": "M", "pid": pid, "tid": lane, "args": arguments})


class TracedClock(TrainerClock):
    """Measures how long the trainer waits, and notes each wait, and each step between two waits, in the trace.

    Args:
        metrics: Takes the events.
        lane: The lane that shows them.
    """

    def __init__(self, metrics: TracedMetrics, lane: str) -> None:
        super().__init__()
        self._metrics = metrics
        self._lane = lane
        self._last = threading.local()

    def start(self) -> float:
        now = super().start()
        ended: float | None = getattr(self._last, "ended", None)  # threads that share a loader have lanes of their own
        if ended is not None:
            self._metrics.note(self._lane, "X", "step", ended, now - ended)
        # A begin and an end instead of one span: the trace of a run that is killed during a wait shows that wait.
        self._metrics.note(self._lane, "B", "wait", now)
        return now

    def stop(self, started: float, occupancy: float | None = None) -> None:
        super().stop(started, occupancy)
        self._end({"batch": self._batches})
        if occupancy is not None:
            self._metrics.note("queue", "C", "queue", time.perf_counter(), arguments={"occupancy": occupancy})

    def stop_without_batch(self, started: float, reason: str) -> None:
        if started in self._waits:  # Ctrl-C may come after the batch has arrived
            super().stop_without_batch(started, reason)
            self._end({"no batch": reason})

    def _end(self, arguments: dict[str, Any]) -> None:
        self._last.ended = now = time.perf_counter()
        self._metrics.note(self._lane, "E", "wait", now, arguments=arguments)


_FILES: dict[str, TraceFile] = {}
"""The traces of this process by path."""


def open_metrics(config: WorkerConfig) -> tuple[Metrics, TrainerClock]:
    """Returns what counts and measures in the trainer's process; with a trace, if `trace_path` asks for one.

    Raises:
        ConfigError: The trace cannot be written.
    """
    if config.trace_path is None:
        return Metrics(), TrainerClock()
    path = os.path.abspath(os.fspath(config.trace_path).format(rank=config.rank, pid=os.getpid()))
    file = _FILES.get(path)
    if file is None or not file.usable:
        try:
            file = TraceFile(path, config.trace_max_bytes)
        except OSError as error:
            raise ConfigError(
                f"trace_path={config.trace_path!r} cannot be written: {error}. Give a path in a folder that "
                "this process may write to, or leave trace_path out."
            ) from error
        _FILES[path] = file
        atexit.register(file.flush)
    file.num_loaders += 1
    metrics = TracedMetrics(f"rank {config.rank}: trainer", 0, file.add)
    return metrics, TracedClock(metrics, "trainer" if file.num_loaders == 1 else f"trainer, loader {file.num_loaders}")


def end_trace(metrics: Metrics, diagnosed: Callable[[], Diagnosis]) -> None:
    """Notes in the trace of a loader, if there is one, what limited it, and writes what is still in memory.

    Args:
        metrics: Those of the loader.
        diagnosed: Returns what limited it.
    """
    if isinstance(metrics, TracedMetrics) and isinstance(owner := getattr(metrics.sink, "__self__", None), TraceFile):
        found = diagnosed()
        arguments = {"finding": found.finding, "remedy": found.remedy}
        metrics.note("advice", "i", f"limit: {found.cause}", time.perf_counter(), arguments=arguments)
        owner.flush()
