"""The rows of one stream of a source: what is planned, and what is read ahead of being taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np

from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.errors import DatasetError
from energon_dali.plan.order import StreamOrder
from energon_dali.plan.repeated import RepeatedStream
from energon_dali.shards import RawSample
from energon_dali.shards.raw_sample import IndexedSample

PLANNED_ROWS = 128
"""Samples that are planned together at least. A blend holds the plans of a thousand datasets."""

_PLANNED_READS = 16
"""Reads whose samples are planned together."""
_MOST_PLANNED_ROWS = 512
"""Samples that are planned together at most."""

_EPOCHS_AHEAD = 16

ROWS_OF_LATER_EPOCHS = 64
"""Rows that are planned beyond the next epoch: a small dataset is not read many times before it is wanted."""

Rows = list[list[int]]
"""Five lists of equal length: shards, indices within them, passes, numbers in the dataset, seeds."""


class Reader(Protocol):
    """Reads raw samples by shard and index."""

    def read(self, shard_indices: Sequence[int], sample_indices: Sequence[int]) -> list[RawSample | DatasetError]:
        """Returns one raw sample, or the error that prevented it, per pair of indices."""

    def index_of(self, shard_index: int, sample_index: int) -> int:
        """Returns the number of a sample in the whole dataset."""

    def locate(self, index: int) -> tuple[int, int]:
        """Returns (shard index, sample index) of a sample's number in the whole dataset."""

    def name(self, shard_index: int, sample_index: int) -> tuple[str, str]:
        """Returns (name of the shard, key of the sample); "" for what is not known."""

    def indexed(self, shard_index: int, sample_index: int) -> IndexedSample:
        """Returns what the index knows of a sample; reads no shard."""

    def planned_reads(self, window: int, lanes: int) -> Reads | None:
        """Returns an object that reads ahead in a planned order; None where reading waits for nothing.

        Args:
            window: Window of the order's shuffle, in samples.
            lanes: Number of its interleave lanes.
        """

    def expect_order(self, window: int, slice_length: float) -> None:
        """Tells the window of the order's shuffle, and the mean length of its slices, in samples."""

    def note_speed(self, seconds: float, num_samples: int, size: int) -> None:
        """Tells how long a read of some samples, of a size in bytes, took."""

    def close(self) -> None:
        """Closes all open files."""


class Reads(Protocol):
    """Reads samples in a planned order; see PlannedReads."""

    def __len__(self) -> int:
        """Returns the number of rows that are planned and not taken."""

    @property
    def num_issued(self) -> int:
        """Number of rows, from the next one on, that were requested."""

    def rows_wanted(self) -> int:
        """Returns how many more rows to plan now."""

    def plan(self, shards: Sequence[int], samples: Sequence[int]) -> None:
        """Adds the next rows."""

    def issue(self, count: int | None = None) -> None:
        """Requests the next rows; None requests as many as the limits allow."""

    def take(self) -> RawSample | DatasetError:
        """Returns the next sample, or the error that prevented reading it."""

    def clear(self) -> None:
        """Forgets all rows."""

    def close(self) -> None:
        """Forgets all rows, and stops reading."""


class RowPlan:
    """The plan of a source in one stream.

    In a blend, a stream may have ten samples of a dataset per epoch. Decoding samples evicts the planner from the
    processor's caches, so planning one such epoch alone takes as long as planning ten of them.

    Args:
        order: The order of the stream.
        reader: Returns the numbers of samples.
        load: Returns their seeds.
        several_epochs: Plan several short epochs at a time.
    """

    def __init__(
        self, order: StreamOrder | RepeatedStream, reader: Reader, load: SampleLoader, *, several_epochs: bool
    ) -> None:
        self._order = order
        self._reader = reader
        self._load = load
        self._epochs_ahead = _EPOCHS_AHEAD if several_epochs else 0
        self._planned: tuple[int, int, Rows] = (-1, 0, [])  # epoch, position of the first row, rows
        self._coming: dict[int, Rows] = {}

    def rows(self, epoch: int, position: int, count: int) -> Rows:
        """Returns at least one and at most `count` samples of an epoch, from a position within it on."""
        planned_epoch, start, rows = self._planned
        first = position - start
        if planned_epoch != epoch or not 0 <= first < len(rows[0]):
            coming = self._coming.pop(epoch, None) if position == 0 else None
            wanted = max(PLANNED_ROWS, min(_PLANNED_READS * count, _MOST_PLANNED_ROWS))
            rows, first = self._make(epoch, position, wanted) if coming is None else coming, 0
            self._planned = epoch, position, rows
        return [column[first : first + count] for column in rows]

    def _make(self, epoch: int, position: int, wanted: int) -> Rows:
        """Returns the plan of an epoch from a position on, and keeps the plans of the next epochs if they are short."""
        order = self._order.epoch(epoch)
        pieces = [order.samples(position, min(len(order), position + wanted))]
        rows = len(order)
        for ahead in range(epoch + 1, epoch + 1 + self._epochs_ahead):
            if rows >= PLANNED_ROWS // 2:
                break
            order = self._order.epoch(ahead)
            pieces.append(order.samples(0, len(order)))
            rows += len(order)
        shards, indices, passes = (np.concatenate(column) for column in zip(*pieces, strict=True))
        columns = [shards.tolist(), indices.tolist(), passes.tolist()]
        numbers = list(map(self._reader.index_of, columns[0], columns[1]))
        columns += [numbers, self._load.seeds(passes, np.array(numbers, np.int64))]
        lengths = [len(piece[0]) for piece in pieces]
        plans = [
            [column[end - length : end] for column in columns]
            for length, end in zip(lengths, accumulate(lengths), strict=True)
        ]
        self._coming = dict(enumerate(plans[1:], epoch + 1))
        return plans[0]


