"""`num_workers="auto"`: changes the number of workers while a run goes on, by how long its trainer waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.worker_border import find_worker_borders
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


class AutoWorkers:
    """Decides how many workers a rank has, among numbers that divide its streams.

    While the trainer waits for batches, the next larger number is tried, and kept if batches come faster. If the
    trainer never waits, the next smaller number is tried, and kept if it still does not wait. A step that did not help
    is taken back, and not tried again.

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
        self._clock = clock
        self._window: _Window | None = None
        self._before: tuple[int, _Window] | None = None
        """The number before a change that is being tried, and what happened with it."""
        self._refused: set[int] = set()

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

    def decide(self) -> int | None:
        """Returns the number of workers to go on with; None for no change."""
        window = self._window
        if window is None or window.seconds < WINDOW_SECONDS or window.batches < WINDOW_BATCHES:
            return None
        self._window = _Window(self._clock())
        undone = self._judge(window)
        if undone is not None:
            return self._change(*undone)
        if len(self.changes) >= MOST_CHANGES - 1:  # one is left to take the last step back
            return None
        index = self.counts.index(self.current)
        if window.waiting_share > _WAITS and index + 1 < len(self.counts):
            return self._try(
                self.counts[index + 1], window, f"the trainer waits {window.waiting_share:.0%} of the time"
            )
        if window.waiting_share < _NEVER_WAITS and index > 0:
            return self._try(self.counts[index - 1], window, "the trainer never waits")
        return None

    def _judge(self, window: _Window) -> tuple[int, str] | None:
        """Returns (the number to go back to, why) if the change before this window did not help."""
        if self._before is None:
            return None
        number, before = self._before
        self._before = None
        if number < self.current and window.waiting_share > _WAITS and window.rate < _GAIN * before.rate:
            return (
                number,
                f"{self.current} workers deliver no more: {window.rate:.1f} after {before.rate:.1f} batches/s",
            )
        if number > self.current and window.waiting_share > _WAITS:
            return number, f"with {self.current} workers the trainer waits {window.waiting_share:.0%} of the time"
        return None

    def _try(self, number: int, window: _Window, reason: str) -> int | None:
        if number in self._refused:
            return None
        self._before = (self.current, window)
        return self._change(number, reason)

    def _change(self, number: int, reason: str) -> int:
        self._refused.add(self.current)  # a number that was left is not tried again
        logger.info('num_workers="auto": %d workers in place of %d, because %s.', number, self.current, reason)
        self.changes.append((self.current, number, reason))
        self.current, self._window = number, None
        return number


def auto_workers(config: WorkerConfig) -> AutoWorkers | None:
    """Returns what changes the number of workers; None where the user gave a number."""
    if not config.is_auto:
        return None
    if config.num_streams is None:  # global batches
        return AutoWorkers(list(range(1, max(config.num_workers, cores_per_rank()) + 1)), config.num_workers)
    return AutoWorkers(worker_counts(config.layout.num_streams // config.world_size), config.num_workers)


def worker_counts(streams: int) -> list[int]:
    """Returns the numbers of workers to choose from, at least 1: divisors of a rank's streams, up to its cores.

    Args:
        streams: Streams of the rank.
    """
    return [count for count in divisors(streams) if count <= cores_per_rank()]


def with_workers(tree: SavableDataset[Any], config: WorkerConfig) -> None:
    """Lets the workers of a tree that `cut_tree` made be those of another configuration of the same streams.

    Args:
        tree: Changed, with its worker borders, which are copies of the loader's own.
        config: The configuration.
    """
    for part in (tree, *find_worker_borders(tree)):
        part.worker_config = config
