"""Reads the rows of one stream: those that come next are read together, or requested before they are wanted."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from energon_dali.datasets.row_sources import Reads, Source
from energon_dali.errors import DatasetError, EmptyDatasetError
from energon_dali.plan.plan import Rows, RowSource
from energon_dali.plan.rng import Int64Array, sample_seeds
from energon_dali.shards import RawSample
from energon_dali.shards.storage.forks import drop_in_child
from energon_dali.shards.storage.request_pool import call_together

if TYPE_CHECKING:
    from energon_dali.datasets.stream import StreamContext

FIRST_PLANNED = 128
"""Rows that are planned together at the beginning; their number doubles each time."""
MOST_PLANNED = 2048
"""Most rows that are planned together, for one source."""
MOST_LISTED = 512
"""Most rows of a plan that are held as Python's integers."""
PLANNED_PER_SOURCE = 64
"""The same for each of several sources: planning has a cost per source."""
LARGEST_PLAN = 65_536

MIXTURE_READ_AHEAD = 512
"""Rows of a mixture that are requested before they are wanted, within the loader's limit of bytes."""
_ISSUED_AGAIN = 32
"""Rows of a mixture that are taken before more of them are requested."""
TAKEN_TOGETHER = 16
"""Rows that are taken together of those that were requested ahead."""
REPEATED_ROWS = 64
"""A small dataset that repeats is read at most this many rows ahead, or two passes: it is not read many times before it
is wanted."""

Row = tuple[int, int, int, int, int, int]
"""(source, shard, index within it, pass, number in the source, seed)."""
Fetched = tuple[RawSample | DatasetError, Row]
"""(what was read, its row)."""


