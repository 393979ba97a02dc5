"""CPU time of this process, its threads and its descendants, and of everything else on the machine, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU time that was used between two moments."""

    own_seconds: float
    """Of this process and its descendants, over all threads."""
    busiest_seconds: float
    """Of the thread among them that used most."""
    other_seconds: float
    """Of all other processes of the machine."""


@dataclass(slots=True)
class CpuMeter:
    """Measures CPU time from when it is made. It needs Linux; elsewhere it measures nothing."""

    _threads: dict[tuple[int, int], int] = field(default_factory=lambda: dict(_thread_times()))
    _machine: float = field(default_factory=lambda: _machine_seconds())

    def read(self) -> CpuUse:
        """Returns what was used since the meter was made; threads that have ended are left out."""
        used = [time - self._threads.get(thread, 0) for thread, time in _thread_times()]
        own = sum(used) / 1e9
        return CpuUse(own, max(used, default=0) / 1e9, max(0.0, _machine_seconds() - self._machine - own))


def _thread_times() -> Iterator[tuple[tuple[int, int], int]]:
    """Yields ((process, thread), CPU time in nanoseconds) of this process and its descendants."""
    waiting = [os.getpid()]
    while waiting:
        process = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{process}/task")
        except OSError:  # it has ended, or this is not Linux
            continue
        for thread in threads:
            try:
                with open(f"/proc/{process}/task/{thread}/schedstat", encoding="ascii") as file:
                    yield (process, int(thread)), int(file.read().split()[0])
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    waiting += map(int, file.read().split())
            except (OSError, ValueError, IndexError):
                continue


def _machine_seconds() -> float:
    """Returns the CPU time of all processes since the machine started; 0 if it is not known."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, soft_irq, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")
