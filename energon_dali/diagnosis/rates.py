"""How fast stages and whole loaders are, as they were measured, and the CPU time that they took.

CPU time is that of this process, its threads and its descendants, and of everything else on the machine, from /proc.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from energon_dali.diagnosis.settings import Setting


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


@dataclass(frozen=True, slots=True)
class StageRate:
    """How fast one stage works alone, in one process."""

    name: str
    """"reading", "decoding" or "hooks"."""
    samples: int
    """Samples that were measured."""
    seconds: float
    """Time that they took."""
    size_bytes: int = 0
    """Bytes that were read."""
    problem: str = ""
    """Why it could not be measured; "" if it was."""

    @property
    def samples_per_second(self) -> float:
        """Samples per second of one process; 0 if it was not measured."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_per_sample(self) -> float:
        """Seconds that a sample takes; 0 if it was not measured."""
        return self.seconds / self.samples if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class LoaderRate:
    """How fast the whole loader delivers in one setting, to a trainer that takes batches at once."""

    setting: Setting
    """What was measured."""
    samples: int
    """Samples that were delivered in the measured time."""
    seconds: float
    """The measured time, after the first batches."""
    first_batch_seconds: float
    """Time until the first batch, with the start of the processes."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    """Time at work per stage, summed over all processes, since the start."""
    cpu: CpuUse | None = None
    """CPU time of the measured time."""
    problem: str = ""
    """Why it could not be measured; "" if it was."""

    @property
    def samples_per_second(self) -> float:
        """Samples per second; 0 if it was not measured."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def other_cores(self) -> float:
        """How many cores other processes kept busy during the measurement, on average."""
        return self.cpu.other_seconds / self.seconds if self.cpu is not None and self.seconds > 0 else 0.0

    @property
    def idle_samples_per_second(self) -> float:
        """Samples per second that CPU time alone allows on a machine that does nothing else.

        The busiest thread and all cores together are the limits. Waits for storage are not counted.
        """
        if self.cpu is None or not self.samples or not self.cpu.own_seconds:
            return self.samples_per_second
        return self.samples / max(self.cpu.busiest_seconds, self.cpu.own_seconds / usable_cores())


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
