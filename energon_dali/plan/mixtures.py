"""Plans over several plans: one after the other, drawn by weight, or mixed in epochs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import sub
from typing import Any

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.draws import Draws
from energon_dali.plan.epoch_starts import EpochStarts, dealt_source
from energon_dali.plan.plan import Plan, Rows, described, keep, source_offsets
from energon_dali.plan.repeated import RepeatedPlan
from energon_dali.plan.rng import BLEND, INTERLEAVE, Int64Array, mix, stable_order
from energon_dali.plan.source import DealtSources

GROUP_DRAWS = 1024
"""Draws of a blend that hold the weights exactly, together."""
MODULUS = 1 << 40
"""Parts of a draw in which shares are counted."""
_EPOCH_GROUP = 512
"""About this many rows of an epoch hold the lengths of the sources exactly, together."""
_KEPT = 256
"""Streams of one process of which what was computed last is kept."""


class Members:
    """The plans of a mixture, whose rows are taken in the order in which the plans are drawn.

    Args:
        plans: The plans. Their sources are numbered one plan after the other.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans
        self._offsets = np.array(source_offsets(plans), np.int32)
        # Small sources of a large job are computed together: each has few of the rows.
        sources = [(number, dealt_source(plan)) for number, plan in enumerate(plans) if plan.num_samples]
        together = [(number, source) for number, source in sources if source is not None]
        dealt = [number for number, _ in together]
        self._dealt = DealtSources([source for _, source in together]) if together else None
        self._place = np.full(len(plans), -1, np.int64)
        """By plan, its number among those that are computed together; -1 if it is not."""
        self._place[dealt] = np.arange(len(dealt))
        self._is_moved = np.array([not plan.is_consecutive for plan in plans])
        """By plan, whether its positions are not those of its source."""

    def rows(self, numbers: Int64Array, starts: Sequence[int] | Int64Array, stream: int) -> Rows:
        """Returns the next rows of the plans.

        Args:
            numbers: int64[n]: for each row, the number of its plan.
            starts: Position in each plan of the first row that it gives.
            stream: Number of the stream.
        """
        if not len(numbers):
            return Rows.joined([])
        order = stable_order(numbers)
        drawn, firsts = np.unique(numbers[order], return_index=True)
        counts = np.diff(firsts, append=len(numbers))
        begins = np.asarray(starts, np.int64)[drawn]
        together = self._place[drawn] >= 0
        parts = []
        places = []
        if self._dealt is not None and together.any():
            chosen = np.repeat(together, counts)
            ranks = np.arange(len(numbers)) - np.repeat(firsts, counts)
            positions = np.repeat(begins, counts) + ranks
            for index in np.flatnonzero(together & self._is_moved[drawn]).tolist():
                begin, first, last = int(begins[index]), int(firsts[index]), int(firsts[index] + counts[index])
                plan = self._plans[int(drawn[index])]
                assert isinstance(plan, RepeatedPlan)
                ranges = plan.pass_ranges(begin, begin + last - first, stream)
                positions[first:last] = np.concatenate([np.arange(start, stop) for start, stop in ranges])
            plans = numbers[order[chosen]]
            rows = self._dealt.rows(self._place[plans], positions[chosen], stream)
            parts.append(replace(rows, sources=self._offsets[plans]))
            places.append(order[chosen])
        for index in np.flatnonzero(~together).tolist():
            number, begin, first = int(drawn[index]), int(begins[index]), int(firsts[index])
            count = int(counts[index])
            rows = self._plans[number].rows(begin, begin + count, stream)
            parts.append(rows.renumbered(int(self._offsets[number])))
            places.append(order[first : first + count])
        back = np.empty(len(order), np.int64)
        back[np.concatenate(places)] = np.arange(len(order))
        return Rows.joined(parts).take(back)


