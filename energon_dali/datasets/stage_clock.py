"""What the thread of a pipeline works on now, and how long each of its stages took.

At any time a thread is in one stage, so the times of its stages add up to the whole: what a stage takes does not count
for the one around it. Other threads read what it works on while that lasts. There is no lock, which would cost more
than the rest: a change between two stages is a few attributes without a call, and CPython changes threads at calls.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, NamedTuple

from energon_dali.samples.base import SourceInfo

_CPU_SECONDS = 0.0005
"""How often the processor time of the thread is read at most: reading it takes 0.3 us, more than many a hook."""
_MOST_TRIES = 20
_MOST_TEXT = 200

IDLE = ""
"""The stage of a thread that is not in the pipeline; its time is not counted."""


class StageClock:
    """Adds up how long one stage of a thread works, without the stages inside it.

    Args:
        work: That of the thread.
        name: Name of the stage.
    """

    __slots__ = ("_work", "cpu_seconds", "is_hook", "name", "seconds")

    def __init__(self, work: Work, name: str) -> None:
        self._work = work
        self.name = name
        self.is_hook = False
        """Whether it is a hook of the user's."""
        self.seconds = 0.0
        """Time in the stage until the thread left it last."""
        self.cpu_seconds = 0.0
        """How much of it the thread computed; a sample, as is seldom read."""

    def begin(self, subject: object = None) -> StageClock:
        """Enters the stage, and returns the one that was left for it, for `end`.

        Args:
            subject: What it works on: a sample, a list of samples, a text, or a method without arguments that returns
                the text.
        """
        work = self._work
        outer = work.clock
        now = work.now()
        outer.seconds += now - work.since
        work.since = now
        work.clock = self
        work.subject = subject
        if now >= work.cpu_due:
            work.read_cpu(outer, now)
        return outer

    def end(self, outer: StageClock) -> None:
        """Leaves the stage.

        Args:
            outer: What `begin` returned.
        """
        work = self._work
        now = work.now()
        self.seconds += now - work.since
        work.since = now
        work.clock = outer
        work.subject = None
        if now >= work.cpu_due:
            work.read_cpu(self, now)

    def count_since(self, began: float) -> None:
        """Counts the time until now for the stage: the thread was in none, and began it elsewhere, as processes do.

        Args:
            began: When, by the clock of the thread's work.
        """
        self.seconds += self._work.now() - began


class CurrentWork(NamedTuple):
    """What a thread works on."""

    stage: str
    """Name of its stage."""
    since: float
    """When it entered the stage, by `time.perf_counter`, which all processes of a machine share."""
    subject: str
    """The sample, or what else it works on; "" if it is not known."""


