"""Ends the epochs of a rank after a number of elements, for validation."""

from __future__ import annotations

from energon_dali.datasets.wrappers.epochize import EpochizeDataset


class LimitDataset(EpochizeDataset):
    """Ends an epoch after at most `length` elements of each rank; the next begins at the very beginning. The outermost
    dataset.
    """

    restart = True

    def len_rank(self) -> int:
        return min(self.length, self.dataset.len_rank())
