"""`num_workers="auto"`: changes the number of workers while a run goes on, by how long its trainer waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.worker_border import find_worker_borders
from energon_dali.loader.advice import Work, diagnose
from energon_dali.loader.host_memory import memory_left
from energon_dali.loader.statistics import LoaderStatistics
from energon_dali.plan.layout import divisors
from energon_dali.worker_config import WorkerConfig, cores_per_rank

logger = logging.getLogger("energon_dali.loader")

WINDOW_SECONDS = 10.0
"""How long the trainer is watched before each decision."""
WINDOW_BATCHES = 20
"""Fewest batches of a window."""
MOST_CHANGES = 8
"""Changes of one run: each restarts the processes, which drops what they have prefetched."""
_WAITS = 0.05
"""Share of the time that the trainer waits from which on more workers are tried."""
_NEVER_WAITS = 0.005
"""Share of the time below which fewer workers are tried."""
_GAIN = 1.03
"""Ratio of batches per second from which on more workers are kept."""


_CORES = 1.1
"""How many of its cores a rank may use by the prediction for more workers, as a ratio."""
_MOST_PER_CORE = 16
"""Most workers for each core, however little they compute: each takes memory and time to start."""


@dataclass(slots=True)
class _Window:
    """What happened since a decision."""

    started: float
    batches: int = 0
    waited_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def waiting_share(self) -> float:
        return self.waited_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def rate(self) -> float:
        return self.batches / self.seconds if self.seconds > 0 else 0.0


class _Step(NamedTuple):
    """What is to be done: the next number of workers, or None to stay; and why."""

    number: int | None
    reason: str
    kind: str = ""
    """Of a reason to stay: it is logged once."""


class AutoWorkers:
    """Decides how many workers a rank has, among numbers that divide its streams.

    While the trainer waits for batches, the next larger number is tried, and kept if batches come faster. There may be
    more workers than cores: as long as they sleep or wait for storage, they need none. If the trainer never waits, the
    next smaller number is tried, and kept if it still does not wait. A step that did not help is undone, and not
    tried again. If nothing is changed, `reason` says why.

    Args:
        counts: The numbers of workers to choose from, ascending.
        current: The number at the start, one of them.
        clock: Returns the time in seconds.
    """

    def __init__(self, counts: Sequence[int], current: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.counts = list(counts)
        self.current = current
        self.changes: list[tuple[int, int, str]] = []
        """(number before, number after, reason) of each change."""
        self.reason = "the trainer has not been watched for long enough"
        """Why the number is what it is."""
        self._clock = clock
        self._window: _Window | None = None
        self._earlier: LoaderStatistics | None = None
        """At the start of the window."""
        self._before: tuple[int, _Window] | None = None
        """The number before a change that is being tried, and what happened with it."""
        self._refused: dict[int, str] = {}
        """Numbers that are not tried again, and why."""
        self._logged = ""
        """The kind of the reason that was logged last."""

    def note(self, waited_seconds: float) -> None:
        """Notes that the trainer has waited for a batch, which it has now."""
        now = self._clock()
        window = self._window
        if window is None:  # the first batch after a change waits for processes to start
            self._window = _Window(now)
            return
        window.batches += 1
        window.waited_seconds += waited_seconds
        window.seconds = now - window.started

    def decide(self, statistics: Callable[[], LoaderStatistics]) -> int | None:
        """Returns the number of workers to go on with; None for no change.

        Args:
            statistics: Returns those of the loader, since the start; called once per window.
        """
        window = self._window
        if window is None:
            return None
        if self._earlier is None:
            self._earlier = statistics()
        if window.seconds < WINDOW_SECONDS or window.batches < WINDOW_BATCHES:
            return None
        now, earlier = statistics(), self._earlier
        self._window, self._earlier = _Window(self._clock()), now
        step = self._judge(window) or self._next(window, now.since(earlier))
        if step.number is None:
            self._stay(step)
            return None
        return self._change(step.number, step.reason)

    def _judge(self, window: _Window) -> _Step | None:
        """Returns the step back if the change before this window did not help; None if it did, or there was none."""
        if self._before is None:
            return None
        number, before = self._before
        self._before = None
        if number < self.current and window.waiting_share > _WAITS and window.rate < _GAIN * before.rate:
            return _Step(
                number,
                f"{self.current} workers deliver no more: {window.rate:.1f} after {before.rate:.1f} batches/s",
            )
        if number > self.current and window.waiting_share > _WAITS:
            waits = f"with {self.current} workers the trainer waits {window.waiting_share:.0%} of the time"
            return _Step(number, waits)
        return None

    def _next(self, window: _Window, statistics: LoaderStatistics) -> _Step:
        """Returns the next step.

        Args:
            window: How long the trainer waited.
            statistics: Those of the same time.
        """
        index = self.counts.index(self.current)
        waits = f"the trainer waits {window.waiting_share:.0%} of the time"
        if _NEVER_WAITS <= window.waiting_share <= _WAITS:
            return _Step(None, f"{waits}.", "enough")
        if len(self.changes) >= MOST_CHANGES - 1:  # one is left to take the last step back
            return _Step(None, f"{waits}, and {MOST_CHANGES} changes are the most of a run.", "changes")
        if window.waiting_share < _NEVER_WAITS:
            smaller = self.counts[index - 1] if index > 0 else None
            if smaller is None or smaller in self._refused:
                return _Step(None, f"the trainer never waits{self._why_not(smaller)}.", "never waits")
            return self._try(smaller, window, "the trainer never waits")
        larger = self.counts[index + 1] if index + 1 < len(self.counts) else None
        if larger is None:
            limit, kind = f"{self.current} is the most that there is: give more num_streams", "streams"
        elif larger in self._refused:
            limit, kind = self._refused[larger], "tried"
        else:
            limit, kind = self._obstacle(larger, statistics)
            if not kind:
                return self._try(larger, window, waits)
        finding = diagnose(statistics, num_workers=self.current, memory=memory_left()).finding
        return _Step(None, f"{waits}, and {limit}. {finding}", kind)

    def _why_not(self, number: int | None) -> str:
        return f", and {self._refused[number]}" if number in self._refused else ""

    def _obstacle(self, number: int, statistics: LoaderStatistics) -> tuple[str, str]:
        """Returns (why a larger number cannot help, the kind of reason); two empty strings if it may."""
        memory = memory_left()
        if memory is not None and memory.is_short:
            return f"only {memory.available_bytes / 2**30:.1f} GiB of memory are left for more workers", "memory"
        cores = cores_per_rank()
        # More workers want more cores in proportion to those that the present ones keep busy.
        wanted = Work.of(statistics, self.current).wanted_cores
        if number > cores and wanted * number / self.current > _CORES * cores:
            return f"{number} workers would need more than {cores} cores: {self.current} want {wanted:.1f}", "cores"
        return "", ""

    def _try(self, number: int, window: _Window, reason: str) -> _Step:
        self._before = (self.current, window)
        return _Step(number, reason)

    def _stay(self, step: _Step) -> None:
        self.reason = step.reason
        if step.kind != self._logged:
            self._logged = step.kind
            logger.info('num_workers="auto": it stays at %d, because %s', self.current, step.reason)

    def _change(self, number: int, reason: str) -> int:
        self._refused[self.current] = (
            f"{self.current} were tried: {reason}"  # a number that was left is not tried again
        )
        logger.info('num_workers="auto": %d workers in place of %d, because %s.', number, self.current, reason)
        self.changes.append((self.current, number, reason))
        self.reason, self._logged = reason, ""
        self.current, self._window, self._earlier = number, None, None
        return number


def auto_workers(config: WorkerConfig) -> AutoWorkers | None:
    """Returns what changes the number of workers; None where the user gave a number."""
    if not config.is_auto:
        return None
    if config.num_streams is None:  # global batches
        cores = cores_per_rank()
        every = {*range(1, cores + 1), *(cores * factor for factor in (2, 4, 8, _MOST_PER_CORE)), config.num_workers}
        return AutoWorkers(sorted(every), config.num_workers)
    return AutoWorkers(worker_counts(config.layout.num_streams // config.world_size), config.num_workers)


def worker_counts(streams: int) -> list[int]:
    """Returns the numbers of workers to choose from, at least 1: divisors of a rank's streams.

    Args:
        streams: Streams of the rank.
    """
    return [count for count in divisors(streams) if count <= _MOST_PER_CORE * cores_per_rank()]


def with_workers(tree: SavableDataset[Any], config: WorkerConfig) -> None:
    """Lets the workers of a tree that `cut_tree` made be those of another configuration of the same streams.

    Args:
        tree: Changed, with its worker borders, which are copies of the loader's own.
        config: The configuration.
    """
    for part in (tree, *find_worker_borders(tree)):
        part.worker_config = config
