"""How fast stages and whole loaders are, as they were measured."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from energon_dali.diagnosis.cpu_time import CpuUse
from energon_dali.diagnosis.settings import Setting


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
