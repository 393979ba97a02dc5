"""Sequences of different lengths merged to one, each spread evenly over the whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_dali.plan.rng import Int64Array, mix, mix_arrays
from energon_dali.plan.seeds import INTERLEAVE

_WINDOW = 512
"""About this many elements are placed at once."""


class Interleave:
    """The order in which the elements of n sequences come, window by window; every element of each comes once.

    Element j of a sequence of length L stands at a random time in [j / L, (j + 1) / L), and all elements are sorted by
    time: everywhere in the merged sequence the shares are those of the lengths, and all sequences end together.

    Args:
        lengths: n lengths, each at least 0.
        *key: Whole numbers that name the random times.
    """

    def __init__(self, lengths: Sequence[int], *key: int) -> None:
        self._lengths = np.asarray(lengths, np.int64)
        self._key = mix(INTERLEAVE, *key)
        self.total = int(self._lengths.sum())
        """Number of elements of all sequences."""
        self.windows = max(1, self.total // _WINDOW)
        """Number of windows."""

    def draws(self, window: int) -> Int64Array:
        """Returns the numbers of the sequences whose next elements come in a window, in order.

        Args:
            window: Number of the window, 0 <= window < windows.

        Returns:
            int64[k], about 512 of them.
        """
        lengths = self._lengths
        # One more on either side than the borders say: rounding must not lose an element, and the test below decides.
        first = np.clip(window * lengths // self.windows - 1, 0, lengths)
        last = np.clip(-(-(window + 1) * lengths // self.windows) + 1, 0, lengths)
        counts = last - first
        owner = np.repeat(np.arange(len(lengths)), counts)  # [m]: the sequence of each candidate
        number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - first, counts)  # [m]
        times = self._times(owner, number)  # [m]
        inside = np.flatnonzero(np.minimum(times.astype(np.int64), self.windows - 1) == window)
        order = np.lexsort((owner[inside], times[inside]))
        return owner[inside][order].astype(np.int64)

    def _times(self, owner: Int64Array, number: Int64Array) -> npt.NDArray[np.float64]:
        """Returns float64[m]: times of elements in windows; they never fall from one element of a sequence to the next.

        An element is in a window or not by this number alone, so that the windows share out all elements exactly.
        """
        words = mix_arrays(self._key, owner, number) >> np.uint64(11)
        times: npt.NDArray[np.float64] = (number + words.astype(np.float64) * 2.0**-53) * self.windows
        times /= self._lengths[owner]
        return times
