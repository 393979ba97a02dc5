"""Slices: half-open ranges of samples inside shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_dali.errors import ConfigError
from energon_dali.plan.rng import Int64Array

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Slices:
    """A list of ranges of samples: samples first[i] ... last[i] - 1 of shard[i].

    Raises:
        ConfigError: The arrays differ in length, or a range is negative.
    """

    shard: Int32Array
    """int32[n]: number of the shard."""
    first: Int64Array
    """int64[n]: index of the first sample inside the shard."""
    last: Int64Array
    """int64[n]: index behind the last sample inside the shard."""

    def __post_init__(self) -> None:
        for name, dtype in (("shard", np.int32), ("first", np.int64), ("last", np.int64)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))
        if not (self.shard.ndim == 1 and self.shard.shape == self.first.shape == self.last.shape):
            raise ConfigError(
                f"Slices need three lists of one length, but {self.shard.shape = }, {self.first.shape = }, "
                f"{self.last.shape = }. Give one shard, first and last per slice."
            )
        if len(self.shard) and (self.shard.min() < 0 or self.first.min() < 0 or (self.last < self.first).any()):
            bad = int(np.argmax((self.shard < 0) | (self.first < 0) | (self.last < self.first)))
            raise ConfigError(
                f"Slice {bad} is [{self.first[bad]}, {self.last[bad]}) of shard {self.shard[bad]}, but a slice needs "
                "0 <= first <= last and shard >= 0. Check the ranges of the split."
            )

    @classmethod
    def whole_shards(cls, counts: Sequence[int] | Int64Array) -> Slices:
        """Returns one slice per shard that covers it.

        Args:
            counts: Number of samples in each shard.
        """
        last = np.asarray(counts, np.int64)
        return cls(np.arange(len(last), dtype=np.int32), np.zeros(len(last), np.int64), last)

    @classmethod
    def trusted(cls, shard: Int32Array, first: Int64Array, last: Int64Array) -> Slices:
        """Returns slices of arrays of the right types that come from checked ones; epochs of small datasets are short,
        and checking would be a third of what one costs.
        """
        slices = object.__new__(cls)
        for name, value in (("shard", shard), ("first", first), ("last", last)):
            object.__setattr__(slices, name, value)
        return slices

    @property
    def lengths(self) -> Int64Array:
        """int64[n]: number of samples in each slice."""
        return self.last - self.first

    @property
    def num_samples(self) -> int:
        """Number of samples in all slices together."""
        return int(self.lengths.sum())

    def take(self, places: Int64Array) -> Slices:
        """Returns the slices at the given places, in that order."""
        return Slices.trusted(self.shard[places], self.first[places], self.last[places])

    def __len__(self) -> int:
        return len(self.shard)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Slices):
            return NotImplemented
        return (
            np.array_equal(self.shard, other.shard)
            and np.array_equal(self.first, other.first)
            and np.array_equal(self.last, other.last)
        )

    def __hash__(self) -> int:
        return hash((self.shard.tobytes(), self.first.tobytes(), self.last.tobytes()))

    def __repr__(self) -> str:
        return f"Slices({len(self)} slices, {self.num_samples} samples)"


def cut_slices(base: Slices, max_samples_per_sequence: int | None) -> Slices:
    """Returns the ranges cut to about equal slices of at most 1.5 times the wanted length; empty ones are left out.

    A range of L samples that is longer than 1.5 times the maximum m becomes round(L / m) slices, whose lengths differ
    by one at most.

    Args:
        base: The ranges of the split.
        max_samples_per_sequence: The wanted length, at least 1; None keeps every range whole.

    Raises:
        ConfigError: The wanted length is less than 1.
    """
    if max_samples_per_sequence is not None and max_samples_per_sequence < 1:
        raise ConfigError(
            f"max_samples_per_sequence={max_samples_per_sequence} is no length: give a number of samples of at least "
            "1, or None to read each shard as a whole."
        )
    base = base.take(np.flatnonzero(base.lengths))
    if max_samples_per_sequence is None:
        return base
    limit = max_samples_per_sequence
    lengths = base.lengths
    counts = np.where(2 * lengths > 3 * limit, (2 * lengths + limit) // (2 * limit), 1)  # [n]
    owner = np.repeat(np.arange(len(base)), counts)  # [m]: the range that each slice is cut from
    ordinal = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)  # [m]: number inside that range
    length, count, origin = lengths[owner], counts[owner], base.first[owner]
    return Slices(base.shard[owner], origin + ordinal * length // count, origin + (ordinal + 1) * length // count)