@dataclass(frozen=True)
class Mixture(Plan):
    """What the plans of several plans have in common."""

    members: tuple[Plan, ...]
    """The plans, at least one, all for the same number of streams."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not self.members:
            raise ConfigError(f"{name} was given no plan: give at least one.")
        if len({member.num_streams for member in self.members}) > 1:
            raise ConfigError(f"{name} was given plans for different numbers of streams. Make all of them for one job.")

    @property
    def num_streams(self) -> int:  # type: ignore[override]
        """Number of logical streams of the job."""
        return self.members[0].num_streams

    @cached_property
    def num_sources(self) -> int:
        """Number of the sources of all members."""
        return sum(member.num_sources for member in self.members)

    @cached_property
    def num_samples(self) -> int:
        """Number of samples of all sources."""
        return sum(member.num_samples for member in self.members)

    @cached_property
    def gather(self) -> Members:
        """The members, for drawing their rows."""
        return Members(self.members)

    @cached_property
    def starts(self) -> EpochStarts:
        """Where the epochs of the members start; the members end."""
        return EpochStarts(self.members)

    def at_position(self, number: int) -> Plan:
        members = tuple(member.at_position(number) for member in self.members)
        own: dict[str, int] = {"seed": mix(self.seed, number)} if hasattr(self, "seed") else {}
        return replace(self, members=members, **own)

    def _check_no_end(self, start: int, stop: int) -> None:
        if not self.num_samples and start < stop:
            raise IndexError(f"Rows {start} to {stop} do not exist: no source has a sample.")


@dataclass(frozen=True)
class ConcatPlan(Mixture):
    """In each epoch, a stream's rows of the first plan, then those of the second, and so on.

    Raises:
        ConfigError: There is no plan, one never ends, or their numbers of streams differ.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(member.is_endless for member in self.members):
            raise ConfigError("ConcatPlan was given a plan that never ends, so nothing can follow it.")

    @property
    def is_endless(self) -> bool:
        return False

    def epoch_start(self, epoch: int, stream: int = 0) -> int:
        return sum(self.starts.at(epoch, stream))

    def rows(self, start: int, stop: int, stream: int = 0) -> Rows:
        start, stop, stream = self.check_range(start, stop, stream)
        self._check_no_end(start, stop)
        parts = []
        offsets = source_offsets(self.members)
        epoch = self.epoch_at(start, stream) if start < stop else 0
        while start < stop:
            begin, ends, firsts = self._epoch(epoch, stream)
            while start < min(stop, begin + ends[-1]):
                number = bisect_right(ends, start - begin)
                member, before = self.members[number], ends[number - 1] if number else 0
                taken = min(stop, begin + ends[number]) - start
                first = firsts[number] + start - begin - before
                parts.append(member.rows(first, first + taken, stream).renumbered(offsets[number]))
                start += taken
            # Epochs without rows of this stream are passed over: few samples of many streams have many of them.
            epoch = epoch + 1 if ends[-1] or start == stop else self.epoch_at(start, stream)
        return Rows.joined(parts)

    def _epoch(self, epoch: int, stream: int) -> tuple[int, list[int], list[int]]:
        """Returns (where an epoch starts, where each member's part of it ends, each member's first position in it)."""
        kept = self._kept("epochs")
        last = kept.get(stream)
        if last is None or last[0] != epoch:
            firsts = self.starts.at(epoch, stream)
            ends = list(accumulate(map(sub, self.starts.at(epoch + 1, stream), firsts)))
            kept.pop(stream, None)
            last = keep(kept, stream, (epoch, sum(firsts), ends, firsts), _KEPT)
        return last[1:]  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return described(f"ConcatPlan({len(self.members)} plans)", self.members)


