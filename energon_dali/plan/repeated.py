"""The order of a source whose samples are repeated a given number of times per epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.epoch import EpochOrder
from energon_dali.plan.order import OrderSpec, StreamOrder
from energon_dali.plan.rng import Int64Array
from energon_dali.plan.slices import Int32Array, Slices

_NOTHING, _ONE = Fraction(0), Fraction(1)

MAX_REPETITIONS = 100_000
"""An epoch is a list of passes: planning this many takes seconds."""


@dataclass(frozen=True)
class RepeatedOrder:
    """An order whose epochs hold every sample `repetitions` times, over all streams together.

    With 2.25 repetitions an epoch has two whole passes and a quarter of a third one. The next epoch continues with the
    second quarter, so that four epochs hold every sample nine times. If slices are shuffled over several epochs, or
    drawn with replacement, there are no whole passes, and the epochs are consecutive parts of the passes.

    Raises:
        ConfigError: The number of repetitions is negative, larger than MAX_REPETITIONS, or not a number.
    """

    spec: OrderSpec
    """The order of the passes."""
    repetitions: float
    """How often each sample is repeated per epoch."""

    def __post_init__(self) -> None:
        if not 0 <= self.repetitions <= MAX_REPETITIONS:  # also rejects NaN
            raise ConfigError(
                f"repetitions={self.repetitions} is invalid: give how often each sample is repeated per epoch, "
                f"a number from 0 to {MAX_REPETITIONS} such as 2 or 0.5."
            )

    @property
    def base(self) -> Slices:
        """The ranges of the split."""
        return self.spec.base

    @property
    def source(self) -> int:
        """Number of the source."""
        return self.spec.source

    def for_source(self, source: int) -> RepeatedOrder:
        """Returns the same order for another number of the source."""
        return replace(self, spec=self.spec.for_source(source))

    def stream(self, stream: int) -> RepeatedStream:
        """Returns the order of one stream.

        Raises:
            ConfigError: There is no such stream.
        """
        return RepeatedStream(self, self.spec.stream(stream))

    def total_samples(self, epoch: int) -> int:
        """Returns the number of samples of an epoch over all streams."""
        return sum(high - low for _, low, high in self.passes(epoch))

    @cached_property
    def _rate(self) -> Fraction:
        # Through the shortest decimal: 0.1 means a tenth, so that ten epochs make one pass.
        return Fraction(repr(float(self.repetitions)))

    def passes(self, epoch: int) -> list[tuple[int, int, int]]:
        """Returns (epoch of the spec, start, stop) of what an epoch takes, stop exclusive, over all streams."""
        spec, rate = self.spec, self._rate
        if spec.shuffle and spec.shuffle_over_epochs not in (None, 1):
            rate /= max(1, spec.shuffle_over_epochs or 1)
            whole, fraction = 0, rate
        else:
            whole, fraction = int(rate), rate - int(rate)
        begun = epoch * whole + math.ceil(epoch * fraction)  # passes that begin in earlier epochs
        taken = [(begun + number, 0, spec.total_samples(begun + number)) for number in range(whole)]
        low, high = epoch * fraction, (epoch + 1) * fraction
        for partial in range(math.floor(low), math.ceil(high)):
            # Whole and partial passes are numbered together, in the order in which they begin, without gaps.
            number = (math.floor(partial / fraction) + 1) * whole + partial
            total = spec.total_samples(number)
            start, stop = (math.floor(min(_ONE, max(_NOTHING, bound - partial)) * total) for bound in (low, high))
            if start < stop:
                taken.append((number, start, stop))
        return taken


class RepeatedStream:
    """The order of one stream over all epochs of a `RepeatedOrder`.

    Args:
        order: The order that all streams share.
        stream: The stream's order of whole passes.
    """

    def __init__(self, order: RepeatedOrder, stream: StreamOrder) -> None:
        self._order = order
        self._stream = stream
        self._last: tuple[int, RepeatedEpoch] | None = None

    def epoch(self, epoch: int) -> RepeatedEpoch:
        """Returns the order of this stream in an epoch, at least 0; the last one is kept."""
        last = self._last
        if last is None or last[0] != epoch:
            last = self._last = (epoch, RepeatedEpoch(self._stream, self._parts(epoch)))
        return last[1]

    def num_samples(self, epoch: int) -> int:
        """Returns the number of samples of this stream in an epoch, without building the order."""
        return sum(stop - start for _, start, stop in self._parts(epoch))

    def cycle(self) -> tuple[int, int]:
        """Returns (0, 0): the epochs do not repeat in a short cycle; see StreamOrder.cycle."""
        return 0, 0

    def samples_per_pass(self) -> int:
        """Returns the number of samples of this stream in its first epoch."""
        return self.num_samples(0)

    def _parts(self, epoch: int) -> list[tuple[int, int, int]]:
        """Returns (epoch of the spec, start, stop) of what this stream takes in an epoch, stop exclusive."""
        parts = [
            (number, self._position(number, start), self._position(number, stop))
            for number, start, stop in self._order.passes(epoch)
        ]
        return [part for part in parts if part[1] < part[2]]

    def _position(self, number: int, taken: int) -> int:
        """Returns how many of the first `taken` samples of a pass belong to this stream.

        The streams take turns, so that all of them together take exactly that many.
        """
        start, stop = self._stream.range_of(number)
        streams = self._order.spec.num_streams
        total = self._order.spec.total_samples(number)
        least, surplus = total // streams, stop - start > total // streams
        turn = self._stream.range_number(number)
        if taken <= least * streams:
            return taken // streams + (turn < taken % streams)
        before = start - least * turn  # streams before this one that have one sample more than the least
        return least + (surplus and before < taken - least * streams)


class RepeatedEpoch:
    """Parts of several passes, one after the other.

    Args:
        stream: The order of the passes.
        parts: (epoch, start, stop) of each part, stop exclusive, none empty.
    """

    def __init__(self, stream: StreamOrder, parts: list[tuple[int, int, int]]) -> None:
        self._stream = stream
        self._parts = parts
        self._length = sum(end - begin for _, begin, end in parts)

    def __len__(self) -> int:
        return self._length

    def samples(self, start: int, stop: int) -> tuple[Int32Array, Int64Array, Int64Array]:
        """Returns the samples at positions start ... stop - 1, as `EpochOrder.samples` does.

        Raises:
            IndexError: The range leaves the epoch.
        """
        if not 0 <= start <= stop <= self._length:
            raise IndexError(
                f"Positions {start} to {stop} leave an epoch of {self._length} samples: "
                "give 0 <= start <= stop <= length."
            )
        columns = []
        for number, begin, end in self._parts:
            low, high = max(start, 0), min(stop, end - begin)
            if low < high:
                order: EpochOrder = self._stream.epoch(number)
                columns.append(order.samples(begin + low, begin + high))
            start, stop = start - (end - begin), stop - (end - begin)
        if not columns:
            return np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64)
        shards, indices, passes = zip(*columns, strict=True)
        return np.concatenate(shards), np.concatenate(indices), np.concatenate(passes)

    def runs(self) -> None:
        """Returns None: parts of passes are not runs that a native reader could follow."""
        return
