"""Samples of a grid in the order of a fact: sorted in the background, once, and then taken from by position."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from energon_dali.errors import EnergonDaliError, StorageError
from energon_dali.plan.rng import Int64Array
from energon_dali.view.selection import CANCELLED, WAIT_SECONDS, ScanPages, Search, Selection
from energon_dali.view.viewed_sample import Page, Rows, digest_of

_MOST = 1 << 62


class SortedSamples:
    """The samples of a selection, sorted by a fact. Those of which it is not known come last. Thread-safe.

    Args:
        base: The samples.
        values: Takes numbers of samples, and returns their values; NaN where none is known.
        descending: Whether the largest value comes first.
        waits_for_scan: Whether a scan finds the values.
        share: Returns the share of the samples that were scanned, 0 to 1.
    """

    def __init__(
        self,
        base: Selection,
        values: Callable[[Int64Array], npt.NDArray[np.float64]],
        *,
        descending: bool,
        waits_for_scan: bool,
        share: Callable[[], float],
    ) -> None:
        self.waits_for_scan = waits_for_scan or base.waits_for_scan
        self._base = base
        self._values = values
        self._descending = descending
        self._share = share
        self._ended = threading.Event()
        self._cancelled = False
        self._error = ""
        self.is_over = False
        self._order: npt.NDArray[np.int32] | Int64Array = np.zeros(0, np.int32)
        self.digest = ""
        """That of the order; "" before it is there."""
        self._searched = 0.0
        threading.Thread(target=self._run, name="energon_dali.view.sort", daemon=True).start()

    def page(self, start: int, stop: int, wait_seconds: float = WAIT_SECONDS) -> Page:
        """Returns the samples at positions start to stop (exclusive); none before they are sorted.

        Args:
            start: Position of the first sample.
            stop: Position after the last one.
            wait_seconds: How long to wait for the order.
        """
        self._ended.wait(wait_seconds)
        if not self._ended.is_set():
            return Page(np.zeros(0, np.int64), self._num_found(), 0.0)
        self.is_over = self.is_over or bool(self._error)
        found = self._order[max(0, start) : max(0, stop)].astype(np.int64)
        return Page(found, len(self._order), self._searched, self._error)

    def position(self, index: int) -> int | None:
        """Returns the position of a sample; None if it is not there, or nothing is sorted yet."""
        found = np.flatnonzero(self._order == index)
        return int(found[0]) if len(found) else None

    def cancel(self) -> None:
        """Ends the sorting soon."""
        self._cancelled = self.is_over = True
        if isinstance(self._base, Search):
            self._base.cancel()

    def _num_found(self) -> int:
        return len(self._base) if isinstance(self._base, Rows) else 0

    def _run(self) -> None:
        try:
            searched = self._share() if self._base.waits_for_scan else 1.0  # first, as a scan goes on meanwhile
            numbers = all_of(self._base, lambda: self._cancelled)
            if self._cancelled:
                self._error = CANCELLED
                return
            values = self._values(numbers)
            order = np.argsort(-values if self._descending else values, kind="stable")  # NaN is last
            kind = np.int32 if len(numbers) and int(numbers.max()) < 1 << 31 else np.int64
            self._order, self._searched = numbers[order].astype(kind), searched
            self.digest = digest_of(self._order)
        except (EnergonDaliError, OSError) as error:
            self._error = str(error)
        finally:
            self._ended.set()


def all_of(selection: Selection | SortedSamples, is_cancelled: Callable[[], bool] = lambda: False) -> Int64Array:
    """Returns the numbers of all samples of a selection, in its order; of a search, after its end.

    Args:
        selection: The samples.
        is_cancelled: Returns whether nobody needs them any more; the result is not complete then.

    Raises:
        StorageError: The result of a scan cannot be read, or a search failed.
    """
    if isinstance(selection, Rows):
        return selection.take(0, len(selection))
    if isinstance(selection, ScanPages):
        return selection.page(0, _MOST).indices  # as far as the dataset was scanned
    while not is_cancelled():
        page = selection.page(0, _MOST)
        if page.error:
            raise StorageError(page.error)
        if page.searched >= 1:
            return page.indices
    return np.zeros(0, np.int64)
