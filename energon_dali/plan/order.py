"""The order of a dataset: which stream reads which samples in which epoch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from energon_dali.errors import ConfigError
from energon_dali.plan.epoch import EpochOrder, Line
from energon_dali.plan.rng import permutation, raw_words
from energon_dali.plan.seeds import SLICE_DRAWS, SLICES, WINDOW
from energon_dali.plan.slices import Slices, cut_slices

_KEPT_LINES = 2
"""Streams of one process may stand in two neighbouring epochs."""

_SHORT_LINE = 256
_KEPT_SHORT_LINES = 32
"""Short epochs are planned several ahead, stream by stream."""


@dataclass(frozen=True)
class OrderSpec:
    """How the samples of a split are ordered and shared out among streams; the order follows from it alone.

    In training, all slices of the split are shuffled anew in each epoch, the same for all streams, and laid end to end.
    Stream s takes an equal share of that line, number (s + epoch) mod num_streams, so that a remainder goes round. Its
    share is read in `parallel_shard_iters` lanes in turn, and shuffled over a window.

    In validation, stream s takes the share number s, and the samples that remain go to streams that follow one another.
    A rank runs every world_size-th stream, so that ranks then differ by one sample at most, whatever their number.

    Raises:
        ConfigError: A number is out of its range.
    """

    base: Slices
    """The ranges of the split."""
    num_streams: int
    """Number of logical streams, at least 1."""
    seed: int
    """Seed of the job."""
    leaf: int = 0
    """Number of this dataset among those of the job: two with the same path have different orders."""
    shuffle: bool = True
    """False for validation: an equal, contiguous share per stream, in file order, the same in each epoch."""
    max_samples_per_sequence: int | None = None
    """Wanted length of a slice; None keeps shards whole."""
    parallel_shard_iters: int = 1
    """How many places of the share are read in turn."""
    shuffle_buffer_size: int = 1
    """Window of the sample shuffle; 0 or 1 is none. Costs no time to fill and at most 12 bytes per sample."""
    shuffle_over_epochs: int | None = 1
    """Slices of this many passes are shuffled together, and an epoch is that many passes; -1 draws slices with
    replacement, as many per epoch as there are; None keeps the slices in file order."""
    window_in_slice: bool = False
    """Shuffle samples inside each slice alone, so that an order with one lane is made of runs."""
    share_offset: int = 0
    """Remainders of the datasets before this one, which went to the streams before: that of this one goes to the next
    streams. In training, stream s takes the share that stream s + share_offset would take else."""
    old_shares: bool = False
    """Cut the shares of validation as releases did that put a remainder into streams of the same few ranks: for states
    that they saved."""

    def __post_init__(self) -> None:
        for name, least in (("num_streams", 1), ("parallel_shard_iters", 1), ("shuffle_buffer_size", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)} is out of range: give at least {least}.")
        if self.shuffle_over_epochs is not None and self.shuffle_over_epochs < 1 and self.shuffle_over_epochs != -1:
            raise ConfigError(
                f"shuffle_over_epochs={self.shuffle_over_epochs} is not known: give a number of epochs of at least 1, "
                "-1 for slices drawn with replacement, or None for no shuffle of slices."
            )
        _ = self.slices  # refuses a wrong max_samples_per_sequence

    @cached_property
    def slices(self) -> Slices:
        """The slices that are shuffled."""
        return cut_slices(self.base, self.max_samples_per_sequence if self.shuffle else None)

    def placed(self, leaf: int) -> OrderSpec:
        """Returns the same order for a dataset of another number."""
        return replace(self, leaf=leaf)

    def stream(self, stream: int) -> StreamOrder:
        """Returns the order of one stream.

        Raises:
            ConfigError: There is no such stream.
        """
        return StreamOrder(self, stream)

    def total_samples(self, epoch: int) -> int:
        """Returns the number of samples of an epoch over all streams."""
        if self.shuffle and self.shuffle_over_epochs == -1:
            return self._line(epoch).length
        return self._samples_per_pass * self._passes

    @cached_property
    def _samples_per_pass(self) -> int:
        return self.slices.num_samples

    @property
    def even_shares(self) -> bool:
        """Whether a remainder goes to streams that follow one another."""
        return not (self.shuffle or self.old_shares)

    @property
    def _passes(self) -> int:
        """Passes over the data per epoch, where that is a fixed number."""
        return max(1, self.shuffle_over_epochs or 1) if self.shuffle else 1

    @cached_property
    def _lines(self) -> dict[int, Line]:
        return {}

    def _line(self, epoch: int) -> Line:
        """Returns the line of an epoch, which all streams share."""
        line = self._lines.get(epoch)
        if line is None:
            line = self._make_line(epoch)
            while len(self._lines) >= (_KEPT_LINES if len(line.slices) > _SHORT_LINE else _KEPT_SHORT_LINES):
                self._lines.pop(next(iter(self._lines)), None)
            self._lines[epoch] = line
        return line

    def _make_line(self, epoch: int) -> Line:
        count = len(self.slices)
        if not self.shuffle:  # validation: each epoch is the first, so that random operations do the same in all
            return Line.of(self.slices, np.zeros(count, np.int64))
        if self.shuffle_over_epochs is None or count == 0:
            return Line.of(self.slices, np.full(count, epoch, np.int64))
        if self.shuffle_over_epochs == -1:
            words = raw_words(0, count, SLICE_DRAWS, self.seed, self.leaf, epoch)
            # The high 32 bits scaled to 0 ... count - 1. Every draw is a pass of its own.
            drawn = ((words >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)
            return Line.of(self.slices.take(drawn), epoch * count + np.arange(count, dtype=np.int64))
        shuffled = permutation(count * self._passes, SLICES, self.seed, self.leaf, epoch)
        repetition, place = np.divmod(shuffled, count)
        return Line.of(self.slices.take(place), epoch * self._passes + repetition)

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
        """Returns the order of this stream in an epoch, at least 0; the last one is kept."""
        last = self._last
        if last is None or last[0] != epoch:
            last = self._last = (epoch, self._make_epoch(epoch))
        return last[1]

    def num_samples(self, epoch: int) -> int:
        """Returns the number of samples of this stream in an epoch, without building the order."""
        begin, end = self.share(epoch)
        return end - begin

    def share_number(self, epoch: int) -> int:
        """Returns which of the equal shares of an epoch this stream takes, 0 <= number < num_streams."""
        spec = self.spec
        if spec.even_shares:
            return self.stream
        return (self.stream + spec.share_offset + (epoch if spec.shuffle else 0)) % spec.num_streams

    def samples_per_pass(self) -> int:
        """Returns the number of samples of this stream in one pass over the data, whatever makes an epoch."""
        spec = self.spec
        if spec.even_shares:
            return self.num_samples(0)
        total, share = spec.slices.num_samples, self.share_number(0)
        return total * (share + 1) // spec.num_streams - total * share // spec.num_streams

    def share(self, epoch: int) -> tuple[int, int]:
        """Returns [begin, end) of this stream's share of the line of an epoch."""
        spec = self.spec
        total = spec.total_samples(epoch)
        if spec.even_shares:
            return self._even_share_begin(self.stream, total), self._even_share_begin(self.stream + 1, total)
        share = self.share_number(epoch)
        return total * share // spec.num_streams, total * (share + 1) // spec.num_streams

    def _even_share_begin(self, stream: int, total: int) -> int:
        """Returns where a stream's share begins: at what the streams before it have, of whom some have one more."""
        streams = self.spec.num_streams
        least, rest = divmod(total, streams)
        first = (streams - self.spec.share_offset - rest) % streams  # rest streams from here on have one sample more
        longer = min(max(stream - first, 0), rest) + min(max(first + rest - streams, 0), stream)
        return least * stream + longer

    def _make_epoch(self, epoch: int) -> EpochOrder:
        spec = self.spec
        line = spec._line(epoch).cut(*self.share(epoch))
        key = (WINDOW, spec.seed, spec.leaf, self.stream, epoch)
        if not spec.shuffle:
            return EpochOrder(line, 1, 1, False, key)
        return EpochOrder(line, spec.parallel_shard_iters, spec.shuffle_buffer_size, spec.window_in_slice, key)
