"""Merges sequences of different lengths into one, each spread evenly over the whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_dali.plan.rng import INTERLEAVE, Int64Array, mix, mix_arrays

_WINDOW = 512
"""About this many elements are ordered at once."""


class Interleave:
    """The merged order of n sequences, window by window; it holds every element of each sequence once.

    Element j of a sequence of length L gets a random time in [j / L, (j + 1) / L), and all elements are sorted by time.
    So the sequences are mixed in proportion to their lengths everywhere, and all end together.

    Args:
        lengths: n lengths, each at least 0.
        *key: Integers that identify the random times.
    """

    def __init__(self, lengths: Sequence[int], *key: int) -> None:
        self._lengths = np.asarray(lengths, np.int64)
        self._key = mix(INTERLEAVE, *key)
        self.total = int(self._lengths.sum())
        """Number of elements of all sequences."""
        self.windows = max(1, self.total // _WINDOW)
        """Number of windows."""

    def draws(self, window: int) -> Int64Array:
        """Returns the numbers of the sequences whose next elements are in a window, in order.

        Args:
            window: Number of the window, 0 <= window < windows.

        Returns:
            int64[k], about 512 of them.
        """
        lengths = self._lengths
        # One element more on either side of the window, because of rounding; the comparison below is exact.
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
        """Returns float64[m]: times of elements, in windows; they never decrease along a sequence.

        This number alone decides in which window an element is, so that the windows hold every element exactly once.
        """
        words = mix_arrays(self._key, owner, number) >> np.uint64(11)
        times: npt.NDArray[np.float64] = (number + words.astype(np.float64) * 2.0**-53) * self.windows
        times /= self._lengths[owner]
        return times
