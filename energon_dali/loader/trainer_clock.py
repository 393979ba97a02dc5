"""Measures how long the trainer waits for batches."""

from __future__ import annotations

import time
from typing import Any


class TrainerClock:
    """Measures how long the trainer waits, in constant memory."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._batches = 0
        self._blocked = 0.0
        self._first: float | None = None
        self._fill_sum = 0.0
        self._fills = 0

    def start(self) -> float:
        """Returns the time at which the trainer asked for a batch."""
        now = time.perf_counter()
        if self._began is None:
            self._began = now
        return now

    def stop(self, started: float, occupancy: float | None) -> None:
        """Notes that the batch requested at `started` arrived, and how full the queue was then, 0 to 1."""
        waited = time.perf_counter() - started
        self._batches += 1
        if self._first is None:
            self._first = waited
        else:
            self._blocked += waited
        if occupancy is not None:
            self._fill_sum += occupancy
            self._fills += 1

    def stop_without_batch(self, started: float, reason: str) -> None:
        """Notes that the wait that began at `started` ended without a batch, and why."""

    def times(self) -> dict[str, Any]:
        """Returns the fields of LoaderStatistics that are measured here."""
        return {
            "batches": self._batches,
            "elapsed_seconds": 0.0 if self._began is None else time.perf_counter() - self._began,
            "blocked_seconds": self._blocked,
            "first_batch_seconds": self._first,
            "queue_occupancy": self._fill_sum / self._fills if self._fills else None,
        }
