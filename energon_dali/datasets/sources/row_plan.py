"""Where the next samples of a stream are, and their seeds: planned many at a time, however few are read at once."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from energon_dali.datasets.load_sample import SampleLoader
    from energon_dali.datasets.source import Reader
    from energon_dali.plan.order import StreamOrder
    from energon_dali.plan.repeated import RepeatedStream

PLANNED_ROWS = 128
"""Samples that are planned at once."""

_EPOCHS_AHEAD = 16

Rows = list[list[int]]
"""Five lists of one length: shards, indices inside them, passes, numbers in the dataset, seeds."""


class RowPlan:
    """The plan of a source in one stream.

    A blend has datasets of which a stream has ten samples per epoch, and what plans them is out of the processor's
    caches whenever samples were decoded in between: planning one such epoch alone costs as much as ten of them.

    Args:
        order: The order of the stream.
        reader: Knows the numbers of samples.
        load: Knows their seeds.
        several_epochs: Plan short epochs several at a time.
    """

    def __init__(
        self, order: StreamOrder | RepeatedStream, reader: Reader, load: SampleLoader, *, several_epochs: bool
    ) -> None:
        self._order = order
        self._reader = reader
        self._load = load
        self._epochs_ahead = _EPOCHS_AHEAD if several_epochs else 0
        self._epoch = -1
        self._start = 0
        self._rows: Rows = []
        self._coming: dict[int, Rows] = {}

    def rows(self, epoch: int, position: int, count: int) -> Rows:
        """Returns at most `count` samples, and at least one, of an epoch from a position inside it on."""
        first = position - self._start
        if self._epoch != epoch or not 0 <= first < len(self._rows[0]):
            planned = self._coming.pop(epoch, None) if position == 0 else None
            self._rows = self._make(epoch, position) if planned is None else planned
            self._epoch, self._start, first = epoch, position, 0
        return [column[first : first + count] for column in self._rows]

    def _make(self, epoch: int, position: int) -> Rows:
        """Returns the plan of an epoch from a position on; keeps those of the next ones, where epochs are short."""
        order = self._order.epoch(epoch)
        pieces = [order.samples(position, min(len(order), position + PLANNED_ROWS))]
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
