"""The order of a source: which stream reads which samples in which epoch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.epoch import EpochOrder, EpochSequence
from energon_dali.plan.rng import SLICE_DRAWS, SLICES, WINDOW, permutation, raw_words
from energon_dali.plan.slices import Slices, cut_slices

_KEPT_SEQUENCES = 2
"""The streams of one process may be in two neighbouring epochs."""

_SHORT_SEQUENCE = 256
_KEPT_SHORT_SEQUENCES = 32
"""Short epochs are planned several epochs ahead, stream by stream."""


@dataclass(frozen=True)
class OrderSpec:
    """How the samples of a split are ordered and divided among streams; it determines the order completely.

    In training, all slices of the split are shuffled again in each epoch, the same for all streams, and laid end to
    end: the epoch sequence. Stream s takes an equal range of it, number (s + epoch) mod num_streams, so that the
    streams take turns at the remainder. Its range is read in `parallel_shard_iters` interleave lanes, and shuffled over
    a window.

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
    max_samples_per_sequence: int | None = None
    """Wanted length of a slice; None keeps shards whole."""
    parallel_shard_iters: int = 1
    """Number of interleave lanes: equal parts of a stream's range that are read in turn."""
    shuffle_buffer_size: int = 1
    """Window of the sample shuffle; 0 or 1 means none. Takes no time to fill and at most 12 bytes per sample."""
    shuffle_over_epochs: int | None = 1
    """The slices of this many passes are shuffled together, and an epoch is that many passes. -1 draws slices with
    replacement, as many per epoch as there are slices. None keeps the slices in file order."""
    window_in_slice: bool = False
    """Shuffle samples only within each slice, so that an order with one lane is made of runs."""
    range_offset: int = 0
    """How many streams already took a remainder of the sources before this one; its own goes to the next streams. In
    training, stream s takes the range that stream s + range_offset would take without it."""
    old_ranges: bool = False
    """Divide validation as earlier releases did, which gave the remainder to streams of the same few ranks: for states
    that they saved."""

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

    def for_source(self, source: int) -> OrderSpec:
        """Returns the same order for another number of the source."""
        return replace(self, source=source)

    def stream(self, stream: int) -> StreamOrder:
        """Returns the order of one stream.

        Raises:
            ConfigError: There is no such stream.
        """
        return StreamOrder(self, stream)

    def total_samples(self, epoch: int) -> int:
        """Returns the number of samples of an epoch over all streams."""
        if self.shuffle and self.shuffle_over_epochs == -1:
            return self._sequence(epoch).length
        return self._samples_per_pass * self._passes

    @cached_property
    def _samples_per_pass(self) -> int:
        return self.slices.num_samples

    @property
    def even_ranges(self) -> bool:
        """Whether the remainder goes to consecutive streams."""
        return not (self.shuffle or self.old_ranges)

    @property
    def _passes(self) -> int:
        """Passes over the data per epoch, if that is a fixed number."""
        return max(1, self.shuffle_over_epochs or 1) if self.shuffle else 1

    @cached_property
    def _sequences(self) -> dict[int, EpochSequence]:
        return {}

    def _sequence(self, epoch: int) -> EpochSequence:
        """Returns the sequence of an epoch, which all streams share."""
        sequence = self._sequences.get(epoch)
        if sequence is None:
            sequence = self._make_sequence(epoch)
            while len(self._sequences) >= (
                _KEPT_SEQUENCES if len(sequence.slices) > _SHORT_SEQUENCE else _KEPT_SHORT_SEQUENCES
            ):
                self._sequences.pop(next(iter(self._sequences)), None)
            self._sequences[epoch] = sequence
        return sequence

    def _make_sequence(self, epoch: int) -> EpochSequence:
        count = len(self.slices)
        if not self.shuffle:  # validation: every epoch counts as the first, so that random operations repeat
            return EpochSequence.of(self.slices, np.zeros(count, np.int64))
        if self.shuffle_over_epochs is None or count == 0:
            return EpochSequence.of(self.slices, np.full(count, epoch, np.int64))
        if self.shuffle_over_epochs == -1:
            words = raw_words(0, count, SLICE_DRAWS, self.seed, self.source, epoch)
            # The high 32 bits, scaled to 0 ... count - 1. Every draw counts as a pass of its own.
            drawn = ((words >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)
            return EpochSequence.of(self.slices.take(drawn), epoch * count + np.arange(count, dtype=np.int64))
        shuffled = permutation(count * self._passes, SLICES, self.seed, self.source, epoch)
        repetition, index = np.divmod(shuffled, count)
        return EpochSequence.of(self.slices.take(index), epoch * self._passes + repetition)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


class StreamOrder:
    """The order of one stream over all epochs.

    Args:
        spec: The order that all streams share.
        stream: Number of the stream, 0 <= stream < num_streams.

    Raises:
        ConfigError: There is no such stream.
    """

    def __init__(self, spec: OrderSpec, stream: int) -> None:
        if not 0 <= stream < spec.num_streams:
            raise ConfigError(
                f"Stream {stream} does not exist: with num_streams={spec.num_streams} give 0 to {spec.num_streams - 1}."
            )
        self.spec = spec
        self.stream = stream
        self._last: tuple[int, EpochOrder] | None = None

    def epoch(self, epoch: int) -> EpochOrder:
        """Returns the order of this stream in an epoch, at least 0; the last result is kept."""
        last = self._last
        if last is None or last[0] != epoch:
            last = self._last = (epoch, self._make_epoch(epoch))
        return last[1]

    def num_samples(self, epoch: int) -> int:
        """Returns the number of samples of this stream in an epoch, without building the order."""
        start, stop = self.range_of(epoch)
        return stop - start

    def cycle(self) -> tuple[int, int]:
        """Returns (samples of this stream, epochs) after which the lengths of its epochs repeat; (0, 0) if never.

        Any consecutive epochs of that number have these samples together: each stream takes each range once.
        """
        spec = self.spec
        if spec.shuffle and spec.shuffle_over_epochs == -1:
            return 0, 0
        return (spec.total_samples(0), spec.num_streams) if spec.shuffle else (self.num_samples(0), 1)

    def range_number(self, epoch: int) -> int:
        """Returns which of the equal ranges of an epoch this stream takes, 0 <= number < num_streams."""
        spec = self.spec
        if spec.even_ranges:
            return self.stream
        return (self.stream + spec.range_offset + (epoch if spec.shuffle else 0)) % spec.num_streams

    def samples_per_pass(self) -> int:
        """Returns the number of samples of this stream in one pass over the data, whatever an epoch is."""
        spec = self.spec
        if spec.even_ranges:
            return self.num_samples(0)
        total, number = spec.slices.num_samples, self.range_number(0)
        return total * (number + 1) // spec.num_streams - total * number // spec.num_streams

    def range_of(self, epoch: int) -> tuple[int, int]:
        """Returns (start, stop) of this stream's range of the epoch sequence, stop exclusive."""
        spec = self.spec
        total = spec.total_samples(epoch)
        if spec.even_ranges:
            return self._even_range_start(self.stream, total), self._even_range_start(self.stream + 1, total)
        number = self.range_number(epoch)
        return total * number // spec.num_streams, total * (number + 1) // spec.num_streams

    def _even_range_start(self, stream: int, total: int) -> int:
        """Returns where a stream's range starts: after those of the streams before it, some of which have one more."""
        streams = self.spec.num_streams
        least, rest = divmod(total, streams)
        first = (streams - self.spec.range_offset - rest) % streams  # from here on, `rest` streams have one sample more
        longer = min(max(stream - first, 0), rest) + min(max(first + rest - streams, 0), stream)
        return least * stream + longer

    def _make_epoch(self, epoch: int) -> EpochOrder:
        spec = self.spec
        sequence = spec._sequence(epoch).cut(*self.range_of(epoch))
        key = (WINDOW, spec.seed, spec.source, self.stream, epoch)
        if not spec.shuffle:
            return EpochOrder(sequence, 1, 1, False, key)
        return EpochOrder(sequence, spec.parallel_shard_iters, spec.shuffle_buffer_size, spec.window_in_slice, key)
