"""Reads samples of a dataset by shard and index."""

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
from energon_dali.shards.ranged_reads import Asked, RangedReads
from energon_dali.shards.storage.path import RangeReader

MAX_OPEN_SHARDS = 128


@dataclass(slots=True, eq=False)
class RawSample:
    """A sample as it was read; nothing is decoded."""

    key: str
    """What is before the first dot of its files' names."""
    shard: str
    """Path of its shard inside the dataset."""
    index: int
    """Number in the whole dataset, shards in the order of the index."""
    shard_index: int
    """Number of its shard."""
    sample_index: int
    """Number inside its shard."""
    parts: dict[str, bytes | memoryview]
    """Part name to content, in file order; only the parts asked for. Large ones are views of what was read."""

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
    """Reads samples of a dataset: only the wanted parts, at the places that the index gives.

    Before each part stands a header in the tar, which is read along and compared, so that a shard that changed since
    it was indexed
    gives an error and never another sample's bytes. Picklable; files are opened when first needed, in each process
    anew. For one thread.

    Args:
        folder: The dataset.
        part_filter: Says which parts are wanted, by name; picklable if the reader has to be. None takes all.
        max_open_shards: Shards kept open; the one unused for longest is closed.
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
        """Whether each request waits for a network, so that several readers are best asked at the same time."""
        return self._remote is not None

    def read(self, shard_indices: Sequence[int], sample_indices: Sequence[int]) -> list[RawSample | DatasetError]:
        """Returns one entry per asked sample, in order: the sample, or the error that stood in its way.

        Args:
            shard_indices: Numbers of the shards, as in `folder.shard_names`.
            sample_indices: Numbers of the samples inside them.

        Raises:
            StoreUnavailableError: The store gave nothing but errors for too long.
        """
        if self._pid != os.getpid():  # forked: file positions do not matter to pread, but closing does
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
        """Returns the number of a sample in the whole dataset, shards in the order of the index."""
        return self._starts[shard_index] + sample_index

    def locate(self, index: int) -> tuple[int, int]:
        """Returns (shard index, sample index) of a sample's number in the whole dataset.

        Raises:
            DatasetError: There is no such sample.
        """
        if not 0 <= index < self._starts[-1]:
            raise DatasetError(
                f"{self.folder.path} has {self._starts[-1]} samples, and sample {index} was asked for. The key is of "
                "other data."
            )
        shard = bisect_right(self._starts, index) - 1
        return shard, index - self._starts[shard]

    def name(self, shard_index: int, sample_index: int) -> tuple[str, str]:
        """Returns (name of the shard, key of the sample) as far as they are known, "" else; never raises."""
        names = self.folder.shard_names
        if not 0 <= shard_index < len(names):
            return "", ""
        try:
            # Called for what could not be read: asking a remote index once more would cost its retries again.
            index = self.folder.index
            extents = index.known(shard_index) if self.is_remote else index.shard(shard_index)
            if extents is None:
                return names[shard_index], ""
            key = extents.key(sample_index) if 0 <= sample_index < extents.num_samples else ""
        except (EnergonDaliError, OSError, ValueError):
            key = ""
        return names[shard_index], key

    def close(self) -> None:
        """Lets go of all open files; they are opened anew when needed."""
        if self._pid == os.getpid():
            for shard in self._open.values():
                shard.reader.close()
        self._open = OrderedDict()
        self.folder.index.close()
        if self._remote is not None:
            self._remote.close()

    def _open_shard(self, number: int, failed: dict[int, DatasetError]) -> _OpenShard:
        """Opens a shard; a failure is kept in `failed`, so that one read asks only once."""
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
                f"{self.folder.path} has {len(self.folder.shard_names)} shards, and shard {number} was asked for."
            )
        folder = self.folder
        name = folder.shard_names[number]
        extents = folder.index.shard(number)
        layout = PartLayout(name, extents, self.part_filter)
        try:
            reader = (folder.root / name).open()
        except FileNotFoundError as error:
            raise missing_shard(folder.root, name) from error
        if extents.shard_bytes not in (-1, reader.size):
            size = reader.size
            reader.close()
            raise layout.changed(f"it has {size} bytes and had {extents.shard_bytes}")
        if extents.shard_bytes < 0 and extents.end_of_parts() > reader.size:
            size = reader.size
            reader.close()
            raise layout.changed(f"it has {size} bytes, and the index names {extents.end_of_parts()}")
        shard = _OpenShard(number, name, self._starts[number], layout, reader)
        self._open[number] = shard
        if len(self._open) > self.max_open_shards:
            _, oldest = self._open.popitem(last=False)
            oldest.reader.close()
        return shard

    def _read_remote(
        self, remote: RangedReads, shard_indices: Sequence[int], sample_indices: Sequence[int]
    ) -> list[RawSample | DatasetError]:
        """Asks for the pieces of all samples at once, shard by shard, and puts them together."""
        results: dict[int, RawSample | DatasetError] = {}
        failed: dict[int, DatasetError] = {}
        by_shard: dict[int, list[int]] = {}
        for place, number in enumerate(shard_indices):
            by_shard.setdefault(number, []).append(place)
        asked: list[tuple[_OpenShard, Asked]] = []
        for number, places in by_shard.items():
            try:
                shard = self._open.get(number) or self._open_shard(number, failed)
                self._open.move_to_end(number)
            except DatasetError as error:
                results.update(dict.fromkeys(places, error))
                continue
            valid = []
            for place in places:
                try:
                    _check_sample(shard, sample_indices[place])
                    valid.append(place)
                except DatasetError as error:
                    results[place] = error
            pieces_of = [(place, shard.layout.pieces(sample_indices[place])) for place in valid]
            asked.append((shard, remote.ask(shard.reader, pieces_of)))
        for shard, answers in asked:
            for place, pieces in answers:
                sample = sample_indices[place]
                try:
                    key = shard.layout.extents.key(sample)
                    parts: dict[str, bytes | memoryview] = {}
                    for piece, (data, base) in pieces:
                        shard.layout.take(key, piece, data(), base, parts)
                    results[place] = RawSample(key, shard.name, shard.first_index + sample, shard.number, sample, parts)
                except StoreUnavailableError:
                    raise
                except DatasetError as error:
                    results[place] = error
                except (EnergonDaliError, OSError) as error:
                    results[place] = self._unreadable(shard.number, error)
        return [results[place] for place in range(len(shard_indices))]

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
            f"{shard.name} has {count} samples, and sample {sample} was asked for. The key is of other data.",
            shard.name,
        )


def _read_local(shard: _OpenShard, sample: int) -> RawSample:
    layout = shard.layout
    if not 0 <= sample < layout.extents.num_samples:
        _check_sample(shard, sample)
    key = layout.extents.key(sample)
    read_at = shard.reader.read_at
    parts: dict[str, bytes | memoryview] = {}
    for piece in layout.pieces(sample):
        start = piece[2]
        layout.take(key, piece, read_at(start, piece[3]), start, parts)
    return RawSample(key, shard.name, shard.first_index + sample, shard.number, sample, parts)
