"""What was measured of the samples that rows of a plan name."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from energon_dali.plan.measured import SampleValues
from energon_dali.plan.plan import Rows
from energon_dali.plan.rng import Int64Array, stable_order


@dataclass(frozen=True)
class MeasuredRows:
    """The measures of the sources that the rows of a plan name. Compared by the identities of the measures."""

    values: tuple[SampleValues, ...]
    """Those of each source."""
    shard_starts: tuple[Int64Array, ...] = field(compare=False, repr=False)
    """For each source int64[shards]: the number in the dataset of sample 0 of each shard."""

    def of(self, name: str, rows: Rows) -> Int64Array:
        """Returns a value of rows: int64[n], -1 where nothing was measured.

        Args:
            name: Name of the value.
            rows: n rows.
        """
        if len(self.values) == 1:
            return self.values[0].take(name, self.shard_starts[0][rows.shards] + rows.indices)
        found = np.empty(len(rows), np.int64)
        order = stable_order(rows.sources)
        sources, firsts = np.unique(rows.sources[order], return_index=True)
        stops = [*firsts[1:].tolist(), len(order)]
        for source, first, stop in zip(sources.tolist(), firsts.tolist(), stops, strict=True):
            places = order[first:stop]
            numbers = self.shard_starts[source][rows.shards[places]] + rows.indices[places]
            found[places] = self.values[source].take(name, numbers)
        return found
