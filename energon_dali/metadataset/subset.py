"""Subsets of a dataset: a range of its samples, as numbers or as shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.slices import Slices

_FORM = 'Write two percentages, such as ["0%", "25%"], or two sample numbers, such as [100, 200] or [100, end].'


@dataclass(frozen=True, slots=True)
class Subset:
    """A range of the samples of a split part, in file order. The shares are taken of the range that the numbers leave.

    Raises:
        ConfigError: A range ends before it starts, or is outside the whole.
    """

    share: tuple[float, float] = (0.0, 1.0)
    """(start, stop) as shares of the whole, 0 to 1."""
    numbers: tuple[int, int | None] | None = None
    """(start, stop) as sample numbers, stop exclusive; a stop of None is the end. Only for a single dataset."""

    def __post_init__(self) -> None:
        begin, end = self.share
        if not 0 <= begin <= end <= 1:
            raise ConfigError(f"A subset from {begin:.4%} to {end:.4%} is invalid. {_FORM}")
        if self.numbers is not None:
            first, last = self.numbers
            if first < 0 or (last is not None and last < first):
                raise ConfigError(f"A subset from sample {first} to {last} is invalid. {_FORM}")

    @classmethod
    def of(cls, value: Any) -> Subset:
        """Returns the subset that a user wrote.

        Args:
            value: A Subset, `{"range": [begin, end]}`, or [begin, end].

        Raises:
            ConfigError: It has another form, or is invalid.
        """
        if isinstance(value, Subset):
            return value
        if isinstance(value, Mapping):
            if set(value) != {"range"}:
                raise ConfigError(f"subset has the keys {sorted(map(str, value))}, and needs `range` alone. {_FORM}")
            value = value["range"]
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            raise ConfigError(f"subset has the range {value!r}. {_FORM}")
        begin, end = (_bound(bound) for bound in value)
        if isinstance(begin, int) and (isinstance(end, int) or end is None):
            return cls(numbers=(begin, end))
        if isinstance(begin, float) and not isinstance(end, int):
            return cls(share=(begin, 1.0 if end is None else end))
        raise ConfigError(f"subset has the range {list(value)!r}, which mixes shares and numbers. {_FORM}")

    def within(self, outer: Subset | None) -> Subset:
        """Returns the part of this subset that an outer level takes.

        Args:
            outer: Share that the outer level takes; None takes all.

        Raises:
            ConfigError: The outer one counts samples, which only the innermost one can.
        """
        if outer is None:
            return self
        if outer.numbers is not None:
            raise ConfigError(
                f"subset {list(outer.numbers)} counts samples, and is given for a blend or a metadataset. Sample "
                "numbers are allowed at a single dataset; for several datasets write percentages."
            )
        begin, end = self.share
        length = end - begin
        return Subset((begin + outer.share[0] * length, begin + outer.share[1] * length), self.numbers)

    def bounds(self, total: int) -> tuple[int, int]:
        """Returns (start, stop) for a dataset of `total` samples, stop exclusive.

        Raises:
            ConfigError: The numbers reach beyond the samples.
        """
        first, last = 0, total
        if self.numbers is not None:
            first, last = self.numbers[0], total if self.numbers[1] is None else self.numbers[1]
            if not first <= last <= total:
                raise ConfigError(
                    f"subset {[first, last]} reaches beyond the {total} samples of the split. Give a range inside 0 to "
                    f"{total}, or percentages."
                )
        length = last - first
        return first + int(length * self.share[0]), first + int(length * self.share[1])


def _bound(value: Any) -> int | float | None:
    """Returns a sample number, a share, or None for the end."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if text == "end":
        return None
    if text.endswith("%"):
        try:
            return float(text[:-1]) / 100.0
        except ValueError:
            pass
    raise ConfigError(f"subset has the bound {value!r}. {_FORM}")


def take_subset(ranges: Slices, shard_counts: Sequence[int], subset: Subset | None) -> Slices:
    """Returns the ranges of a split, cut to a subset.

    Samples are counted over whole shards, including samples that the split excludes, as Energon does.

    Args:
        ranges: Of the split, in file order; ranges of one shard follow each other.
        shard_counts: Number of samples in each shard.
        subset: None takes all.

    Raises:
        ConfigError: The subset reaches beyond the samples.
    """
    if subset is None or not len(ranges):
        if subset is not None:
            subset.bounds(0)
        return ranges
    counts = np.asarray(shard_counts, np.int64)
    follows = (ranges.shard[1:] == ranges.shard[:-1]) & (ranges.start[1:] >= ranges.stop[:-1])
    begins_shard = np.concatenate([[True], ~follows])  # [n]; a split may name a shard twice
    lengths = np.where(begins_shard, counts[ranges.shard], 0)
    origin = (np.cumsum(lengths) - counts[ranges.shard]).astype(np.int64)  # [n]: first sample of the shard
    first, last = subset.bounds(int(lengths.sum()))
    cut_first = np.clip(first - origin, ranges.start, ranges.stop)
    cut_last = np.clip(last - origin, ranges.start, ranges.stop)
    kept = np.flatnonzero(cut_last > cut_first)
    return Slices(ranges.shard[kept], cut_first[kept], cut_last[kept])
