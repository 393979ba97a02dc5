"""The samples that meet the conditions of a page: found in the background, shown as soon as enough are known."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from energon_dali.errors import EnergonDaliError
from energon_dali.plan.rng import Int64Array
from energon_dali.view.dataset import ViewedDataset
from energon_dali.view.index_search import search_shard
from energon_dali.view.scan import Scan
from energon_dali.view.scan_filter import SampleFilter
from energon_dali.view.viewed_sample import Rows

WAIT_SECONDS = 0.25
"""How long a page waits for the samples that it shows."""
_PIECE_SAMPLES = 100_000
"""Samples of a shard that are searched at once, after which others get their turn."""
_KEPT_SEARCHES = 8


@dataclass(frozen=True, slots=True)
class Page:
    """Samples of one page."""

    indices: Int64Array
    """int64[n]: their numbers in the dataset."""
    found: int
    """Number of samples that are known to meet the conditions."""
    searched: float
    """Share of the samples that was looked at, 0 to 1; at 1, `found` is final."""
    error: str = ""
    """Why the search ended early; "" if it did not."""


class RowPages:
    """All samples of some ranges, by position.

    Args:
        rows: The ranges.
    """

    waits_for_scan = False
    """Whether a scan finds the samples, and not the index."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def page(self, start: int, stop: int) -> Page:
        """Returns the samples at positions start to stop (exclusive), as far as they are known."""
        return Page(self._rows.take(start, stop), len(self._rows), 1.0)

    def position(self, index: int) -> int | None:
        """Returns the position of a sample; None if it is not known."""
        return self._rows.position(index)


class ScanPages:
    """The samples of which a scan found that they meet a filter.

    Args:
        scan: The scan.
        source: Number of the dataset in it.
        rows: The samples to look at.
        wanted: The conditions.
    """

    waits_for_scan = True

    def __init__(self, scan: Scan, source: int, rows: Rows, wanted: SampleFilter) -> None:
        self._scan = scan
        self._source = source
        self._wanted = wanted
        self._ranges = list(zip(rows.starts.tolist(), (rows.starts + rows.lengths).tolist(), strict=True))

    def page(self, start: int, stop: int) -> Page:
        """Returns samples as `RowPages.page` does.

        Raises:
            StorageError: The result of the scan cannot be read.
        """
        found = self._scan.matches(
            self._wanted, source=self._source, ranges=self._ranges, limit=stop - start, offset=start
        )
        count = self._scan.count(self._wanted, source=self._source, ranges=self._ranges)
        return Page(np.array(found.indices, np.int64), count, found.share)

    def position(self, index: int) -> int | None:
        wanted, ranges = self._wanted, [(start, min(stop, index)) for start, stop in self._ranges if start < index]
        hit = self._scan.matches(wanted, source=self._source, ranges=[(index, index + 1)], limit=1).indices
        return self._scan.count(wanted, source=self._source, ranges=ranges) if hit else None


class Search:
    """Searches the index for the samples that meet a filter, in a thread. Thread-safe.

    Args:
        dataset: The dataset.
        rows: The samples to look at.
        wanted: The conditions.
    """

    waits_for_scan = False

    def __init__(self, dataset: ViewedDataset, rows: Rows, wanted: SampleFilter) -> None:
        self._dataset = dataset
        self._rows = rows
        self._wanted = wanted
        self._changed = threading.Condition()
        self._found: list[Int64Array] = []
        self._num_found = 0
        self._num_searched = 0
        self._ended = False
        self._cancelled = False
        self._error = ""
        threading.Thread(target=self._run, name="energon_dali.view.search", daemon=True).start()

    def page(self, start: int, stop: int, wait_seconds: float = WAIT_SECONDS) -> Page:
        """Returns the matches from `start` to `stop` (exclusive), as far as they are known.

        Args:
            start: Position of the first match.
            stop: Position after the last one.
            wait_seconds: How long to wait for them.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._num_found >= stop, wait_seconds)
            pieces, base = [], 0
            for piece in self._found:
                pieces.append(piece[max(0, start - base) : max(0, stop - base)])
                base += len(piece)
            indices = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
            share = 1.0 if self._ended and not self._error else self._num_searched / max(1, len(self._rows))
            return Page(indices, self._num_found, share, self._error)

    def position(self, index: int) -> int | None:
        """Returns the position of a sample among the matches that are known; None if it is not there."""
        base = 0
        with self._changed:
            for piece in self._found:
                hits = np.flatnonzero(piece == index)
                if len(hits):
                    return base + int(hits[0])
                base += len(piece)
        return None

    def cancel(self) -> None:
        """Ends the search soon."""
        self._cancelled = True

    def _run(self) -> None:
        try:
            for shard, start, stop in self._pieces():
                if self._cancelled:
                    return
                found = search_shard(self._dataset, shard, start, stop, self._wanted)
                with self._changed:
                    if len(found):
                        self._found.append(found + self._dataset.shard_starts[shard])
                        self._num_found += len(found)
                    self._num_searched += stop - start
                    self._changed.notify_all()
        except (EnergonDaliError, OSError) as error:
            self._error = str(error)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yields (shard, first sample, sample after the last) of all rows."""
        borders = self._dataset.shard_starts
        for first, length in zip(self._rows.starts.tolist(), self._rows.lengths.tolist(), strict=True):
            position, end = first, first + length
            while position < end:
                shard = bisect_right(borders, position) - 1
                stop = min(end, borders[shard + 1], position + _PIECE_SAMPLES)
                yield shard, position - borders[shard], stop - borders[shard]
                position = stop


Selection: TypeAlias = RowPages | ScanPages | Search
"""The samples of a grid, by position."""


class SearchCache:
    """The searches that were used last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searches: OrderedDict[object, Search] = OrderedDict()

    def get(self, key: object, create: Callable[[], Search]) -> Search:
        """Returns the search of a key, which is started if there is none.

        Args:
            key: What it searches for; hashable.
            create: Starts it.
        """
        with self._lock:
            found = self._searches.get(key)
            if found is None:
                found = self._searches[key] = create()
                if len(self._searches) > _KEPT_SEARCHES:
                    self._searches.popitem(last=False)[1].cancel()
            self._searches.move_to_end(key)
            return found

    def close(self) -> None:
        """Ends all searches."""
        with self._lock:
            for search in self._searches.values():
                search.cancel()
            self._searches.clear()