class PlannedRows:
    """The rows of a stream that were given to a reader, which reads ahead of what is taken.

    Args:
        reads: The reader.
        plan: The rows of the stream.
        order: The order of the stream.
        num_streams: Streams of the job.
        across_epochs: Read ahead in the next epoch too; False where a stream ends after each.
    """

    def __init__(
        self,
        reads: Reads,
        plan: RowPlan,
        order: StreamOrder | RepeatedStream,
        *,
        num_streams: int,
        across_epochs: bool,
    ) -> None:
        self._reads = reads
        self._plan = plan
        self._order = order
        self._num_streams = num_streams
        self._across_epochs = across_epochs
        self._rows: deque[tuple[int, int, int]] = deque()  # (pass, number in the dataset, seed)
        self._next = (0, 0)
        self._at = (0, 0)

    @property
    def num_issued(self) -> int:
        """Number of rows, from the next one on, that were requested."""
        return self._reads.num_issued

    def take(self, epoch: int, position: int, *, extend: bool) -> tuple[RawSample | DatasetError, int, int, int]:
        """Returns (sample or error, pass, number in the dataset, seed) of a position.

        Args:
            epoch: The epoch.
            position: The position within it.
            extend: Read further ahead, as far as the reader wants. Else the caller tells how far, with `read_ahead`.
        """
        try:
            self._go_to(epoch, position)
            wanted = self._reads.rows_wanted() if extend else 1 - len(self._reads)
            if wanted > 0:
                self._extend(wanted)
            if extend:
                self._reads.issue()
            raw = self._reads.take()
            self._at = (epoch, position + 1)
            return (raw, *self._rows.popleft())
        except BaseException:
            self.clear()  # Ctrl-C may come between two steps
            raise

    def read_ahead(self, epoch: int, position: int, count: int) -> None:
        """Requests `count` samples from a position on, fewer at the end of an epoch that is not repeated."""
        try:
            self._go_to(epoch, position)
            self._extend(max(count - len(self._reads), self._reads.rows_wanted()))
            self._reads.issue(count)
        except BaseException:
            self.clear()  # Ctrl-C may come between two steps
            raise

    def _go_to(self, epoch: int, position: int) -> None:
        """Begins at a position, unless it is the one that follows what was taken."""
        if self._at[0] < epoch and position == 0 and self._at[1] >= self._order.num_samples(self._at[0]):
            self._at = self._skip_ends(self._at)
        if self._at != (epoch, position) or len(self._rows) != len(self._reads):
            self.clear()
        if not self._rows:
            self._at = self._next = (epoch, position)

    def _skip_ends(self, position: tuple[int, int]) -> tuple[int, int]:
        """Returns the position itself, or the beginning of the next epoch that has samples if it is at an end."""
        epoch, index = position
        for _ in range(self._num_streams + 1):
            if index < self._order.num_samples(epoch):
                break
            epoch, index = epoch + 1, 0
        return epoch, index

    def _extend(self, count: int) -> None:
        """Plans `count` more rows, fewer at the end of the data."""
        while count > 0:
            if self._across_epochs:
                self._next = self._skip_ends(self._next)
            epoch, position = self._next
            if position >= self._order.num_samples(epoch):
                return
            if epoch > self._at[0] + 1 and len(self._rows) >= ROWS_OF_LATER_EPOCHS:
                return
            shards, indices, passes, numbers, seeds = self._plan.rows(epoch, position, count)
            self._reads.plan(shards, indices)
            self._rows.extend(zip(passes, numbers, seeds, strict=True))
            self._next = (epoch, position + len(shards))
            count -= len(shards)

    def clear(self) -> None:
        """Forgets all rows."""
        self._reads.clear()
        self._rows.clear()
        self._at = self._next = (-1, 0)

    def close(self) -> None:
        """Forgets all rows, and stops reading."""
        self.clear()
        self._reads.close()
