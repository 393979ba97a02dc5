"""Reads samples of a dataset by shard and index, as bytes."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from energon_dali.errors import DatasetError, EnergonDaliError, ShardError, StoreUnavailableError
from energon_dali.shards.folder import WebdatasetFolder
from energon_dali.shards.index.extents import PartLayout
from energon_dali.shards.index.tar_index import missing_shard
from energon_dali.shards.ranged_reads import RangedReads, Requested
from energon_dali.shards.storage.path import RangeReader
from energon_dali.shards.storage.store import open_shard

MAX_OPEN_SHARDS = 128


@dataclass(slots=True, eq=False)
class RawSample:
    """A sample as it was read; nothing is decoded."""

    key: str
    """The part of its file names before the first dot."""
    shard: str
    """Path of its shard within the dataset."""
    index: int
    """Index in the whole dataset, with shards in the order of the index."""
    shard_index: int
    """Index of its shard."""
    sample_index: int
    """Index within its shard."""
    parts: dict[str, bytes | memoryview]
    """Content by part name, in file order; only the wanted parts. Large ones are views of what was read."""

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {len(content)} bytes" for name, content in self.parts.items())
        return f"RawSample({self.key!r} of {self.shard}, {parts})"


class _OpenShard:
    """A shard that is open for reading."""

    __slots__ = ("first_index", "layout", "name", "number", "reader")

    def __init__(self, number: int, name: str, first_index: int, layout: PartLayout, reader: RangeReader) -> None:
        self.number = number
        self.name = name
        self.first_index = first_index
        self.layout = layout
        self.reader = reader


class ShardReader:
    """Reads samples of a dataset: only the wanted parts, at the offsets in the index.

    The tar header before each part is read too and compared, so that a shard that changed since it was indexed is an
    error and never returns bytes of another sample. Picklable; each process opens the files on first use. Not
    thread-safe.

    Args:
        folder: The dataset.
        part_filter: Returns whether a part is wanted, given its name; picklable if the reader has to be. None takes
            all parts.
        max_open_shards: Number of shards that stay open; the least recently used one is closed.
    """

    def __init__(
        self,
        folder: WebdatasetFolder,
        part_filter: Callable[[str], bool] | None = None,
        *,
        max_open_shards: int = MAX_OPEN_SHARDS,
    ) -> None:
        self.folder = folder
        self.part_filter = part_filter
        self.max_open_shards = max_open_shards
        self._starts = [0, *accumulate(folder.shard_counts)]
        self._remote = None if folder.root.is_local else RangedReads()
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        self._pid = os.getpid()

    @property
    def is_remote(self) -> bool:
        """Whether requests wait for a network, so that several readers are best used at the same time."""
        return self._remote is not None

    def read(self, shard_indices: Sequence[int], sample_indices: Sequence[int]) -> list[RawSample | DatasetError]:
        """Returns one entry per requested sample, in order: the sample, or the error that prevented reading it.

        Args:
            shard_indices: Indices of the shards in `folder.shard_names`.
            sample_indices: Indices of the samples within them.

        Raises:
            StoreUnavailableError: The store returned only errors for too long.
        """
        if self._pid != os.getpid():  # forked: pread shares no file position, but closing would affect the parent
            self._open = OrderedDict()
            self._remote = None if self._remote is None else RangedReads()
            self._pid = os.getpid()
        if self._remote is not None:
            return self._read_remote(self._remote, shard_indices, sample_indices)
        results: list[RawSample | DatasetError] = []
        opened = self._open
        failed: dict[int, DatasetError] = {}
        last_number, shard = -1, None
        for number, sample in zip(shard_indices, sample_indices, strict=True):
            try:
                if number != last_number:
                    if number in failed:
                        results.append(failed[number])
                        continue
                    last_number = -1
                    shard = opened.get(number) or self._open_shard(number, failed)
                    opened.move_to_end(number)
                    last_number = number
                assert shard is not None
                results.append(_read_local(shard, sample))
            except StoreUnavailableError:
                raise
            except DatasetError as error:
                results.append(error)
            except (EnergonDaliError, OSError) as error:
                results.append(self._unreadable(number, error))
        return results

    def index_of(self, shard_index: int, sample_index: int) -> int:
        """Returns the index of a sample in the whole dataset, with shards in the order of the index."""
        return self._starts[shard_index] + sample_index

    def locate(self, index: int) -> tuple[int, int]:
        """Returns (shard index, sample index) for an index in the whole dataset.

        Raises:
            DatasetError: There is no such sample.
        """
        if not 0 <= index < self._starts[-1]:
            raise DatasetError(
                f"{self.folder.path} has {self._starts[-1]} samples, and sample {index} was requested. The key belongs "
                "to other data."
            )
        shard = bisect_right(self._starts, index) - 1
        return shard, index - self._starts[shard]

    def name(self, shard_index: int, sample_index: int) -> tuple[str, str]:
        """Returns (name of the shard, key of the sample), "" for what is not known; never raises."""
        names = self.folder.shard_names
        if not 0 <= shard_index < len(names):
            return "", ""
        try:
            # Called for what could not be read: reading a remote index again would repeat all retries.
            index = self.folder.index
            extents = index.known(shard_index) if self.is_remote else index.shard(shard_index)
            if extents is None:
                return names[shard_index], ""
            key = extents.key(sample_index) if 0 <= sample_index < extents.num_samples else ""
        except (EnergonDaliError, OSError, ValueError):
            key = ""
        return names[shard_index], key

    def close(self) -> None:
        """Closes all open files; they are opened again when needed."""
        if self._pid == os.getpid():
            for shard in self._open.values():
                shard.reader.close()
        self._open = OrderedDict()
        self.folder.index.close()
        if self._remote is not None:
            self._remote.close()

    def _open_shard(self, number: int, failed: dict[int, DatasetError]) -> _OpenShard:
        """Opens a shard; an error is kept in `failed`, so that one read tries only once."""
        try:
            return self._try_open(number)
        except StoreUnavailableError:
            raise
        except DatasetError as error:
            failed[number] = error
            raise
        except (EnergonDaliError, OSError) as error:
            failed[number] = self._unreadable(number, error)
            raise failed[number] from error

    def _try_open(self, number: int) -> _OpenShard:
        if not 0 <= number < len(self.folder.shard_names):
            raise DatasetError(
                f"{self.folder.path} has {len(self.folder.shard_names)} shards, and shard {number} was requested."
            )
        folder = self.folder
        name = folder.shard_names[number]
        extents = folder.index.shard(number)
        layout = PartLayout(name, extents, self.part_filter)
        try:
            reader = open_shard(folder.root / name, extents.shard_bytes if extents.shard_bytes >= 0 else None)
        except FileNotFoundError as error:
            raise missing_shard(folder.root, name) from error
        if extents.shard_bytes not in (-1, reader.size):
            size = reader.size
            reader.close()
            raise layout.changed(f"it has {size} bytes and had {extents.shard_bytes}")
        if extents.shard_bytes < 0 and extents.end_of_parts() > reader.size:
            size = reader.size
            reader.close()
            raise layout.changed(f"it has {size} bytes, and the index needs {extents.end_of_parts()}")
        shard = _OpenShard(number, name, self._starts[number], layout, reader)
        self._open[number] = shard
        if len(self._open) > self.max_open_shards:
            _, oldest = self._open.popitem(last=False)
            oldest.reader.close()
        return shard

    def _read_remote(
        self, remote: RangedReads, shard_indices: Sequence[int], sample_indices: Sequence[int]
    ) -> list[RawSample | DatasetError]:
        """Requests the runs of all samples at once, shard by shard, and assembles the samples."""
        results: dict[int, RawSample | DatasetError] = {}
        failed: dict[int, DatasetError] = {}
        by_shard: dict[int, list[int]] = {}
        for position, number in enumerate(shard_indices):
            by_shard.setdefault(number, []).append(position)
        requested: list[tuple[_OpenShard, Requested]] = []
        for number, positions in by_shard.items():
            try:
                shard = self._open.get(number) or self._open_shard(number, failed)
                self._open.move_to_end(number)
            except DatasetError as error:
                results.update(dict.fromkeys(positions, error))
                continue
            valid = []
            for position in positions:
                try:
                    _check_sample(shard, sample_indices[position])
                    valid.append(position)
                except DatasetError as error:
                    results[position] = error
            runs_of = [(position, shard.layout.runs(sample_indices[position])) for position in valid]
            requested.append((shard, remote.request(shard.reader, runs_of)))
        for shard, responses in requested:
            for position, runs in responses:
                sample = sample_indices[position]
                try:
                    key = shard.layout.extents.key(sample)
                    parts: dict[str, bytes | memoryview] = {}
                    for run, (data, base) in runs:
                        shard.layout.extract(key, run, data(), base, parts)
                    results[position] = RawSample(
                        key, shard.name, shard.first_index + sample, shard.number, sample, parts
                    )
                except StoreUnavailableError:
                    raise
                except DatasetError as error:
                    results[position] = error
                except (EnergonDaliError, OSError) as error:
                    results[position] = self._unreadable(shard.number, error)
        return [results[position] for position in range(len(shard_indices))]

    def _unreadable(self, number: int, error: Exception) -> ShardError:
        name = self.folder.shard_names[number]
        found = ShardError(f"{self.folder.root / name} cannot be read: {error}", name)
        found.__cause__ = error
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "part_filter": self.part_filter, "max_open_shards": self.max_open_shards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], state["part_filter"], max_open_shards=state["max_open_shards"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"ShardReader({self.folder!r})"


def _check_sample(shard: _OpenShard, sample: int) -> None:
    count = shard.layout.extents.num_samples
    if not 0 <= sample < count:
        raise ShardError(
            f"{shard.name} has {count} samples, and sample {sample} was requested. The key belongs to other data.",
            shard.name,
        )


def _read_local(shard: _OpenShard, sample: int) -> RawSample:
    layout = shard.layout
    if not 0 <= sample < layout.extents.num_samples:
        _check_sample(shard, sample)
    key = layout.extents.key(sample)
    read_at = shard.reader.read_at
    parts: dict[str, bytes | memoryview] = {}
    for run in layout.runs(sample):
        start = run[2]
        layout.extract(key, run, read_at(start, run[3]), start, parts)
    return RawSample(key, shard.name, shard.first_index + sample, shard.number, sample, parts)
