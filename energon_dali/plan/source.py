"""The plan of one source: which stream reads which of its samples, in which pass over the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.epoch import EpochOrder, EpochSequence
from energon_dali.plan.plan import Plan, Rows, keep
from energon_dali.plan.rng import (
    DEAL,
    SLICE_DRAWS,
    SLICES,
    WINDOW,
    Int64Array,
    Uint64Array,
    mix,
    mix_arrays,
    permutation,
    raw_words,
)
from energon_dali.plan.slices import Slices, cut_slices

_ROUNDS = 12
"""Fewer favour some permutations of five or six places visibly."""
_MULTIPLIERS = tuple(np.uint64(mix(number) | 1) for number in range(_ROUNDS))


def permuted(places: Int64Array, keys: Uint64Array, lengths: Int64Array) -> Int64Array:
    """Returns where permutations of 0 ... length - 1 send places.

    A place is a row and a column of a table. Rounds move the rows by random amounts that depend on the column, and the
    columns by amounts that depend on the row; each can be undone, so the whole is a permutation. What falls into the
    part of the table that is beyond the length is moved again.

    Args:
        places: int64[n], from 0 to the length - 1.
        keys: uint64[n]: one per permutation.
        lengths: int64[n], at least 1: number of places of the permutations.

    Returns:
        int64[n], from 0 to the length - 1.
    """
    # A table with a few places more than the length. Rounding may make it one row larger than it has to be.
    rows = np.ceil(np.sqrt(lengths.astype(np.float64))).astype(np.uint64)
    columns = (lengths.astype(np.uint64) + rows - np.uint64(1)) // rows
    moved = _moved_once(places, keys, rows, columns)
    beyond = np.flatnonzero(moved >= lengths)
    while len(beyond):
        moved[beyond] = _moved_once(moved[beyond], keys[beyond], rows[beyond], columns[beyond])
        beyond = beyond[moved[beyond] >= lengths[beyond]]
    return moved


def _moved_once(places: Int64Array, keys: Uint64Array, rows: Uint64Array, columns: Uint64Array) -> Int64Array:
    row, column = np.divmod(places.astype(np.uint64), columns)
    for number in range(0, _ROUNDS, 2):
        row = (row + _scrambled(column, keys, number) % rows) % rows
        column = (column + _scrambled(row, keys, number + 1) % columns) % columns
    moved: Int64Array = (row * columns + column).astype(np.int64)
    return moved


def _scrambled(values: Uint64Array, keys: Uint64Array, number: int) -> Uint64Array:
    """Returns uint64[n], less than 2 ** 32: a hash of values, keys and the number of the round."""
    words: Uint64Array = (values + keys) * _MULTIPLIERS[number]
    words ^= words >> np.uint64(29)
    words *= _MULTIPLIERS[0]
    words >>= np.uint64(32)
    return words


_KEPT_SEQUENCES = 2
"""The streams of one process may be in two neighbouring epochs."""
_SHORT_SEQUENCE = 256
_KEPT_SHORT_SEQUENCES = 32
_KEPT_STREAMS = 256
"""Streams of one process whose last epoch is kept."""

FEWEST_ROWS = 64
"""Where a stream of a large job has fewer rows in an epoch, samples are dealt to the streams one by one."""
LARGE_JOB = 64
"""Streams of a job that is large in this sense."""


@dataclass(frozen=True)
class SourcePlan(Plan):
    """How the samples of a split are ordered and divided among streams.

    In training, all slices of the split are shuffled again in each epoch, the same for all streams, and laid end to
    end: the epoch sequence. Stream s takes an equal range of it, number (s + epoch) mod num_streams, so that the
    streams take turns at the remainder. Its range is read in `parallel_shard_iters` interleave lanes, and shuffled over
    a window.

    If at least 64 streams would have fewer than 64 rows each in an epoch, such ranges would be too short for anything
    to be read together, and each would need a sequence of its own. The samples are then shuffled one by one, the same
    for all streams, and dealt to the streams in turn, epoch after epoch.

    In validation, stream s takes range number s, and the remaining samples go to consecutive streams. A rank runs every
    world_size-th stream, so that ranks differ by at most one sample, whatever their number.

    Raises:
        ConfigError: A number is out of its range.
    """

    base: Slices
    """The ranges of the split."""
    num_streams: int
    """Number of logical streams, at least 1."""
    seed: int
    """Seed of the job."""
    source: int = 0
    """Number of this source among those of the job: two with the same path have different orders."""
    shuffle: bool = True
    """False for validation: an equal, contiguous range per stream, in file order, the same in each epoch."""
    repeat: bool = False
    """Whether the next epoch follows at once, without an end."""
    max_samples_per_sequence: int | None = None
    """Wanted length of a slice; None keeps shards whole."""
    parallel_shard_iters: int = 1
    """Number of interleave lanes: equal parts of a stream's range that are read in turn."""
    shuffle_buffer_size: int = 1
    """Window of the sample shuffle; 0 or 1 means none. Takes no time to fill and at most 12 bytes per sample."""
    shuffle_over_epochs: int | None = 1
    """The slices of this many passes are shuffled together, and an epoch is that many passes. -1 draws slices with
    replacement until an epoch has as many samples as the split; the last slice is cut. None keeps the slices in file
    order."""
    window_in_slice: bool = False
    """Shuffle samples only within each slice, so that an order with one lane is made of runs."""
    range_offset: int = 0
    """How many streams already took a remainder of the sources before this one; its own goes to the next streams. In
    training, stream s takes the range that stream s + range_offset would take without it."""

    def __post_init__(self) -> None:
        for name, least in (("num_streams", 1), ("parallel_shard_iters", 1), ("shuffle_buffer_size", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)} is out of range: give at least {least}.")
        if self.shuffle_over_epochs is not None and self.shuffle_over_epochs < 1 and self.shuffle_over_epochs != -1:
            raise ConfigError(
                f"shuffle_over_epochs={self.shuffle_over_epochs} is invalid: give a number of epochs of at least 1, "
                "-1 to draw slices with replacement, or None to keep them in file order."
            )
        _ = self.slices  # rejects a wrong max_samples_per_sequence

    @cached_property
    def slices(self) -> Slices:
        """The slices that are shuffled."""
        return cut_slices(self.base, self.max_samples_per_sequence if self.shuffle else None)

    @property
    def window(self) -> int:
        """Window of the sample shuffle; 0 or 1 without one."""
        return self.shuffle_buffer_size if self.shuffle else 1

    @property
    def lanes(self) -> int:
        """Number of interleave lanes."""
        return self.parallel_shard_iters if self.shuffle else 1

    @property
    def num_sources(self) -> int:
        return 1

    @property
    def is_endless(self) -> bool:
        return self.repeat

    @cached_property
    def num_samples(self) -> int:
        """Number of samples of the split."""
        return self.base.num_samples

    @property
    def passes_per_epoch(self) -> int:
        """Number of passes over the data in an epoch."""
        return max(1, self.shuffle_over_epochs or 1) if self.shuffle else 1

    @property
    def samples_per_epoch(self) -> int:
        """Number of samples of an epoch, over all streams."""
        return self.num_samples * self.passes_per_epoch

    @cached_property
    def is_dealt(self) -> bool:
        """Whether samples are dealt to the streams one by one."""
        few = self.samples_per_epoch < FEWEST_ROWS * self.num_streams
        return self.shuffle and self.num_streams >= LARGE_JOB and few and not self.window_in_slice

    def for_source(self, source: int) -> SourcePlan:
        """Returns the same order for another number of the source."""
        return replace(self, source=source)

    def at_position(self, number: int) -> SourcePlan:
        return self.for_source(mix(self.source, number))

    def rotated(self, offset: int) -> SourcePlan:
        """Returns an order whose remainder goes to other streams.

        Args:
            offset: Number of samples in the sources before it.
        """
        return replace(self, range_offset=(self.range_offset + offset) % self.num_streams)

    def epoch_start(self, epoch: int, stream: int = 0) -> int:
        if self.repeat:
            return 0
        return self.pass_start(epoch, stream)

    def pass_start(self, epoch: int, stream: int) -> int:
        """Returns how many rows a stream has in the epochs before an epoch, also of a plan that repeats."""
        if not self.shuffle:
            return epoch * (self._validation_start(stream + 1) - self._validation_start(stream))
        if self.is_dealt:
            return -(-(epoch * self.samples_per_epoch - self._turn(stream)) // self.num_streams)
        first, total = self._turn(stream), self.samples_per_epoch
        return total * (first + epoch) // self.num_streams - total * first // self.num_streams

    def samples_per_pass(self, stream: int) -> int:
        """Returns the number of samples of a stream in one pass over the data, whatever an epoch is."""
        if not self.shuffle:
            return self.pass_start(1, stream)
        number, total = self._turn(stream), self.num_samples
        return total * (number + 1) // self.num_streams - total * number // self.num_streams

    def range_number(self, epoch: int, stream: int) -> int:
        """Returns which of the equal ranges of an epoch a stream takes, 0 <= number < num_streams."""
        return (self._turn(stream) + epoch) % self.num_streams if self.shuffle else stream

    def range_of(self, epoch: int, stream: int) -> tuple[int, int]:
        """Returns (start, stop) of a stream's range of the epoch sequence, stop exclusive."""
        if not self.shuffle:
            return self._validation_start(stream), self._validation_start(stream + 1)
        number, total = self.range_number(epoch, stream), self.samples_per_epoch
        return total * number // self.num_streams, total * (number + 1) // self.num_streams

    def _turn(self, stream: int) -> int:
        return (stream + self.range_offset) % self.num_streams

    def _validation_start(self, stream: int) -> int:
        """Returns where a stream's range starts: after those of the streams before it, some of which have one more."""
        streams = self.num_streams
        least, rest = divmod(self.num_samples, streams)
        first = (streams - self.range_offset - rest) % streams  # from here on, `rest` streams have one sample more
        longer = min(max(stream - first, 0), rest) + min(max(first + rest - streams, 0), stream)
        return least * stream + longer

    def rows(self, start: int, stop: int, stream: int = 0) -> Rows:
        start, stop, stream = self.check_range(start, stop, stream)
        if start == stop:
            return Rows.joined([])
        if not self.num_samples:
            raise IndexError(f"Rows {start} to {stop} do not exist: the source has no samples.")
        if self.is_dealt:
            return self._as_dealt.rows(np.zeros(stop - start, np.int64), np.arange(start, stop), stream)
        epoch, first = self._locate(start, stream)
        parts = []
        while start < stop:
            length = self.pass_start(epoch + 1, stream) - self.pass_start(epoch, stream)
            if not length:  # with fewer samples than streams, most epochs have no row of a stream
                epoch, first = self._locate(start, stream)
                continue
            taken = min(stop - start, length - first)
            parts.append(Rows.of_source(*self.epoch_order(epoch, stream).samples(first, first + taken)))
            start, epoch, first = start + taken, epoch + 1, 0
        return Rows.joined(parts)

    def _locate(self, position: int, stream: int) -> tuple[int, int]:
        """Returns (epoch, position within it) of a position of a stream."""
        if not self.shuffle:
            length = self.pass_start(1, stream)
            if not length:
                raise IndexError(f"Stream {stream} has no rows: position {position} does not exist.")
            return divmod(position, length)
        first, total = self._turn(stream), self.samples_per_epoch
        at = position + total * first // self.num_streams
        segment = ((at + 1) * self.num_streams - 1) // total
        return segment - first, at - total * segment // self.num_streams

    def epoch_order(self, epoch: int, stream: int) -> EpochOrder:
        """Returns the order of a stream in an epoch; the last one of each stream is kept."""
        kept = self._kept("orders")
        last = kept.get(stream)
        if last is not None and last[0] == epoch:
            return last[1]  # type: ignore[no-any-return]
        sequence = self._sequence(epoch).cut(*self.range_of(epoch, stream))
        key = (WINDOW, self.seed, self.source, stream, epoch)
        order = EpochOrder(sequence, self.lanes, self.window, self.window_in_slice, key)
        kept.pop(stream, None)
        keep(kept, stream, (epoch, order), _KEPT_STREAMS)
        return order

    def _sequence(self, epoch: int) -> EpochSequence:
        """Returns the sequence of an epoch, which all streams share."""
        kept = self._kept("sequences")
        sequence = kept.get(epoch)
        if sequence is None:
            sequence = self._make_sequence(epoch)
            many = len(sequence.slices) > _SHORT_SEQUENCE
            keep(kept, epoch, sequence, _KEPT_SEQUENCES if many else _KEPT_SHORT_SEQUENCES)
        return sequence

    def _make_sequence(self, epoch: int) -> EpochSequence:
        count = len(self.slices)
        if not self.shuffle:  # validation: every epoch counts as the first, so that random operations repeat
            return EpochSequence.of(self.slices, np.zeros(count, np.int64))
        if self.shuffle_over_epochs is None or count == 0:
            return EpochSequence.of(self.slices, np.full(count, epoch, np.int64))
        if self.shuffle_over_epochs == -1:
            return self._drawn_sequence(epoch)
        shuffled = permutation(count * self.passes_per_epoch, SLICES, self.seed, self.source, epoch)
        repetition, index = np.divmod(shuffled, count)
        return EpochSequence.of(self.slices.take(index), epoch * self.passes_per_epoch + repetition)

    def _drawn_sequence(self, epoch: int) -> EpochSequence:
        """Returns slices that are drawn with replacement, as many samples as the split has; the last slice is cut."""
        count, total, lengths = len(self.slices), self.num_samples, self.slices.lengths
        drawn: list[Int64Array] = []
        missing = total
        while missing > 0:
            words = raw_words(len(drawn) * count, count, SLICE_DRAWS, self.seed, self.source, epoch)
            # The high 32 bits, scaled to 0 ... count - 1.
            drawn.append(((words >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64))
            missing -= int(lengths[drawn[-1]].sum())
        numbers = np.concatenate(drawn)
        numbers = numbers[: int(np.searchsorted(np.cumsum(lengths[numbers]), total)) + 1]
        # Every draw counts as a pass of its own. There are at most as many as samples.
        passes = epoch * total + np.arange(len(numbers), dtype=np.int64)
        return EpochSequence.of(self.slices.take(numbers), passes).cut(0, total)

    @cached_property
    def _as_dealt(self) -> DealtSources:
        return DealtSources([self])

    def __str__(self) -> str:
        order = f"window {self.window}, {self.lanes} lanes" if self.shuffle else "file order"
        ends = "repeated" if self.repeat else "one epoch after the other"
        return f"SourcePlan({self.num_samples} samples in {len(self.slices)} slices, {order}, {ends})"


class DealtSources:
    """The rows of small sources of a large job, whose samples are dealt to the streams one by one, computed together.

    The samples of each epoch are shuffled, the same for all streams, and dealt to the streams in turn.

    Args:
        plans: The sources, for one number of streams.
    """

    def __init__(self, plans: Sequence[SourcePlan]) -> None:
        self._num_streams = plans[0].num_streams
        self._turns = np.array([plan.range_offset for plan in plans], np.int64)
        self._samples = np.array([plan.num_samples for plan in plans], np.int64)
        self._passes = np.array([plan.passes_per_epoch for plan in plans], np.int64)
        self._totals = self._samples * self._passes
        self._is_drawn = np.array([plan.shuffle_over_epochs == -1 for plan in plans])
        self._is_permuted = np.array([plan.shuffle_over_epochs is not None for plan in plans]) & ~self._is_drawn
        self._states = np.array([mix(DEAL, plan.seed, plan.source) for plan in plans], np.uint64)
        self._shards = np.concatenate([plan.base.shard for plan in plans])
        self._firsts = np.concatenate([plan.base.start for plan in plans])
        lengths = np.concatenate([plan.base.lengths for plan in plans])
        # The samples of all sources, end to end.
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        self._origins = np.cumsum(self._samples) - self._samples

    def rows(self, numbers: Int64Array, positions: Int64Array, stream: int) -> Rows:
        """Returns rows of a stream; those of the first source have the number 0.

        Args:
            numbers: int64[n]: which source each row is of.
            positions: int64[n]: its position in the plan of that source.
            stream: Number of the stream.
        """
        total = self._totals[numbers]
        dealt = positions * self._num_streams + (stream + self._turns[numbers]) % self._num_streams
        epochs, places = np.divmod(dealt, total)
        drawn, permute = self._is_drawn[numbers], self._is_permuted[numbers]
        found = places.copy()
        if permute.any():
            keys = mix_arrays(epochs[permute], state=self._states[numbers[permute]])
            found[permute] = permuted(places[permute], keys, total[permute])
        if drawn.any():
            words = mix_arrays(epochs[drawn], places[drawn], state=self._states[numbers[drawn]])
            found[drawn] = (words % total[drawn].astype(np.uint64)).astype(np.int64)
        repetitions, samples = np.divmod(found, self._samples[numbers])
        # Every draw counts as a pass of its own.
        passes = np.where(drawn, epochs * total + places, epochs * self._passes[numbers] + repetitions)
        at = self._origins[numbers] + samples
        slices = np.searchsorted(self._starts, at, side="right") - 1
        indices = at - self._starts[slices] + self._firsts[slices]
        return Rows(numbers.astype(np.int32), self._shards[slices], indices, passes, np.zeros(len(indices), np.int32))