class Fetch:
    """Reads the rows of one stream, in order. Not thread-safe.

    Rows of remote sources, of slow disks, and of any source if the loader asks for it, are requested before they are
    wanted; the others are read a few at a time.

    Args:
        sources: What the rows name.
        plan: Which rows come.
        context: The stream.
        read_size: Rows that are read together from a disk.
    """

    def __init__(self, sources: Sequence[Source], plan: RowSource, context: StreamContext, read_size: int) -> None:
        self._sources = sources
        self._plan = plan
        self._stream = context.stream
        self._metrics = context.metrics
        self._clock = context.metrics.clock("read")
        self._read_size = read_size
        self._starts, self._offsets = _shard_starts(sources)
        self._source_seeds = np.array([source.load.source_seed for source in sources], np.uint64)
        several = len(sources) > 1
        self._most_planned = min(max(MOST_PLANNED, PLANNED_PER_SOURCE * len(sources)), LARGEST_PLAN)
        self._most_ahead = max(REPEATED_ROWS, 2 * plan.num_samples // plan.num_streams)
        self._issued_rows = MIXTURE_READ_AHEAD if several else None
        is_remote = any(getattr(source.reader, "is_remote", False) for source in sources)
        self._first_rows = MIXTURE_READ_AHEAD if several and is_remote else read_size
        """Rows that are planned where none is: the indices of remote sources are fetched together."""
        self._known: dict[int, tuple[int, int]] = {}
        """By source that has received the order in which it is read, the window and the lanes of that."""
        self._reads: dict[int, Reads] = {}
        """By source, what reads it ahead."""
        self._shards: dict[int, set[int]] = {}
        """By source, shards of which rows were planned to be read ahead."""
        self._planned_size = FIRST_PLANNED
        self._forget_plan()
        self._at = -1
        self._ready: deque[Fetched] = deque()
        """Rows that were read."""
        self._coming: deque[Row] = deque()
        """Rows after those, which are requested or still to be read."""
        self._until_issue = 0
        self._reading = 0, -1
        """Source and shard of the row that is being read."""
        drop_in_child(self)

    def after_fork(self) -> None:
        """Forgets all rows in a forked child, as what reads ahead does."""
        self._at = -1
        self._ready.clear()
        self._coming.clear()
        self._until_issue = 0

    def _forget_plan(self) -> None:
        # Each with its first row in one value, which an interrupt cannot divide.
        self._planned = 0, Rows.joined([])
        self._listed = 0, list[Row]()

    def take(self, row: int, stop: int) -> Fetched:
        """Returns a row.

        Args:
            row: Its position in the plan.
            stop: No row from here on is planned yet.

        Raises:
            EmptyDatasetError: The sources have no samples.
            StoreUnavailableError: The store returned only errors for too long.
        """
        if row != self._at or not self._ready:
            try:
                if row != self._at:
                    self.forget()
                    self._at = row
                self._advance(stop)
            except BaseException:
                self.forget()  # Ctrl-C may come between two steps
                raise
        self._at = row + 1  # first: if Ctrl-C comes in between, the caller asks for another row than this
        return self._ready.popleft()

    def _advance(self, stop: int) -> None:
        """Reads at least the next row."""
        outer = self._clock.begin(self._next_place)
        try:
            self._read_next(stop)
        finally:
            self._clock.end(outer)

    def _next_place(self) -> str:
        """Returns where the row that is being read is, such as "captions/shard_000.tar", for another thread."""
        number, shard = self._reading
        source = self._sources[number]
        names: Sequence[str] = getattr(getattr(source.reader, "folder", None), "shard_names", ())
        return "/".join([os.path.basename(source.name.rstrip("/")), *names[shard : shard + 1]])

    def _read_next(self, stop: int) -> None:
        if not self._coming:
            self._plan_more(self._first_rows, stop)
            self._until_issue = 0
        if self._reads:
            self._read_ahead(stop)
        self._reading = self._coming[0][:2]
        reads = self._reads.get(self._reading[0])
        if reads is not None:
            self._take_read(reads)
        elif self._reads:
            self._read_now([self._coming.popleft()])
        else:
            rows = list(islice(self._coming, self._read_size))
            if len(rows) == len(self._coming):
                self._coming.clear()
            else:
                for _ in rows:
                    self._coming.popleft()
            self._read_now(rows)

    def _take_read(self, reads: Reads) -> None:
        """Takes the next row, for which it waits, and those after it that were read already.

        Args:
            reads: What reads the next row.
        """
        raws = [reads.take()]
        self._ready.append((raws[0], self._coming.popleft()))
        most = TAKEN_TOGETHER if self._issued_rows is None else self._until_issue
        while len(raws) < most and self._coming:
            following = self._reads.get(self._coming[0][0])
            if following is None or not following.is_next_read():
                break
            raws.append(following.take())
            self._ready.append((raws[-1], self._coming.popleft()))
        self._until_issue -= len(raws) - 1
        self._metrics.count_read(len(raws), _size(raws))

    def _read_now(self, rows: list[Row]) -> None:
        """Reads rows from disks."""
        if len(self._sources) == 1:
            raws = self._read_from(0, rows)
        else:
            by_source: dict[int, list[int]] = {}
            for place, row in enumerate(rows):
                by_source.setdefault(row[0], []).append(place)
            raws = [None] * len(rows)  # type: ignore[list-item]
            for source, places in by_source.items():
                for place, raw in zip(places, self._read_from(source, [rows[i] for i in places]), strict=True):
                    raws[place] = raw
        self._ready.extend(zip(raws, rows, strict=True))

    def _read_from(self, source: int, rows: list[Row]) -> list[RawSample | DatasetError]:
        start = time.perf_counter()
        reader = self._sources[source].reader
        raws = self._sources[source].read([row[1] for row in rows], [row[2] for row in rows], [row[5] for row in rows])
        size = _size(raws)
        reader.note_speed(time.perf_counter() - start, len(raws), size)
        self._metrics.count_read(len(raws), size)
        return raws

    # --- rows that come ---------------------------------------------------------------------------------------------

    def _plan_more(self, count: int, stop: int) -> None:
        """Adds the next rows, and gives them to what reads ahead."""
        first = self._at + len(self._ready) + len(self._coming)
        rows = self._rows(first, count, stop)
        by_source: dict[int, list[Row]] = {} if len(self._sources) > 1 else {0: rows}
        if not by_source:
            for row in rows:
                by_source.setdefault(row[0], []).append(row)
        for source in by_source:
            # Not while rows of a source wait to be read from a disk: what reads ahead would not know them.
            if source not in self._reads and (source not in self._known or not self._coming):
                self._ask_for_reads(source)
        self._coming.extend(rows)
        ahead = {source: self._reads[source] for source in by_source if source in self._reads}

        def plan(source: int) -> None:
            columns = [[row[field] for row in by_source[source]] for field in (1, 2, 5)]
            self._sources[source].plan_reads(ahead[source], *columns)

        waiting = [source for source in ahead if self._has_new_shards(source, by_source[source])]
        if waiting:  # each fetches an index, and waits for it
            try:
                outcomes = call_together(plan, waiting)
            except BaseException:  # Ctrl-C: threads may still add rows to these, so the next plan needs others
                for source in waiting:
                    self._reads.pop(source).close()
                raise
            for outcome in outcomes.values():
                if isinstance(outcome, Exception):
                    raise outcome
        for source in ahead:
            if source not in waiting:
                plan(source)

    def _has_new_shards(self, source: int, rows: list[Row]) -> bool:
        """Returns whether rows of a source are in shards of which none was planned before."""
        known = self._shards.setdefault(source, set())
        new = {row[1] for row in rows} - known
        known |= new
        return bool(new)

    def _ask_for_reads(self, source: int) -> None:
        """Finds out whether a source is to be read ahead."""
        reader = self._sources[source].reader
        if source not in self._known:
            plan = self._sources[source].plan
            # Streams that share one order of the whole job see a part of its window, and of its lanes.
            sharing = self._plan.num_streams // plan.num_streams
            window = plan.window + self._plan.order_window  # packs take samples from all over their window
            self._known[source] = -(-window // sharing), -(-plan.lanes // sharing)
            reader.expect_order(window, plan.num_samples / max(1, len(plan.slices)))
        reads = reader.planned_reads(*self._known[source])
        if reads is not None:
            self._reads[source] = reads

    def _rows(self, first: int, count: int, stop: int) -> list[Row]:
        """Returns at least one and at most `count` of the rows from a position on, which is below `stop`."""
        start, rows = self._listed
        if not start <= first < start + len(rows):
            start, rows = self._listed = first, self._list_rows(first, stop)
        return rows[first - start : first - start + count]

    def _list_rows(self, first: int, stop: int) -> list[Row]:
        start, planned = self._planned
        if not start <= first < start + len(planned):
            if not self._plan.num_samples:
                names = ", ".join(source.name for source in self._sources)
                raise EmptyDatasetError(
                    f"{names} has no sample to repeat: its split is empty. Choose another split_part, or look at "
                    "split.yaml in its .nv-meta folder."
                )
            rows = self._plan.rows(first, min(stop, first + self._planned_size), self._stream)
            start, planned = self._planned = first, rows
            self._planned_size = min(2 * self._planned_size, self._most_planned)
        columns = planned.take(slice(first - start, first - start + MOST_LISTED))
        numbers = self._starts[self._offsets[columns.sources] + columns.shards] + columns.indices
        seeds = sample_seeds(self._source_seeds[columns.sources], columns.passes, numbers)
        lists = (columns.sources, columns.shards, columns.indices, columns.passes, numbers, seeds)
        return list(zip(*(column.tolist() for column in lists), strict=True))

    def _read_ahead(self, stop: int) -> None:
        """Plans as many rows as the readers want, and requests the next ones."""
        if self._issued_rows is not None:  # for a mixture once for many rows: each of its readers is asked
            self._until_issue -= 1
            if self._until_issue > 0:
                return
            self._until_issue = min(_ISSUED_AGAIN, len(self._coming))
        wanted = sum(reads.rows_wanted() for reads in self._reads.values())
        room = min(stop, self._at + self._most_ahead) - self._at - len(self._coming)
        if wanted > 0 and room > 0:
            self._plan_more(min(wanted, room), stop)
        if self._issued_rows is None:
            for reads in self._reads.values():
                reads.issue()
            return
        for source, count in Counter(row[0] for row in islice(self._coming, self._issued_rows)).items():
            if source in self._reads:
                self._reads[source].issue(count)

    def forget(self) -> None:
        """Forgets all rows that were read or requested."""
        self.after_fork()
        for reads in self._reads.values():
            reads.clear()

    def close(self) -> None:
        """Forgets all rows, and closes the readers."""
        self.forget()
        for reads in self._reads.values():
            reads.close()
        self._reads.clear()
        self._forget_plan()
        for source in self._known:
            self._sources[source].reader.close()


def _shard_starts(sources: Sequence[Source]) -> tuple[Int64Array, Int64Array]:
    """Returns (the number of the first sample of each shard in its source, for each source where its shards start)."""
    starts = [source.reader.shard_starts for source in sources]
    offsets = np.cumsum([0, *(len(column) for column in starts)])[:-1]
    return np.concatenate(starts), offsets


def _size(raws: Sequence[RawSample | DatasetError]) -> int:
    """Returns the size of samples in bytes."""
    size = 0
    for raw in raws:
        if not isinstance(raw, DatasetError):
            for content in raw.parts.values():
                size += len(content)
    return size
