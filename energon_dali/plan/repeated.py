"""The plan of a source whose samples are repeated a given number of times per epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from energon_dali.errors import ConfigError
from energon_dali.plan.plan import Plan, Rows
from energon_dali.plan.source import SourcePlan

MAX_REPETITIONS = 100_000
"""More are taken for a mistake."""


@dataclass(frozen=True)
class RepeatedPlan(Plan):
    """A plan whose epochs hold every sample `repetitions` times, over all streams together.

    With 2.25 repetitions an epoch has two whole passes and a quarter of a third one. The next epoch continues with the
    second quarter, so that four epochs hold every sample nine times. If slices are shuffled over several epochs, or
    drawn with replacement, there are no whole passes, and the epochs are consecutive parts of the passes.

    Raises:
        ConfigError: The number of repetitions is negative, larger than MAX_REPETITIONS, or not a number; or the passes
            do not end.
    """

    passes: SourcePlan
    """The plan of the passes, each an epoch of it."""
    repetitions: float
    """How often each sample is repeated per epoch."""

    def __post_init__(self) -> None:
        if not 0 <= self.repetitions <= MAX_REPETITIONS:  # also rejects NaN
            raise ConfigError(
                f"repetitions={self.repetitions} is invalid: give how often each sample is repeated per epoch, "
                f"a number from 0 to {MAX_REPETITIONS} such as 2 or 0.5."
            )
        if self.passes.repeat:
            raise ConfigError("RepeatedPlan was given a source that repeats without an end: give repeat=False.")

    @property
    def num_streams(self) -> int:  # type: ignore[override]
        """Number of logical streams of the job."""
        return self.passes.num_streams

    @property
    def num_sources(self) -> int:
        return 1

    @property
    def is_endless(self) -> bool:
        return False

    @property
    def num_samples(self) -> int:
        return self.passes.num_samples if self.repetitions else 0

    def at_position(self, number: int) -> RepeatedPlan:
        return replace(self, passes=self.passes.at_position(number))

    @cached_property
    def rates(self) -> tuple[int, int, int]:  # type: ignore[override]
        """(whole passes per epoch, numerator and denominator of the part of a further pass)."""
        # Through the shortest decimal: 0.1 means a tenth, so that ten epochs make one pass.
        rate = Fraction(repr(float(self.repetitions)))
        spec = self.passes
        if spec.shuffle and spec.shuffle_over_epochs not in (None, 1):
            whole, part = 0, rate / spec.passes_per_epoch
        else:
            whole, part = int(rate), rate % 1
        return whole, part.numerator, part.denominator

    def _number_of(self, partial: int) -> int:
        """Returns the number of a pass that epochs share: they are numbered with the whole ones as they begin."""
        whole, numerator, denominator = self.rates
        return (partial * denominator // numerator + 1) * whole + partial

    def _begun(self, epoch: int) -> int:
        """Returns how many passes begin in earlier epochs."""
        whole, numerator, denominator = self.rates
        return epoch * whole - (-epoch * numerator // denominator)

    def _shared_parts(self, epoch: int) -> list[tuple[int, int, int]]:
        """Returns (number, start, stop) of what an epoch has of passes that may belong to several epochs.

        It is counted over all streams, stop exclusive.
        """
        _, numerator, denominator = self.rates
        total = self.passes.samples_per_epoch
        low, high = epoch * numerator, (epoch + 1) * numerator
        taken = []
        for partial in range(low // denominator, -(-high // denominator)):
            ends = (min(denominator, max(0, bound - partial * denominator)) for bound in (low, high))
            start, stop = (end * total // denominator for end in ends)
            if start < stop:
                taken.append((self._number_of(partial), start, stop))
        return taken

    def epoch_start(self, epoch: int, stream: int = 0) -> int:
        _, numerator, denominator = self.rates
        rows = self.passes.pass_start(self._begun(epoch), stream)
        partial, rest = divmod(epoch * numerator, denominator)
        if rest:  # a part of this pass is left for later epochs
            number = self._number_of(partial)
            taken = self._taken(number, rest * self.passes.samples_per_epoch // denominator, stream)
            rows -= self._pass_length(number, stream) - taken
        return rows

    def _pass_length(self, number: int, stream: int) -> int:
        return self.passes.pass_start(number + 1, stream) - self.passes.pass_start(number, stream)

    def _taken(self, number: int, taken: int, stream: int) -> int:
        """Returns how many of the first `taken` samples of a pass belong to a stream.

        The streams take turns, so that all of them together take exactly that many.
        """
        streams, total = self.num_streams, self.passes.samples_per_epoch
        least = total // streams
        if self.passes.is_dealt:
            turn = (stream + self.passes.range_offset - number * total) % streams
            return taken // streams + (turn < taken % streams)
        start, stop = self.passes.range_of(number, stream)
        surplus = stop - start > least
        turn = self.passes.range_number(number, stream)
        if taken <= least * streams:
            return taken // streams + (turn < taken % streams)
        before = start - least * turn  # streams before this one that have one sample more than the least
        return least + (surplus and before < taken - least * streams)

    def rows(self, start: int, stop: int, stream: int = 0) -> Rows:
        start, stop, stream = self.check_range(start, stop, stream)
        if start == stop:
            return Rows.joined([])
        if not self.num_samples:
            raise IndexError(f"Rows {start} to {stop} do not exist: the source has no samples to repeat.")
        ranges = self.pass_ranges(start, stop, stream)
        return Rows.joined([self.passes.rows(first, last, stream) for first, last in ranges])

    @cached_property
    def is_consecutive(self) -> bool:  # type: ignore[override]
        """Whether epochs are consecutive parts of the passes, so that positions are those of the passes."""
        whole, numerator, _ = self.rates
        return not whole or not numerator

    def pass_ranges(self, start: int, stop: int, stream: int) -> list[tuple[int, int]]:
        """Returns which positions of the passes, in order, the rows start ... stop - 1 of a stream have.

        Args:
            start: At least 0.
            stop: More than `start`.
            stream: Number of the stream. The plan has samples.

        Returns:
            [(first, last), ...], last exclusive.
        """
        if self.is_consecutive:
            return [(start, stop)]
        epoch = self.epoch_at(start, stream)
        begin = self.epoch_start(epoch, stream)
        found = []
        while start < stop:
            before = begin
            for first, last in self._ranges(epoch, stream):
                until = min(stop, begin + last - first)
                if start < until:
                    found.append((first + start - begin, first + until - begin))
                    start = until
                begin += last - first
            # Epochs without rows of this stream are passed over: few samples of many streams have many of them.
            epoch = epoch + 1 if begin > before or start == stop else self.epoch_at(start, stream)
        return found

    def _ranges(self, epoch: int, stream: int) -> list[tuple[int, int]]:
        """Returns which positions of the passes an epoch of a stream has: the whole passes, then parts of others."""
        begun = self._begun(epoch)
        end = begun + self.rates[0]
        ranges = [(self.passes.pass_start(begun, stream), self.passes.pass_start(end, stream))]
        for number, low, high in self._shared_parts(epoch):
            first = self.passes.pass_start(number, stream)
            ranges.append((first + self._taken(number, low, stream), first + self._taken(number, high, stream)))
        return ranges

    def __str__(self) -> str:
        return f"RepeatedPlan({self.repetitions:g} times)\n  {self.passes}"
