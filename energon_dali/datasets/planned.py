"""What elements of a stream will hold, as integers: known before a byte of them is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.source import SourceDataset
    from energon_dali.datasets.stream import StreamIterator

PLANNED_AT_ONCE = 1 << 20
"""Samples whose draws are computed together when a stream skips."""

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
    """The samples that consecutive elements of a stream hold: n samples in k elements."""

    sources: tuple[SourceDataset, ...]
    """Where samples come from."""
    source: NDArray[np.int32]
    """int32[n]: index in `sources`."""
    shard: NDArray[np.int32]
    """int32[n]: index of the shard, as the reader of the source counts."""
    sample: NDArray[np.int64]
    """int64[n]: index of the sample within the shard."""
    epoch: NDArray[np.int64]
    """int64[n]: number of the pass over the data."""
    starts: NDArray[np.int64]
    """int64[k + 1]: where the samples of each element start, and where those of the last one stop."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def none(cls) -> Planned:
        """Returns the plan of no element."""
        many, few = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return cls((), few, few, many, many, np.zeros(1, np.int64))

    @classmethod
    def of_source(
        cls,
        source: SourceDataset,
        pieces: Sequence[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]],
    ) -> Planned:
        """Returns the plan of a source, each sample an element.

        Args:
            source: The source.
            pieces: Tuples (shards, samples, epochs) of arrays, in order.
        """
        if not pieces:
            return cls.none()
        shard, sample, epoch = (np.concatenate(column) for column in zip(*pieces, strict=True))
        return cls((source,), np.zeros(len(shard), np.int32), shard, sample, epoch, np.arange(len(shard) + 1))

    def grouped(self, size: int, *, drop_last: bool) -> Planned:
        """Returns a plan in which `size` elements are one; the last one may have fewer.

        Args:
            size: At least 1.
            drop_last: Leave that one out.
        """
        starts = self.starts[::size]
        if len(self) % size:
            starts = starts if drop_last else np.append(starts, self.starts[-1])
        return Planned(self.sources, self.source, self.shard, self.sample, self.epoch, starts)


def joined(parts: Sequence[Planned]) -> Planned:
    """Returns plans as one, in order."""
    if not parts:
        return Planned.none()
    if len(parts) == 1:
        return parts[0]
    numbers: dict[SourceDataset, int] = {}
    columns = []
    for part in parts:
        own = np.array([numbers.setdefault(source, len(numbers)) for source in part.sources], np.int32)
        columns.append(own[part.source])
    offsets = np.cumsum([0, *(int(part.starts[-1]) for part in parts)])
    return Planned(
        tuple(numbers),
        np.concatenate(columns),
        np.concatenate([part.shard for part in parts]),
        np.concatenate([part.sample for part in parts]),
        np.concatenate([part.epoch for part in parts]),
        np.concatenate(
            [np.zeros(1, np.int64), *(part.starts[1:] + offset for part, offset in zip(parts, offsets, strict=False))]
        ),
    )


def interleaved(draws: NDArray[np.int64], parts: dict[int, Planned]) -> Planned:
    """Returns plans merged in the order of draws.

    Args:
        draws: int64[k]: for each element, the number of the plan whose next element it is.
        parts: Plans by number; each has as many elements as it has draws.
    """
    numbers = sorted(parts)
    whole = joined([parts[number] for number in numbers])
    first, order = 0, np.empty(len(draws), np.int64)  # for each element, its number in `whole`
    for number in numbers:
        mine = np.flatnonzero(draws == number)
        order[mine] = first + np.arange(len(mine))
        first += len(mine)
    lengths = np.diff(whole.starts)[order]
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    rows = np.repeat(whole.starts[:-1][order] - starts[:-1], lengths) + np.arange(int(starts[-1]))
    return Planned(whole.sources, whole.source[rows], whole.shard[rows], whole.sample[rows], whole.epoch[rows], starts)


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


def unknown_to_plan(dataset: SavableDataset[Any]) -> list[str]:
    """Returns what a plan cannot know about the elements of a tree, a sentence for each dataset; [] for nothing."""
    own = dataset.unknown_to_plan()
    below = [text for child in dataset.children for text in unknown_to_plan(child)]
    return list(dict.fromkeys([*([] if own is None else [own]), *below]))


def skip_by_taking(iterator: StreamIterator[Any], count: int) -> int:
    """Skips elements of a stream by making them; returns how many, fewer if the epoch ends."""
    for number in range(count):
        try:
            next(iterator)
        except StopIteration:
            return number
    return count