@dataclass(frozen=True)
class BlendPlan(Mixture):
    """Rows of endless plans, drawn in proportion to their weights.

    The draws of a stream come in groups of 1,024. A plan of proportion p has 1,024 p rows of each group, rounded down
    or up so that sums over many groups are exact, and the rows of a group are shuffled. Which row of which plan has a
    position depends only on (weights, seed, stream, position).

    Raises:
        ConfigError: There is no plan, one ends, their numbers of streams differ, or the weights cannot work.
    """

    weights: tuple[float, ...]
    """One per plan, finite and at least 0. They need not sum to 1. A plan of weight 0 is never drawn."""
    seed: int
    """Seed of the draws."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.weights) != len(self.members):
            raise ConfigError(f"{len(self.weights)} weights were given for {len(self.members)} plans: give one each.")
        if any(weight and not member.is_endless for member, weight in zip(self.members, self.weights, strict=True)):
            raise ConfigError("BlendPlan was given a plan that ends. Blend plans that repeat.")
        _ = self._cumulated

    @property
    def is_endless(self) -> bool:
        return True

    @property
    def options(self) -> dict[str, Any]:
        return {"weights": list(self.weights), "seed": self.seed}

    def epoch_start(self, epoch: int, stream: int = 0) -> int:
        return 0

    @cached_property
    def _cumulated(self) -> list[int]:
        return cumulated_shares(self.weights)

    def draws(self, start: int, stop: int, stream: int = 0) -> tuple[Int64Array, Int64Array]:
        """Returns which members the rows start ... stop - 1 are of, and the rows of each member before the first.

        Returns:
            (int64[stop - start] numbers of members, int64[members] counts).
        """
        start, stop, stream = self.check_range(start, stop, stream)
        kept = self._kept("draws")
        known = kept.get(stream)
        if known is None:
            known = keep(kept, stream, Draws(self._cumulated, MODULUS, (BLEND, self.seed, stream)), _KEPT)
        return known.take(start, stop)  # type: ignore[no-any-return]

    def rows(self, start: int, stop: int, stream: int = 0) -> Rows:
        return self.gather.rows(*self.draws(start, stop, stream), stream)

    def __str__(self) -> str:
        weights = ", ".join(f"{weight:g}" for weight in self.weights)
        return described(f"BlendPlan(weights={weights})", self.members)


def cumulated_shares(weights: Sequence[float]) -> list[int]:
    """Returns the cumulated shares of weights in a group of draws, in units of 2 ** -40 draws.

    Args:
        weights: Finite and not negative.

    Raises:
        ConfigError: There is no positive weight, or a weight is negative, infinite or not a number.
    """
    values = np.asarray(weights, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise ConfigError(
            f"The blend weights {list(weights)} are invalid: give one finite number of at least 0 per dataset, at "
            "least one of them positive."
        )
    # Scaled by the largest weight first, so that sums of huge or tiny weights neither overflow nor vanish.
    sums = np.cumsum(values / values.max())
    last = int(np.flatnonzero(values)[-1])
    whole = GROUP_DRAWS * MODULUS
    return [whole if d >= last else int(share * whole) for d, share in enumerate((sums / sums[-1]).tolist())]


def weighted_draws(weights: Sequence[float], seed: int, stream: int, start: int, count: int) -> Int64Array:
    """Returns which of several datasets the draws start, start + 1, ... of a stream take; see `BlendPlan`.

    Args:
        weights: One per dataset, finite and not negative.
        seed: Seed of the blend.
        stream: Number of the stream.
        start: Number of the first draw, at least 0.
        count: How many draws.

    Returns:
        int64[count], numbers of datasets.

    Raises:
        ConfigError: There is no positive weight, or a weight is negative, infinite or not a number.
    """
    return Draws(cumulated_shares(weights), MODULUS, (BLEND, seed, stream)).take(start, start + count)[0]


@dataclass(frozen=True)
class EpochizedBlendPlan(Mixture):
    """Epochs that hold the epochs of all members, mixed so that their proportions hold everywhere.

    An epoch is divided into groups of about 512 rows. Each has its part of the rows of each member, rounded so that all
    of them end with the epoch, and is shuffled.

    Raises:
        ConfigError: There is no plan, one never ends, or their numbers of streams differ.
    """

    seed: int
    """Seed of the draws."""
    repeat: bool
    """Whether the next epoch follows at once, without an end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(member.is_endless for member in self.members):
            raise ConfigError("EpochizedBlendPlan was given a plan that never ends. Give plans that have epochs.")

    @property
    def is_endless(self) -> bool:
        return self.repeat

    @property
    def options(self) -> dict[str, Any]:
        times = [member.repetitions for member in self.members]  # type: ignore[attr-defined]
        return {"repetitions": times, "seed": self.seed}

    def epoch_start(self, epoch: int, stream: int = 0) -> int:
        return 0 if self.repeat else self._pass_start(epoch, stream)

    def _pass_start(self, epoch: int, stream: int) -> int:
        return sum(self.starts.at(epoch, stream))

    @cached_property
    def _in_epochs(self) -> ConcatPlan:
        return ConcatPlan(self.members)  # its epochs have the same lengths

    def rows(self, start: int, stop: int, stream: int = 0) -> Rows:
        start, stop, stream = self.check_range(start, stop, stream)
        if start == stop:
            return Rows.joined([])
        self._check_no_end(start, stop)
        epoch = self._in_epochs.epoch_at(start, stream)
        drawn = []
        first: Int64Array | None = None
        while start < stop:
            begin, length, draws, firsts = self._epoch(epoch, stream)
            end = min(stop, begin + length)
            if start < end:
                assert draws is not None
                numbers, before = draws.take(start - begin, end - begin)
                drawn.append(numbers)
                if first is None:  # the epochs of each member follow one another
                    first = firsts + before
                start = end
            epoch = epoch + 1 if length or start == stop else self._in_epochs.epoch_at(start, stream)
        assert first is not None
        return self.gather.rows(np.concatenate(drawn), first, stream)

    def lengths(self, epoch: int, stream: int) -> list[int]:
        """Returns how many rows of each member a stream has in an epoch."""
        return list(map(sub, self.starts.at(epoch + 1, stream), self.starts.at(epoch, stream)))

    def _epoch(self, epoch: int, stream: int) -> tuple[int, int, Draws | None, Int64Array]:
        """Returns (where an epoch starts, its length, its draws, the first position of each member in it)."""
        kept = self._kept("epochs")
        last = kept.get(stream)
        if last is None or last[0] != epoch:
            firsts = np.array(self.starts.at(epoch, stream), np.int64)
            sums = np.cumsum(np.array(self.starts.at(epoch + 1, stream), np.int64) - firsts).tolist()
            groups = max(1, sums[-1] // _EPOCH_GROUP)
            draws = Draws(sums, groups, (INTERLEAVE, self.seed, stream, epoch)) if sums[-1] else None
            kept.pop(stream, None)
            last = keep(kept, stream, (epoch, int(firsts.sum()), sums[-1], draws, firsts), _KEPT)
        return last[1:]  # type: ignore[no-any-return]

    def __str__(self) -> str:
        ends = "repeated" if self.repeat else "one epoch after the other"
        return described(f"EpochizedBlendPlan({len(self.members)} plans, {ends})", self.members)
