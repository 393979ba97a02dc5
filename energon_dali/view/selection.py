"""The samples that meet the conditions of a page: found in the background, shown as soon as enough are known.

What the index holds (keys, sizes, formats) is searched whole columns at a time; for anything else, a scan is asked.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from energon_dali.decode.formats import FORMATS
from energon_dali.errors import EnergonDaliError
from energon_dali.plan.rng import Int64Array
from energon_dali.shards import ShardExtents
from energon_dali.view.dataset import ViewedDataset
from energon_dali.view.query import SampleFilter
from energon_dali.view.scan import Scan
from energon_dali.view.viewed_sample import Page, Rows

WAIT_SECONDS = 0.25
"""How long a page waits for the samples that it shows."""
_PIECE_SAMPLES = 100_000
"""Samples of a shard that are searched at once, after which others get their turn."""
_KEPT_SEARCHES = 8
_INDEX_FIELDS = frozenset(
    ("key", "part", "format", "min_bytes", "max_bytes", "min_width", "max_width", "min_height", "max_height")
) | {"min_aspect", "max_aspect"}
_IMAGE_FIELDS = _INDEX_FIELDS - {"key", "part", "min_bytes", "max_bytes"}


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
        self._ranges = rows.ranges
        self.digest = rows.digest

    def page(self, start: int, stop: int) -> Page:
        """Returns the samples at positions start to stop (exclusive), as far as they are known.

        Raises:
            StorageError: The result of the scan cannot be read.
        """
        scan, source, ranges = self._scan, self._source, self._ranges
        share = scan.progress(source).share  # first, as the scan goes on meanwhile
        found = scan.matches(self._wanted, source=source, ranges=ranges, limit=stop - start, offset=start)
        return Page(np.array(found, np.int64), scan.count(self._wanted, source=source, ranges=ranges), share)

    def position(self, index: int) -> int | None:
        wanted, ranges = self._wanted, [(start, min(stop, index)) for start, stop in self._ranges if start < index]
        hit = self._scan.matches(wanted, source=self._source, ranges=[(index, index + 1)], limit=1)
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
        self.digest = rows.digest
        self._wanted = wanted
        self._changed = threading.Condition()
        self._found: list[Int64Array] = []
        self._num_found = 0
        self._num_searched = 0
        self._ended = False
        self._cancelled = False
        self._error = ""
        self.is_over = False
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
            self.is_over = self.is_over or bool(self._error)
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
        self._cancelled = self.is_over = True

    def _run(self) -> None:
        try:
            for shard, start, stop in self._pieces():
                if self._cancelled:
                    self._error = CANCELLED
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
        for position, end in self._rows.ranges:
            while position < end:
                shard = bisect_right(borders, position) - 1
                stop = min(end, borders[shard + 1], position + _PIECE_SAMPLES)
                yield shard, position - borders[shard], stop - borders[shard]
                position = stop


Selection: TypeAlias = Rows | ScanPages | Search
"""The samples of a grid, by position."""


CANCELLED = "It was ended, because others were asked for since. Load the page again."
"""Error of a search or a sorted list."""


class Cancellable(Protocol):
    """What runs in the background for a page."""

    is_over: bool
    """Whether it is of no more use: it was cancelled, or it failed and a page has said so."""

    def cancel(self) -> None:
        """Ends it soon."""


CancellableT = TypeVar("CancellableT", bound=Cancellable)


class SearchCache:
    """The searches, and the sorted lists, that were used last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searches: dict[object, Any] = {}

    def get(self, key: object, create: Callable[[], CancellableT]) -> CancellableT:
        """Returns the search of a key, which is started if there is none.

        Args:
            key: What it searches for; hashable.
            create: Starts it.
        """
        with self._lock:
            known: CancellableT | None = self._searches.pop(key, None)
            found = create() if known is None or known.is_over else known
            self._searches[key] = found  # the one that was used last is the last
            if len(self._searches) > _KEPT_SEARCHES:
                self._searches.pop(next(iter(self._searches))).cancel()
            return found

    def close(self) -> None:
        """Ends all searches."""
        with self._lock:
            for search in self._searches.values():
                search.cancel()
            self._searches.clear()


def given_fields(wanted: SampleFilter) -> set[str]:
    """Returns the names of the conditions that a filter has."""
    empty = SampleFilter()
    return {name for name in SampleFilter.__dataclass_fields__ if getattr(wanted, name) != getattr(empty, name)}


def index_answers(dataset: ViewedDataset, wanted: SampleFilter) -> bool:
    """Returns whether the index holds all that a filter asks for; otherwise a scan has to.

    Args:
        dataset: The dataset.
        wanted: The filter.
    """
    fields = given_fields(wanted)
    if not fields <= _INDEX_FIELDS:
        return False
    return not fields & _IMAGE_FIELDS or (dataset.has_image_sizes and wanted.format in ("", *FORMATS))


