"""What happens in one process, in constant memory: counters, seconds per stage, and the last failures."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from dataclasses import asdict, dataclass
from typing import Any

KEPT_FAILURES = 1000
"""How many failures are kept with their names; all are counted."""


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


class Recorder:
    """Counters of one process; safe to use from several threads. `drain` hands over what came since the last drain."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failures: deque[FailureRecord] = deque(maxlen=KEPT_FAILURES)

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter, such as "samples.skipped" or "route.dali-cpu"."""
        with self._lock:
            self._counts[name] += amount

    def spend(self, stage: str, seconds: float) -> None:
        """Adds to the time a stage was at work."""
        with self._lock:
            self._seconds[stage] += seconds

    def fail(self, failure: FailureRecord) -> None:
        """Counts a dropped sample and keeps its name."""
        with self._lock:
            self._counts["samples.failed"] += 1
            self._counts[f"failed.{failure.stage}"] += 1
            self._failures.append(failure)

    def drain(self) -> dict[str, Any] | None:
        """Returns what came since the last drain as plain values, and forgets it; None if nothing came."""
        with self._lock:
            if not (self._counts or self._seconds or self._failures):
                return None
            record = {
                "counts": dict(self._counts),
                "seconds": dict(self._seconds),
                "failures": [asdict(failure) for failure in self._failures],
            }
            self._counts.clear()
            self._seconds.clear()
            self._failures.clear()
            return record

    def merge(self, record: dict[str, Any] | None) -> None:
        """Adds what another process drained."""
        if record is None:
            return
        with self._lock:
            self._counts.update(record["counts"])
            for stage, seconds in record["seconds"].items():
                self._seconds[stage] += seconds
            self._failures.extend(FailureRecord(**failure) for failure in record["failures"])

    def snapshot(self) -> dict[str, Any]:
        """Returns everything so far as plain values, without forgetting it."""
        with self._lock:
            return {
                "counts": dict(self._counts),
                "seconds": dict(self._seconds),
                "failures": [asdict(failure) for failure in self._failures],
            }