class Work:
    """The stages of one thread.

    Args:
        now: The clock.
        new_clock: Makes the clock of a stage.
    """

    __slots__ = (
        "_clocks",
        "_cpu",
        "_new_clock",
        "_thread",
        "_waited",
        "_waited_before",
        "_waited_in_others",
        "clock",
        "cpu_due",
        "idle",
        "now",
        "since",
        "subject",
    )

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        new_clock: Callable[[Work, str], StageClock] = StageClock,
    ) -> None:
        self.now = now
        self._new_clock = new_clock
        self._clocks: dict[str, StageClock] = {}
        self.idle = self.clock = StageClock(self, IDLE)
        """The stage that the thread is in; at first `idle`."""
        self.subject: object = None
        """What it works on there."""
        self.since = now()
        """When it entered the stage."""
        self.cpu_due = 0.0
        """When the processor time is to be read next."""
        self._cpu = 0.0
        self._thread = 0
        self._waited_before = 0.0
        """How long the thread had waited for a core before it began to run the pipeline."""
        self._waited = 0.0
        """How long it has waited since then, as was read last."""
        self._waited_in_others = 0.0
        """The same for threads that ran the pipeline before it."""

    def stage(self, name: str) -> StageClock:
        """Returns the clock of a stage."""
        clock = self._clocks.get(name)
        if clock is None:
            clock = self._clocks.setdefault(name, self._new_clock(self, name))
        return clock

    @property
    def hooks(self) -> list[str]:
        """Names of the stages that are hooks of the user's."""
        return [clock.name for clock in list(self._clocks.values()) if clock.is_hook]

    def read_cpu(self, clock: StageClock, now: float) -> None:
        """Counts the processor time since it was last read for the stage that is being left.

        Stages are charged as by a sampling profiler: short ones now and then, for those around them too.
        """
        thread = threading.get_native_id()
        cpu = time.thread_time()
        if thread == self._thread:
            clock.cpu_seconds += cpu - self._cpu
        else:
            self._waited_in_others += self._waited
            self._waited, self._waited_before = 0.0, _scheduled(thread)[1]
        self._thread, self._cpu, self.cpu_due = thread, cpu, now + _CPU_SECONDS

    def read(self) -> tuple[CurrentWork, dict[str, float], dict[str, float], float]:
        """Returns what the thread works on, and the times until now. May be called by any thread.

        Returns:
            (the current work, seconds by stage, processor seconds by stage, seconds for which the thread waited for a
            core).
        """
        for _ in range(_MOST_TRIES):
            since, clock, subject, now = self.since, self.clock, self.subject, self.now()
            clocks = list(self._clocks.values())
            seconds = {one.name: one.seconds for one in clocks}
            cpu_seconds = {one.name: one.cpu_seconds for one in clocks}
            cpu_read, thread = self._cpu, self._thread
            if self.since is since:  # else the thread went on meanwhile
                break
        computed, waited = _scheduled(thread)
        if clock.name != IDLE:
            passed = max(0.0, now - since)
            seconds[clock.name] = seconds.get(clock.name, 0.0) + passed
            running = min(passed, max(0.0, computed - cpu_read))
            cpu_seconds[clock.name] = cpu_seconds.get(clock.name, 0.0) + running
        if self._thread == thread and waited - self._waited_before > self._waited:  # 0 once it has ended
            self._waited = waited - self._waited_before
        waited = self._waited_in_others + self._waited
        return CurrentWork(clock.name, since, describe_subject(subject)), seconds, cpu_seconds, waited


def _scheduled(thread: int) -> tuple[float, float]:
    """Returns how long a thread of this process computed, and how long it waited for a core; 0 if that is unknown."""
    if thread:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{thread}/schedstat") as file:
            computed, waited = file.read().split()[:2]
            return int(computed) / 1e9, int(waited) / 1e9
    return 0.0, 0.0


def _key_of_files(names: Sequence[str]) -> str:
    """Returns what the names of a sample's parts have in common: 000123 of 000123.jpg and 000123.json."""
    key = "".join(names[:1])
    while key and len(names) > 1 and not all(name.startswith(f"{key}.") for name in names):
        key = key.rpartition(".")[0]
    return key


def describe_subject(subject: Any) -> str:
    """Returns what a stage works on as a text, such as "captions/000123"; "" if it is not known.

    Args:
        subject: See `StageClock.begin`. Another thread works on it.
    """
    from energon_dali.datasets.hooks import key_of, sources_of

    try:
        if subject is None or isinstance(subject, str):
            return (subject or "")[:_MOST_TEXT]
        if isinstance(subject, MethodType):
            return str(subject())[:_MOST_TEXT]
        if isinstance(subject, SourceInfo):
            key, sources = _key_of_files(subject.file_names), (subject,)
        else:
            key, sources = key_of(subject), sources_of(subject)
        folder = os.path.basename(str(sources[0].dataset_path).rstrip("/")) if sources else ""
        return "/".join(filter(None, (folder, key)))[:_MOST_TEXT]
    except Exception:  # of a user's class, or because the thread goes on meanwhile
        return ""
