"""What elements of a stream will hold, as integers: known before a byte of them is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from energon_dali.errors import ConfigError
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import MicroBatch
from energon_dali.plan.plan import Rows

if TYPE_CHECKING:
    from energon_dali.datasets.row_sources import Source

MOST_PLANNED_SAMPLES = 10_000_000
"""Most samples that are planned at once: each takes 24 bytes."""


def too_many_samples() -> ConfigError:
    """Returns the error for elements that hold more samples than can be planned at once."""
    return ConfigError(
        f"The steps hold more than {MOST_PLANNED_SAMPLES:,} samples, which is the most that is planned at once. Plan "
        "fewer steps, fewer ranks, or smaller batches."
    )


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """The rows that consecutive elements of a stream hold: n rows in k elements."""

    sources: tuple[Source, ...]
    """What the rows name."""
    rows: Rows
    """The n rows."""
    starts: NDArray[np.int64]
    """int64[k + 1]: where the rows of each element start, and where those of the last one stop."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def of_rows(cls, sources: tuple[Source, ...], rows: Rows) -> Planned:
        """Returns the plan of elements that hold a row each."""
        return cls(sources, rows, np.arange(len(rows) + 1))

    def grouped(self, size: int, *, drop_last: bool) -> Planned:
        """Returns a plan in which `size` elements are one; the last one may have fewer.

        Args:
            size: At least 1.
            drop_last: Leave that one out.
        """
        starts = self.starts[::size]
        if len(self) % size:
            starts = starts if drop_last else np.append(starts, self.starts[-1])
        return Planned(self.sources, self.rows.take(slice(0, int(starts[-1]))), starts)


def joined(parts: Sequence[Planned]) -> Planned:
    """Returns plans as one, in order."""
    if len(parts) == 1:
        return parts[0]
    numbers: dict[Source, int] = {}
    rows = []
    starts, total = [np.zeros(1, np.int64)], 0
    for part in parts:
        own = np.array([numbers.setdefault(source, len(numbers)) for source in part.sources], np.int32)
        rows.append(replace(part.rows, sources=own[part.rows.sources]))
        starts.append(part.starts[1:] + total)
        total += len(part.rows)
    return Planned(tuple(numbers), Rows.joined(rows), np.concatenate(starts))


def planned_steps(
    batches: GlobalBatchPlan, sources: tuple[Source, ...], steps: range, ranks: Sequence[int]
) -> tuple[list[tuple[int, int, int, int]], dict[int, Planned]]:
    """Returns the micro-batches of steps of a job: ([(step, rank, rank, number in its plan)], the plan of each rank).

    Args:
        batches: The steps.
        sources: What their rows name.
        steps: Numbers of steps; those that are left out or do not exist are passed over.
        ranks: The ranks.

    Raises:
        ConfigError: They hold too many samples.
    """
    rows: list[tuple[int, int, int, int]] = []
    parts: dict[int, list[MicroBatch]] = {rank: [] for rank in ranks}
    size = 0
    for number in steps:
        step = batches.find_step(number)
        if step is None:
            continue
        size += step.size
        if size > MOST_PLANNED_SAMPLES:
            raise too_many_samples()
        for rank in ranks:
            for micro_batch in range(step.micro_batches):
                rows.append((number, rank, rank, len(parts[rank])))
                parts[rank].append(batches.micro_batch_of_step(step, rank, micro_batch))
    plans = {
        rank: Planned(
            sources,
            Rows.joined([part.rows for part in found]),
            np.cumsum([0, *(len(part.units) for part in found)]),
        )
        for rank, found in parts.items()
    }
    return sorted(rows), plans


def in_turn(
    streams: Sequence[int],
    counts: dict[int, int],
    ended: set[int],
    number: int,
    move: Callable[[int, int], int],
) -> int:
    """Moves streams by elements in the order in which a rank delivers them: by (count, number of the stream).

    Args:
        streams: The streams of the rank.
        counts: Elements that each stream has yielded; changed.
        ended: Streams whose epoch is over; changed.
        number: Elements to move by, over all streams.
        move: Moves (a stream, by a number of its elements), and returns by how many; fewer if its epoch ended.

    Returns:
        By how many elements the streams moved; fewer than `number` if all of them have ended.
    """

    def step(stream: int, wanted: int) -> int:
        moved = move(stream, wanted)
        counts[stream] += moved
        if moved < wanted:
            ended.add(stream)
        return moved

    left = number
    while left:
        running = [stream for stream in streams if stream not in ended]
        if not running:
            break
        behind = min(counts[stream] for stream in running)
        level = [stream for stream in running if counts[stream] == behind]
        # As long as no other stream is behind, whole rounds of these come first, whatever ends in between.
        ahead = min((counts[stream] for stream in running if counts[stream] > behind), default=None)
        rounds = left // len(level)
        if ahead is not None:
            rounds = min(rounds, ahead - behind)
        if rounds:
            left -= sum(step(stream, rounds) for stream in level)
        else:
            for stream in level[:left]:
                left -= step(stream, 1)
    return number - left