def search_shard(dataset: ViewedDataset, shard: int, start: int, stop: int, wanted: SampleFilter) -> Int64Array:
    """Returns the numbers within their shard of the samples that meet a filter, ascending.

    Args:
        dataset: The dataset.
        shard: Number of the shard.
        start: First sample of the shard to look at.
        stop: Sample after the last one.
        wanted: Conditions that `index_answers` accepts.

    Raises:
        DatasetError: An index is damaged.
        StorageError: It cannot be read.
    """
    extents = dataset.extents(shard)
    if extents is None:
        return _search_lines(dataset, start, stop, wanted)
    found = np.ones(stop - start, bool)
    if wanted.min_bytes is not None or wanted.max_bytes is not None:
        base = dataset.shard_starts[shard]
        found &= _within(dataset.sample_bytes(base + start, base + stop), wanted.min_bytes, wanted.max_bytes)
    sample_parts = extents.array("first_part")[start : stop + 1].astype(np.int64)
    first, end = int(sample_parts[0]), int(sample_parts[-1])
    if given_fields(wanted) & (_IMAGE_FIELDS | {"part"}):
        parts = np.flatnonzero(_matching_parts(extents, first, end, wanted)) + first
        owners = np.zeros(stop - start, bool)
        owners[np.searchsorted(sample_parts, parts, "right") - 1] = True
        found &= owners
    if wanted.key:
        found &= _has_key(extents, start, stop, wanted.key)
    return np.flatnonzero(found) + start


def _matching_parts(extents: ShardExtents, first: int, end: int, wanted: SampleFilter) -> npt.NDArray[np.bool_]:
    """Returns bool[end - first]: which parts meet all conditions on a part."""
    mask = np.ones(end - first, bool)
    if wanted.part:
        mask &= np.array([name == wanted.part for name in extents.part_names], bool)[
            extents.array("part_name")[first:end]
        ]
    if wanted.format:
        names = [text.partition(" ")[0] == wanted.format for text in extents.formats]
        mask &= np.array(names, bool)[extents.array("part_format")[first:end]]
    width = extents.array("part_width")[first:end].astype(np.int64)
    height = extents.array("part_height")[first:end].astype(np.int64)
    bounds = (wanted.min_width, wanted.max_width, wanted.min_height, wanted.max_height)
    if any(bound is not None for bound in (*bounds, wanted.min_aspect, wanted.max_aspect)):
        mask &= (width > 0) & (height > 0)
        mask &= _within(width, wanted.min_width, wanted.max_width)
        mask &= _within(height, wanted.min_height, wanted.max_height)
        if wanted.min_aspect is not None:
            mask &= width >= wanted.min_aspect * height
        if wanted.max_aspect is not None:
            mask &= width <= wanted.max_aspect * height
    return mask


def _within(values: Int64Array, least: int | None, most: int | None) -> npt.NDArray[np.bool_]:
    result = np.ones(len(values), bool)
    if least is not None:
        result &= values >= least
    if most is not None:
        result &= values <= most
    return result


def _has_key(extents: ShardExtents, start: int, stop: int, text: str) -> npt.NDArray[np.bool_]:
    """Returns bool[stop - start]: whose key contains a text. One search over all keys, which are end to end."""
    starts = extents.array("key_start")[start : stop + 1].astype(np.int64)
    base, wanted = int(starts[0]), text.encode("utf-8", "surrogateescape")
    blob = bytes(extents.keys[base : int(starts[-1])])
    result = np.zeros(stop - start, bool)
    ends = starts - base
    position = blob.find(wanted)
    while position >= 0:
        sample = int(np.searchsorted(ends, position, "right")) - 1
        if position + len(wanted) <= ends[sample + 1]:  # not across the border of two keys
            result[sample] = True
            position = blob.find(wanted, int(ends[sample + 1]))
        else:
            position = blob.find(wanted, position + 1)
    return result


def _search_lines(dataset: ViewedDataset, start: int, stop: int, wanted: SampleFilter) -> Int64Array:
    """Returns the lines of a JSONL file that meet a filter; a key is the number of a line."""
    if wanted.part not in ("", "json"):
        return np.zeros(0, np.int64)
    found = _within(dataset.sample_bytes(start, stop), wanted.min_bytes, wanted.max_bytes)
    if wanted.key:
        found &= np.fromiter((wanted.key in str(line) for line in range(start, stop)), bool, stop - start)
    return np.flatnonzero(found) + start
