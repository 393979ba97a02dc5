"""Reads the samples of several datasets that a join index joins."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetError, ShardError
from energon_dali.metadataset.join.index_file import JoinIndexFile
from energon_dali.metadataset.subset import Subset
from energon_dali.plan import Slices
from energon_dali.plan.rng import Int64Array
from energon_dali.shards import RawSample, ShardReader
from energon_dali.shards.index.tar_index import read_tar_index

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
        rows: Int64Array = np.array(table[np.asarray(sample_indices, np.int64)])  # [n, columns, 3]
        columns = [self._read_column(column, rows[:, column]) for column in range(len(self.readers))]
        return [
            self._join(shard, row, found)
            for shard, row, found in zip(shard_indices, sample_indices, zip(*columns, strict=True), strict=True)
        ]

    def _read_column(self, column: int, rows: Int64Array) -> list[RawSample | DatasetError | None]:
        """Returns the samples of one dataset; rows is int64[n, 3]."""
        results: list[RawSample | DatasetError | None] = [None] * len(rows)
        positions, shards, samples = [], [], []
        for position, (split_index, offset, _) in enumerate(rows.tolist()):
            if split_index < 0:
                continue
            try:
                shard, sample = self._find(column, split_index, offset)
            except DatasetError as error:
                results[position] = error
                continue
            positions.append(position)
            shards.append(shard)
            samples.append(sample)
        for position, raw in zip(positions, self.readers[column].read(shards, samples), strict=True):
            results[position] = raw
        return results

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
            offsets = cache[shard] = read_tar_index(folder.root, folder.shard_names[shard])
            if len(cache) > CACHED_SHARDS:
                cache.popitem(last=False)
        cache.move_to_end(shard)
        # Bytes before the first sample belong to it.
        sample = int(np.searchsorted(offsets[1:-1], np.uint64(offset), side="right"))
        if sample and int(offsets[sample]) != offset:
            raise self._changed(column, f"a sample at byte {offset} of {folder.shard_names[shard]}")
        return shard, sample

    def _join(
        self, shard: int, row: int, found: tuple[RawSample | DatasetError | None, ...]
    ) -> JoinedRaw | DatasetError:
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

    def __getstate__(self) -> dict[str, Any]:
        return {"index": self.index, "readers": self.readers, "shards": self.shards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["index"], state["readers"], state["shards"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"JoinedReader({self.index.path}, {self.readers!r})"
