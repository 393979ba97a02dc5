"""What a plan is: a value that says which rows a stream reads, at any position."""

from __future__ import annotations

import html
import operator
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from energon_dali.plan.rng import Int64Array
from energon_dali.plan.slices import Int32Array

MOST_ROWS = 1 << 48
"""Positions in a stream are below this number."""
_MOST_EPOCH_BITS = 100
"""Beyond such epochs, a stream has no row: the rarest have one in num_streams / repetitions epochs."""
_KEPT = 256
"""Streams of one process of which what was computed last is kept."""
_MOST_SHOWN = 20_000
"""Characters of a plan that a notebook shows."""
_MOST_ROWS_OF_ALL = 1 << 62
"""All streams together have at most this many rows, so that 64 bits hold the numbers of rows and passes."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """n rows of a plan, in order. A row is one sample of one source, in one pass over its data."""

    sources: Int32Array
    """int32[n]: number of the source in the plan."""
    shards: Int32Array
    """int32[n]: number of the shard, as the source counts."""
    indices: Int64Array
    """int64[n]: index of the sample within the shard."""
    passes: Int64Array
    """int64[n]: number of the pass over the data. A sample that comes again is of another pass."""
    lanes: Int32Array
    """int32[n]: number of the interleave lane of the source; slices follow each other in a lane."""

    @classmethod
    def of_source(cls, shards: Int32Array, indices: Int64Array, passes: Int64Array, lanes: Int32Array) -> Rows:
        """Returns rows of the only source of a plan."""
        return cls(np.zeros(len(shards), np.int32), shards, indices, passes, lanes)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Returns rows one after the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            few, many = np.zeros(0, np.int32), np.zeros(0, np.int64)
            return cls(few, few, many, many, few)
        return cls(
            np.concatenate([part.sources for part in parts]),
            np.concatenate([part.shards for part in parts]),
            np.concatenate([part.indices for part in parts]),
            np.concatenate([part.passes for part in parts]),
            np.concatenate([part.lanes for part in parts]),
        )

    def take(self, order: Int64Array | slice) -> Rows:
        """Returns some of the rows, by their indices."""
        return Rows(self.sources[order], self.shards[order], self.indices[order], self.passes[order], self.lanes[order])

    def renumbered(self, first_source: int) -> Rows:
        """Returns the rows where the first source has another number, and those after it follow."""
        return Rows(self.sources + np.int32(first_source), self.shards, self.indices, self.passes, self.lanes)

    def as_tuples(self) -> list[tuple[int, int, int, int]]:
        """Returns (source, shard, index, pass) of each row."""
        columns = (self.sources, self.shards, self.indices, self.passes)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def __len__(self) -> int:
        return len(self.sources)


class RowSource(Protocol):
    """Says which rows a stream reads next: a plan, or what decides it while the job runs."""

    @property
    def num_streams(self) -> int:
        """Number of logical streams of the job."""

    @property
    def num_samples(self) -> int:
        """Number of samples of all sources."""

    @property
    def order_window(self) -> int:
        """Within how many of its rows the plan changes the order of its sources; 0 if it keeps that."""

    def rows(self, start: int, stop: int, stream: int) -> Rows:
        """Returns the rows at positions start ... stop - 1 of a stream."""


class Plan(ABC):
    """Which rows the streams of a job read, in order: a frozen value, computed before a byte is read.

    The rows of a stream have the positions 0, 1, 2, ..., without an end or divided into epochs. Plans are compared by
    value, can be pickled, and may be used by several threads.
    """

    num_streams: int
    """Number of logical streams of the job."""

    @property
    @abstractmethod
    def num_sources(self) -> int:
        """Number of the sources that rows name."""

    @property
    @abstractmethod
    def is_endless(self) -> bool:
        """Whether the rows of a stream never end. If not, they are divided into epochs."""

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Number of samples of all sources."""

    @abstractmethod
    def epoch_start(self, epoch: int, stream: int = 0) -> int:
        """Returns at which position an epoch of a stream starts; an endless plan has epoch 0 alone.

        Args:
            epoch: At least 0.
            stream: Number of the stream.
        """

    @abstractmethod
    def rows(self, start: int, stop: int, stream: int = 0) -> Rows:
        """Returns the rows at positions start ... stop - 1 of a stream.

        Args:
            start: First position, at least 0.
            stop: Position after the last, at most `MOST_ROWS`; less with more than 2 ** 14 streams.
            stream: Number of the stream, 0 <= stream < num_streams.

        Raises:
            IndexError: There are no such positions, or no such stream.
        """

    rates: tuple[int, int, int] = (1, 0, 1)
    """(whole passes over the samples per epoch, numerator and denominator of the part of a further pass)."""
    order_window: int = 0
    """Within how many of its rows the plan changes the order of its sources."""
    is_consecutive = True
    """Whether epochs are consecutive parts of the passes, so that positions are those of the passes."""

    @property
    def options(self) -> dict[str, Any]:
        """What the config of a dataset says of a mixture, beyond its members, as plain values."""
        return {}

    @abstractmethod
    def at_position(self, number: int) -> Plan:
        """Returns the plan of the same data at another position of a mixture, whose random draws differ."""

    def epoch_length(self, epoch: int, stream: int = 0) -> int:
        """Returns the number of rows of a stream in an epoch."""
        return self.epoch_start(epoch + 1, stream) - self.epoch_start(epoch, stream)

    def epoch_at(self, position: int, stream: int = 0) -> int:
        """Returns the epoch that holds a position of a stream: the last one that starts at it or before.

        Raises:
            IndexError: The stream has no rows, in any epoch.
        """
        if self.is_endless:
            return 0
        kept = self._kept("epoch_at")
        known = kept.get(stream)
        if known is not None:
            for epoch in (known, known + 1):  # what is asked for next is near
                if self.epoch_start(epoch, stream) <= position < self.epoch_start(epoch + 1, stream):
                    kept[stream] = epoch
                    return epoch  # type: ignore[no-any-return]
        return keep(kept, stream, self._search_epoch(position, stream), _KEPT)  # type: ignore[no-any-return]

    def _search_epoch(self, position: int, stream: int) -> int:
        # Streams take turns at the remainders, so one that has no rows in the first epochs may have some in much later
        # ones: a sample that is repeated 0.001 times comes once in a thousand epochs.
        high = 1
        while self.epoch_start(high, stream) <= position:
            if high.bit_length() > _MOST_EPOCH_BITS:
                raise IndexError(f"Stream {stream} has no rows: position {position} does not exist.")
            high *= 2
        low = high // 2
        while low + 1 < high:
            middle = (low + high) // 2
            if self.epoch_start(middle, stream) <= position:
                low = middle
            else:
                high = middle
        return low

    def check_range(self, start: int, stop: int, stream: int) -> tuple[int, int, int]:
        """Returns the arguments of `rows` as Python's integers, whose products do not overflow.

        Raises:
            IndexError: `rows` cannot return the range.
        """
        start, stop, stream = operator.index(start), operator.index(stop), operator.index(stream)
        if not 0 <= stream < self.num_streams:
            raise IndexError(
                f"Stream {stream} does not exist: with num_streams={self.num_streams} give 0 to {self.num_streams - 1}."
            )
        most = min(MOST_ROWS, _MOST_ROWS_OF_ALL // self.num_streams)
        if not 0 <= start <= stop <= most:
            raise IndexError(f"Rows {start} to {stop} do not exist: give 0 <= start <= stop <= {most}.")
        return start, stop, stream

    @cached_property
    def _of_thread(self) -> threading.local:
        """What this thread computed last."""
        return threading.local()

    def _kept(self, name: str) -> dict[Any, Any]:
        """Returns a dict of what this thread computed last under a name, which may be changed."""
        kept: dict[Any, Any] | None = getattr(self._of_thread, name, None)
        if kept is None:
            kept = {}
            setattr(self._of_thread, name, kept)
        return kept

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        text = str(self)
        cut = f"\n... ({len(text):,} characters)" if len(text) > _MOST_SHOWN else ""
        return f'<pre style="background:transparent;color:inherit">{html.escape(text[:_MOST_SHOWN])}{cut}</pre>'


def keep(kept: dict[Any, Any], key: Any, value: Any, most: int) -> Any:
    """Adds a value to a dict of those that were computed last, and drops the oldest ones; returns the value."""
    while len(kept) >= most:
        kept.pop(next(iter(kept)))
    kept[key] = value
    return value


def source_offsets(members: Sequence[Plan]) -> list[int]:
    """Returns the number of the first source of each plan, where sources are numbered one plan after the other."""
    offsets, total = [], 0
    for member in members:
        offsets.append(total)
        total += member.num_sources
    return offsets


def described(name: str, members: Sequence[Plan]) -> str:
    """Returns the lines that show a plan of several plans."""
    lines = [name]
    for member in members:
        lines += ["  " + line for line in str(member).splitlines()]
    return "\n".join(lines)
