"""Reads the samples of several datasets that a join index joins."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetError, ShardError, StorageError
from energon_dali.metadataset.join.columns import JoinIndexFile
from energon_dali.metadataset.reference import Subset
from energon_dali.plan.rng import Int64Array
from energon_dali.plan.slices import Slices
from energon_dali.shards import RawSample, ShardReader
from energon_dali.shards.index.tar_index import read_tar_index
from energon_dali.shards.raw_sample import IndexedSample
from energon_dali.shards.read_ahead import PlannedReads
from energon_dali.shards.storage.forks import drop_in_child

CACHED_SHARDS = 128
"""Shards per dataset whose offsets are kept."""


@dataclass(slots=True, eq=False)
class JoinedRaw(RawSample):
    """The samples of one row of a join index, as they were read.

    Key and shard are those of the primary sample, `index` and `sample_index` are the row of the join index. In `parts`,
    the names of the other datasets' parts are prefixed by the dataset's number.
    """

    columns: tuple[RawSample | None, ...] = ()
    """One per dataset, the primary one first; None if there is no match."""


Location = tuple[int, int] | DatasetError | None
"""(index of the shard, index of the sample in it) in one dataset; None if there is no match."""


class JoinedReader:
    """Reads joined samples by row of a join index; a `Reader` in which the shards are those of the primary dataset.

    Picklable; each process opens the files itself, when it first needs them. Not thread-safe.

    Args:
        index: The join index.
        readers: One per dataset, the primary one first.
        shards: For each dataset the indices of the shards that its split part names, in that order.
    """

    def __init__(self, index: JoinIndexFile, readers: Sequence[ShardReader], shards: Sequence[Sequence[int]]) -> None:
        self.index = index
        self.readers = tuple(readers)
        self.shards = tuple(np.asarray(numbers, np.int64) for numbers in shards)
        self._offsets: list[OrderedDict[int, npt.NDArray[np.uint64]]] = [OrderedDict() for _ in self.readers]
        self._starts: list[int] | None = None

    @property
    def is_remote(self) -> bool:
        """Whether reads go over a network."""
        return any(not reader.folder.root.is_local for reader in self.readers)

    @property
    def num_samples(self) -> int:
        """Number of rows."""
        return len(self.index.table)

    def ranges(self, subset: Subset | None = None) -> Slices:
        """Returns the rows of each shard of the primary dataset, in order.

        Args:
            subset: Range of rows; None takes all.

        Raises:
            DatasetError: The index cannot be read.
            ConfigError: The subset reaches beyond the rows.
        """
        starts = np.array(self._shard_starts(), np.int64)
        start, stop = (0, self.num_samples) if subset is None else subset.bounds(self.num_samples)
        begins, ends = np.clip(starts[:-1], start, stop), np.clip(starts[1:], start, stop)
        kept = np.flatnonzero(ends > begins)
        return Slices(kept.astype(np.int32), begins[kept], ends[kept])

    def rows_of(self, numbers: Int64Array) -> Int64Array:
        """Returns the rows of some samples of the primary dataset; those that were not joined are left out.

        Args:
            numbers: int64[n]: their numbers in the primary dataset, ascending.

        Returns:
            int64[at most n]: rows of the join index, ascending.

        Raises:
            DatasetError: An index cannot be read.
        """
        starts, first_numbers = self._shard_starts(), self.readers[0].shard_starts
        folder = self.readers[0].folder
        counts = folder.shard_counts
        rows = [np.zeros(0, np.int64)]
        for shard, (start, stop) in enumerate(pairwise(starts)):
            number = int(self.shards[0][shard])
            first = int(first_numbers[number])
            low, high = np.searchsorted(numbers, [first, first + counts[number]])
            if low == high or start == stop:
                continue
            borders = read_tar_index(folder.root, folder.shard_names[number])[1:-1]
            offsets = np.asarray(self.index.table[start:stop, 0, 1], np.uint64)
            samples = first + np.searchsorted(borders, offsets, side="right")
            rows.append(start + np.flatnonzero(np.isin(samples, numbers[low:high])))
        found: Int64Array = np.concatenate(rows)
        return found

    def read(self, shard_indices: Sequence[int], sample_indices: Sequence[int]) -> list[RawSample | DatasetError]:
        """Returns one entry per row, in order: its samples, or the error that prevented reading them.

        Args:
            shard_indices: Shards of the primary samples, as indices in its split part.
            sample_indices: Rows.
        """
        table = self.index.table
        outside = [row for row in sample_indices if not 0 <= row < len(table)]
        if outside:
            error = DatasetError(f"{self.index.path} has {len(table)} rows, and {outside[0]} was asked for.")
            return [error] * len(sample_indices)
        columns = [self._read_column(column, found) for column, found in enumerate(self.find(sample_indices))]
        return [
            self.join(shard, row, found)
            for shard, row, found in zip(shard_indices, sample_indices, zip(*columns, strict=True), strict=True)
        ]

    def find(self, rows: Sequence[int]) -> list[list[Location]]:
        """Returns for each dataset where its samples of some rows are; [columns][n].

        Args:
            rows: Rows of the join index, all of which exist.
        """
        table: Int64Array = np.array(self.index.table[np.asarray(rows, np.int64)])  # [n, columns, 3]
        return [
            [self._locate(column, split_index, offset) for split_index, offset, _ in table[:, column].tolist()]
            for column in range(len(self.readers))
        ]

    def _locate(self, column: int, split_index: int, offset: int) -> Location:
        try:
            return None if split_index < 0 else self._find(column, split_index, offset)
        except DatasetError as error:
            return error

    def _read_column(self, column: int, locations: list[Location]) -> list[RawSample | DatasetError | None]:
        """Returns the samples of one dataset."""
        there = [location for location in locations if isinstance(location, tuple)]
        raws = iter(self.readers[column].read([shard for shard, _ in there], [sample for _, sample in there]))
        return [next(raws) if isinstance(location, tuple) else location for location in locations]

    def planned_reads(self, window: int, lanes: int) -> JoinedReads | None:
        """Returns an object that reads ahead in a planned order; None where reading waits for nothing.

        Args:
            window: Window of the order's shuffle, in samples.
            lanes: Number of its interleave lanes.
        """
        columns = [reader.planned_reads(window, lanes) for reader in self.readers]
        return JoinedReads(self, columns) if any(column is not None for column in columns) else None

    def expect_order(self, window: int, slice_length: float) -> None:
        """Takes the order in which rows will be read; see ShardReader."""
        for reader in self.readers:
            reader.expect_order(window, slice_length)

    def note_speed(self, seconds: float, num_samples: int, size: int) -> None:
        """Records how long a read of some samples, of a size in bytes, took."""
        for reader in self.readers:
            reader.note_speed(seconds, num_samples, size)

    def _find(self, column: int, split_index: int, offset: int) -> tuple[int, int]:
        """Returns (index of the shard in the dataset, index of the sample in the shard)."""
        if not 0 <= split_index < len(self.shards[column]):
            raise self._changed(column, f"shard {split_index} of the split")
        if offset < 0:
            raise self._changed(column, f"a sample at byte {offset}")
        shard = int(self.shards[column][split_index])
        folder = self.readers[column].folder
        cache = self._offsets[column]
        offsets = cache.get(shard)
        if offsets is None:
            try:
                offsets = cache[shard] = read_tar_index(folder.root, folder.shard_names[shard])
            except StorageError as error:
                raise self.readers[column].unreadable(shard, error) from error
            if len(cache) > CACHED_SHARDS:
                cache.popitem(last=False)
        cache.move_to_end(shard)
        # Bytes before the first sample belong to it.
        sample = int(np.searchsorted(offsets[1:-1], np.uint64(offset), side="right"))
        if sample and int(offsets[sample]) != offset:
            raise self._changed(column, f"a sample at byte {offset} of {folder.shard_names[shard]}")
        return shard, sample

    def join(
        self, shard: int, row: int, found: tuple[RawSample | DatasetError | None, ...]
    ) -> JoinedRaw | DatasetError:
        """Returns the joined sample of a row, or the error that prevented reading it.

        Args:
            shard: Shard of the primary sample, as an index in its split part.
            row: The row.
            found: What each dataset returned for it.
        """
        for raw in found:
            if isinstance(raw, DatasetError):
                return raw
        primary, *others = found
        if not isinstance(primary, RawSample):
            return self._changed(0, f"no sample in row {row}")
        for column, other in enumerate(others, 1):
            if isinstance(other, RawSample) and other.key != primary.key:
                return self._changed(column, f"sample {other.key!r} for {primary.key!r}")
        samples = tuple(raw if isinstance(raw, RawSample) else None for raw in found)
        parts = dict(primary.parts)
        for column, raw in enumerate(samples[1:], 1):
            parts.update({f"{column}/{name}": content for name, content in raw.parts.items()} if raw else {})
        return JoinedRaw(primary.key, primary.shard, row, shard, row, parts, samples)

    @property
    def shard_starts(self) -> Int64Array:
        """int64[shards of the primary samples]: zeros, since rows are numbered over all shards."""
        return np.zeros(len(self._shard_starts()) - 1, np.int64)

    def index_of(self, shard_index: int, sample_index: int) -> int:
        """Returns the row, which is the index of a joined sample."""
        return sample_index

    def locate(self, index: int) -> tuple[int, int]:
        """Returns (index of the primary sample's shard in its split part, row).

        Raises:
            DatasetError: There is no such row.
        """
        if not 0 <= index < self.num_samples:
            raise DatasetError(
                f"{self.index.path} joins {self.num_samples} samples, and {index} was asked for. The key belongs to "
                "other data."
            )
        return bisect_right(self._shard_starts(), index) - 1, index

    def name(self, shard_index: int, sample_index: int) -> tuple[str, str]:
        """Returns (name of the primary sample's shard, its key), each "" if it is unknown; never raises."""
        try:
            split_index, offset, _ = self.index.table[sample_index, 0].tolist()
            return self.readers[0].name(*self._find(0, split_index, offset))
        except (DatasetError, IndexError, OSError):
            return "", ""

    def indexed(self, shard_index: int, sample_index: int) -> IndexedSample:
        """Returns what the indices know of a joined sample; names of parts begin with the number of their dataset.

        Raises:
            DatasetError: A dataset changed since it was joined, or its index is damaged.
            StorageError: An index cannot be read.
        """
        found = [column[0] for column in self.find([sample_index])]
        for error in found:
            if isinstance(error, DatasetError) and isinstance(error.__cause__, StorageError):
                raise error.__cause__
        samples = [
            self.readers[number].indexed(*location) if isinstance(location, tuple) else None
            for number, location in enumerate(found)
        ]
        primary = samples[0]
        parts = {
            f"{number}/{part}": size
            for number, sample in enumerate(samples)
            if sample is not None
            for part, size in sample.part_bytes.items()
        }
        return IndexedSample(primary.shard if primary else "", primary.key if primary else "", parts)

    def close(self) -> None:
        """Closes all files; they are opened again when needed."""
        for reader in self.readers:
            reader.close()
        self.index.close()

    def _shard_starts(self) -> list[int]:
        """Returns the first row of each shard of the primary dataset, followed by the number of rows."""
        if self._starts is None:
            first_column = self.index.table[:, 0, 0]
            rows = range(len(first_column))
            shards = range(len(self.shards[0]))
            self._starts = [bisect_left(rows, shard, key=lambda row: int(first_column[row])) for shard in shards]
            self._starts.append(len(rows))
            self._starts[0] = 0
        return self._starts

    def _changed(self, column: int, what: str) -> ShardError:
        folder = self.readers[column].folder
        return ShardError(
            f"{self.index.path} names {what} in {folder.path}, which no longer exists: the dataset changed since it "
            "was joined. Run `energon-dali prepare` on the metadataset."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.index, self.readers, self.shards)

    def __repr__(self) -> str:
        return f"JoinedReader({self.index.path}, {self.readers!r})"


class JoinedReads:
    """Reads joined samples in a planned order, ahead in the datasets where that helps; see PlannedReads.

    Args:
        reader: The datasets.
        columns: What reads ahead in each of them; None where samples are read when they are taken.
    """

    def __init__(self, reader: JoinedReader, columns: Sequence[PlannedReads | None]) -> None:
        self._reader = reader
        self._columns = columns
        self._ahead = [column for column in columns if column is not None]
        self.after_fork()
        drop_in_child(self)

    def after_fork(self) -> None:
        """Forgets all rows in a forked child, as the columns do."""
        self._rows: deque[tuple[int, int, tuple[Location, ...]]] = deque()  # (shard, row, one per dataset)

    def __len__(self) -> int:
        """Returns the number of rows that are planned and not taken."""
        return len(self._rows)

    def rows_wanted(self) -> int:
        """Returns how many more rows to plan now."""
        planned = len(self._rows)
        return max(column.rows_wanted() - (planned - len(column)) for column in self._ahead)

    def plan(self, shards: Sequence[int], samples: Sequence[int]) -> None:
        """Adds the next rows.

        Args:
            shards: Shards of the primary samples, as indices in its split part.
            samples: Rows.
        """
        for column, locations in zip(self._columns, found := self._reader.find(samples), strict=True):
            if column is not None:
                there = [location for location in locations if isinstance(location, tuple)]
                column.plan([shard for shard, _ in there], [sample for _, sample in there])
        self._rows.extend(zip(shards, samples, zip(*found, strict=True), strict=True))

    def issue(self, count: int | None = None) -> None:
        """Requests the next rows; None requests as many as the limits allow."""
        for column in self._ahead:
            column.issue(count)

    def is_next_read(self) -> bool:
        """Returns whether the bytes of the next sample are there; False where some are read when it is taken."""
        return len(self._ahead) == len(self._columns) and all(column.is_next_read() for column in self._ahead)

    def take(self) -> RawSample | DatasetError:
        """Returns the next sample, or the error that prevented reading it."""
        shard, row, locations = self._rows[0]
        found = tuple(self._take(column, location) for column, location in enumerate(locations))
        self._rows.popleft()
        return self._reader.join(shard, row, found)

    def _take(self, column: int, location: Location) -> RawSample | DatasetError | None:
        if not isinstance(location, tuple):
            return location
        reads = self._columns[column]
        if reads is not None:
            return reads.take()
        (raw,) = self._reader.readers[column].read([location[0]], [location[1]])
        return raw

    def clear(self) -> None:
        """Forgets all rows."""
        self._rows.clear()
        for column in self._ahead:
            column.clear()

    def close(self) -> None:
        """Forgets all rows, and stops reading."""
        self._rows.clear()
        for column in self._ahead:
            column.close()
