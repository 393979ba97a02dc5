"""Failing storage for tests: a clock that does not wait, and preads that raise."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from energon_dali.shards.storage import retry, store


class FakeClock:
    """A clock whose pauses take no time."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.pauses: list[float] = []
        self._lock = threading.Lock()

    def now(self) -> float:
        with self._lock:
            self.time += 1e-6  # two looks are never at the same time
            return self.time

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        with self._lock:
            self.pauses.append(seconds)
            self.time += seconds
        return stop.is_set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(retry, "clock", fake)
    monkeypatch.setattr(store, "clock", fake)
    return fake


@contextmanager
def failing_preads(fails: Callable[[str, int], OSError | None]) -> Iterator[Counter[str]]:
    """Makes os.pread raise what `fails` returns for a path and a descriptor; yields how often each path was read."""
    real = os.pread
    calls: Counter[str] = Counter()

    def pread(fd: int, size: int, offset: int) -> bytes:
        path = os.readlink(f"/proc/self/fd/{fd}")
        calls[os.path.basename(path)] += 1
        error = fails(path, fd)
        if error is not None:
            raise error
        return real(fd, size, offset)

    os.pread = pread
    try:
        yield calls
    finally:
        os.pread = real
