"""Slices: half-open ranges of samples within shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError
from energon_dali.plan.rng import Int64Array

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Slices:
    """A list of sample ranges: samples start[i] ... stop[i] - 1 of shard[i].

    Raises:
        ConfigError: The arrays differ in length, or a range is negative.
    """

    shard: Int32Array
    """int32[n]: number of the shard."""
    start: Int64Array
    """int64[n]: index of the first sample within the shard."""
    stop: Int64Array
    """int64[n]: index after the last sample within the shard."""

    def __post_init__(self) -> None:
        for name, dtype in (("shard", np.int32), ("start", np.int64), ("stop", np.int64)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))
        if not (self.shard.ndim == 1 and self.shard.shape == self.start.shape == self.stop.shape):
            raise ConfigError(
                f"Slices need three arrays of the same length, but {self.shard.shape = }, {self.start.shape = }, "
                f"{self.stop.shape = }. Give one shard, start and stop per slice."
            )
        if len(self.shard) and (self.shard.min() < 0 or self.start.min() < 0 or (self.stop < self.start).any()):
            bad = int(np.argmax((self.shard < 0) | (self.start < 0) | (self.stop < self.start)))
            raise ConfigError(
                f"Slice {bad} is [{self.start[bad]}, {self.stop[bad]}) of shard {self.shard[bad]}, but a slice needs "
                "0 <= start <= stop and shard >= 0. Check the ranges of the split."
            )

    @classmethod
    def whole_shards(cls, counts: Sequence[int] | Int64Array) -> Slices:
        """Returns one slice per shard, each of the whole shard.

        Args:
            counts: Number of samples in each shard.
        """
        stop = np.asarray(counts, np.int64)
        return cls(np.arange(len(stop), dtype=np.int32), np.zeros(len(stop), np.int64), stop)

    @classmethod
    def trusted(cls, shard: Int32Array, start: Int64Array, stop: Int64Array) -> Slices:
        """Returns slices without checking them, for arrays of the right types that were computed from checked slices.

        Epochs of small datasets are short, and checking would take a third of the time that an epoch costs.
        """
        slices = object.__new__(cls)
        for name, value in (("shard", shard), ("start", start), ("stop", stop)):
            object.__setattr__(slices, name, value)
        return slices

    @property
    def lengths(self) -> Int64Array:
        """int64[n]: number of samples in each slice."""
        return self.stop - self.start

    @property
    def num_samples(self) -> int:
        """Number of samples in all slices together."""
        return int(self.lengths.sum())

    def take(self, indices: Int64Array) -> Slices:
        """Returns the slices with the given indices, in that order."""
        return Slices.trusted(self.shard[indices], self.start[indices], self.stop[indices])

    def __len__(self) -> int:
        return len(self.shard)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Slices):
            return NotImplemented
        return (
            np.array_equal(self.shard, other.shard)
            and np.array_equal(self.start, other.start)
            and np.array_equal(self.stop, other.stop)
        )

    def __hash__(self) -> int:
        return hash((self.shard.tobytes(), self.start.tobytes(), self.stop.tobytes()))

    def __repr__(self) -> str:
        return f"Slices({len(self)} slices, {self.num_samples} samples)"


_FILTERED_TOGETHER = 1 << 20
"""Samples that are looked at together."""


def filter_slices(
    ranges: Slices, shard_starts: Int64Array, keeps: Callable[[Int64Array], npt.NDArray[np.bool_]]
) -> Slices:
    """Returns the samples of ranges that are kept, neighbours in one slice.

    Args:
        ranges: The ranges.
        shard_starts: int64[shards]: number in the dataset of the first sample of each shard.
        keeps: Takes the numbers in the dataset of some samples, and returns which of them are kept.
    """
    ends = np.cumsum(ranges.lengths)  # [n]
    shift = ranges.stop - ends  # [n]: index in the shard of a sample, less its position among all samples
    pieces: list[tuple[Int64Array, Int64Array, Int64Array]] = []  # (range, start, stop) each
    for first in range(0, int(ends[-1]) if len(ends) else 0, _FILTERED_TOGETHER):
        position = np.arange(first, min(first + _FILTERED_TOGETHER, int(ends[-1])))  # [m]
        owner = np.searchsorted(ends, position, side="right")  # [m]: its range
        index = position + shift[owner]  # [m]: within the shard
        kept = np.flatnonzero(keeps(shard_starts[ranges.shard[owner]] + index))  # [k]
        owner, index = owner[kept], index[kept]
        if len(kept):
            begins = np.concatenate([[0], 1 + np.flatnonzero(_breaks(owner, index, index + 1))])
            last = np.concatenate([begins[1:], [len(kept)]]) - 1
            pieces.append((owner[begins], index[begins], index[last] + 1))
    if not pieces:
        return ranges.take(np.zeros(0, np.int64))
    owner, start, stop = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    begins = np.concatenate([[0], 1 + np.flatnonzero(_breaks(owner, start, stop))])  # across pieces
    last = np.concatenate([begins[1:], [len(owner)]]) - 1
    return Slices.trusted(ranges.shard[owner[begins]], start[begins], stop[last])


def _breaks(owner: Int64Array, start: Int64Array, stop: Int64Array) -> npt.NDArray[np.bool_]:
    """Returns for each slice but the first whether it does not follow the one before in the same range."""
    found: npt.NDArray[np.bool_] = (owner[1:] != owner[:-1]) | (start[1:] != stop[:-1])
    return found


def cut_slices(base: Slices, max_samples_per_sequence: int | None) -> Slices:
    """Cuts ranges into slices of about equal length, at most 1.5 times the wanted one, and drops empty ranges.

    A range of L samples that is longer than 1.5 times the wanted length m becomes round(L / m) slices, whose lengths
    differ by one at most.

    Args:
        base: The ranges of the split.
        max_samples_per_sequence: The wanted length, at least 1; None keeps every range whole.

    Raises:
        ConfigError: The wanted length is less than 1.
    """
    if max_samples_per_sequence is not None and max_samples_per_sequence < 1:
        raise ConfigError(
            f"max_samples_per_sequence={max_samples_per_sequence} is not a length: give a number of samples of at "
            "least 1, or None to read each shard as a whole."
        )
    lengths = base.lengths
    longest, shortest = int(lengths.max(initial=0)), int(lengths.min(initial=1))
    if shortest < 1:
        base = base.take(np.flatnonzero(lengths))
        lengths = base.lengths
    if max_samples_per_sequence is None or 2 * longest <= 3 * max_samples_per_sequence:
        return base  # most small datasets
    limit = min(max_samples_per_sequence, longest)  # a longer one cuts nothing either
    counts = np.where(2 * lengths > 3 * limit, (2 * lengths + limit) // (2 * limit), 1)  # [n]
    owner = np.repeat(np.arange(len(base)), counts)  # [m]: the range of each slice
    ordinal = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)  # [m]: which slice of its range
    length, count, origin = lengths[owner], counts[owner], base.start[owner]
    start, stop = origin + ordinal * length // count, origin + (ordinal + 1) * length // count
    return Slices.trusted(base.shard[owner], start, stop)
