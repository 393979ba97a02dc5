"""JSONL files as datasets: one JSON value per line, located by the `.jsonl.idx` next to the file."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetError, DatasetFormatError, EnergonDaliError, ShardError, StoreUnavailableError
from energon_dali.plan.slices import Slices
from energon_dali.shards.index.extents import PartRun
from energon_dali.shards.index.jsonl_index import BLANK, INDEX_SUFFIX, read_jsonl_offsets
from energon_dali.shards.raw_sample import IndexedSample, RawSample
from energon_dali.shards.read_ahead import PlannedReads, read_planned
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.protocols import RangeReader
from energon_dali.shards.storage.store import current_scope

PART = "json"

RUN_BYTES = 1 << 20
"""On a local disk, neighbouring lines are read in one request of up to this size."""


class JsonlFile:
    """A prepared JSONL file: every line that is not blank is a crude sample with the part `json`.

    The key of a sample is the number of its line, without counting blank lines. There are no splits: every split part
    is the whole file. Picklable.

    Args:
        path: Local path or URL of the `.jsonl` file, with its `.jsonl.idx` next to it.

    Raises:
        DatasetFormatError: There is no index, or the file changed since it was indexed.
        StorageError: It cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str] | StoragePath) -> None:
        self.storage_path = StoragePath.of(path)
        self._offsets: npt.NDArray[np.uint64] | None = None
        self._check()

    @property
    def path(self) -> str:
        """Local path or URL of the file."""
        return self.storage_path.url

    @property
    def name(self) -> str:
        """Name of the file, used as the name of its only shard."""
        return self.storage_path.name

    @property
    def num_samples(self) -> int:
        """Number of lines that are not blank."""
        return len(self.offsets) - 1

    @property
    def offsets(self) -> npt.NDArray[np.uint64]:
        """uint64[num_samples + 1]: where each sample begins, and the size of the file; mapped if it is local.

        Raises:
            DatasetFormatError: There is no index.
            StorageError: It cannot be read.
        """
        if self._offsets is None:
            self._offsets = read_jsonl_offsets(self.storage_path)
        return self._offsets

    @property
    def uuid(self) -> str:
        """Identity of the index: its length, and a digest of its first and last offsets."""
        offsets = self.offsets
        ends = offsets[:4096].tobytes() + offsets[-4096:].tobytes()
        return f"{len(offsets) - 1}-{hashlib.blake2b(ends, digest_size=16).hexdigest()}"

    def split_ranges(self, split_part: str) -> Slices:
        """Returns the range of all samples, whatever the split part.

        Args:
            split_part: Ignored.
        """
        return Slices.whole_shards([self.num_samples])

    def _check(self) -> None:
        size = self._size()
        offsets = self.offsets
        if int(offsets[-1]) != size or (len(offsets) > 1 and int(offsets[0]) != 0):
            raise DatasetFormatError(
                f"{self.storage_path} has {size:,} bytes, and {self.name}{INDEX_SUFFIX} was made of "
                f"{int(offsets[-1]):,}. Run `energon-dali prepare {shlex.quote(str(self.storage_path))}`."
            )

    def _size(self) -> int:
        try:
            return self.storage_path.size()
        except FileNotFoundError as error:
            raise DatasetFormatError(f"{self.storage_path} is missing. Give the path of a .jsonl file.") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"storage_path": self.storage_path, "_offsets": None}

    def __repr__(self) -> str:
        return f"JsonlFile({self.path}, {self.num_samples} samples)"


class JsonlReader:
    """Reads samples of a JSONL file by index, with the interface of `ShardReader`.

    Picklable; each process opens the file on first use.

    Args:
        file: The file.
    """

    def __init__(self, file: JsonlFile) -> None:
        self.file = file
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._reader: RangeReader | None = None

    @property
    def is_remote(self) -> bool:
        """Whether requests wait for a network."""
        return not self.file.storage_path.is_local

    def read(self, shard_indices: Sequence[int], sample_indices: Sequence[int]) -> list[RawSample | DatasetError]:
        """Returns one entry per requested sample, in order: the sample, or the error that prevented reading it.

        Args:
            shard_indices: All 0: the file counts as one shard.
            sample_indices: Indices of the samples.

        Raises:
            StoreUnavailableError: The store returned only errors for too long.
        """
        if self.is_remote:
            return read_planned(self, shard_indices, sample_indices)
        try:
            reader = self._opened()
        except StoreUnavailableError:
            raise
        except DatasetError as error:
            return [error for _ in sample_indices]
        return [
            line if isinstance(line, DatasetError) else self._sample(index, line)
            for index, line in zip(sample_indices, self._local_lines(reader, sample_indices), strict=True)
        ]

    def _opened(self) -> RangeReader:
        """Returns the open file.

        Raises:
            DatasetError: It cannot be opened.
        """
        if self._pid != os.getpid():
            self._forget()
        try:
            reader = self._reader = self._reader or self.file.storage_path.open(int(self.file.offsets[-1]))
        except StoreUnavailableError:
            raise
        except (EnergonDaliError, OSError) as error:
            raise self.unreadable(0, error) from error
        return reader

    def planned_reads(self, window: int, lanes: int) -> PlannedReads | None:
        """Returns an object that reads ahead in a planned order; None for a local file.

        Args:
            window: Window of the order's shuffle, in samples.
            lanes: Number of its interleave lanes.
        """
        requests = current_scope().requests
        wanted = requests.is_allowed and (requests.is_wanted or self.is_remote)
        return PlannedReads(self, window, lanes) if wanted else None

    def expect_order(self, window: int, slice_length: float) -> None:
        """Does nothing: the index has one column."""

    def note_speed(self, seconds: float, num_samples: int, size: int) -> None:
        """Does nothing: neighbouring lines are read together."""

    def open_shards(self, numbers: Iterable[int], num_samples: int) -> None:
        """Does nothing: there is one file."""

    def runs(self, shard: int, sample: int, seed: int | None = None) -> tuple[RangeReader, list[PartRun]]:
        """Returns the file, and where a sample is in it; see PlannedSource. The seed has no effect.

        Raises:
            DatasetError: The file cannot be opened, or has no such sample.
        """
        reader, extent = self._opened(), self._extent(sample)
        if isinstance(extent, DatasetError):
            raise extent
        return reader, [(0, 1, *extent)]

    def assemble(self, shard: int, sample: int, pieces: Sequence[tuple[PartRun, bytes | memoryview, int]]) -> RawSample:
        """Returns a sample of the bytes that were read for it; see PlannedSource.

        Raises:
            DatasetError: They are no longer one line.
        """
        ((_, _, offset, size), data, base) = pieces[0]
        found = self._sample(sample, bytes(data[offset - base : offset - base + size]))
        if isinstance(found, DatasetError):
            raise found
        return found

    @property
    def shard_starts(self) -> npt.NDArray[np.int64]:
        """int64[1]: 0, the number of the first sample."""
        return np.zeros(1, np.int64)

    def index_of(self, shard_index: int, sample_index: int) -> int:
        """Returns the index of a sample in the file."""
        return sample_index

    def locate(self, index: int) -> tuple[int, int]:
        """Returns (0, index of the sample).

        Raises:
            DatasetError: There is no such sample.
        """
        if not 0 <= index < self.file.num_samples:
            raise DatasetError(
                f"{self.file.path} has {self.file.num_samples} samples, and sample {index} was requested. The key "
                "belongs to other data."
            )
        return 0, index

    def name(self, shard_index: int, sample_index: int) -> tuple[str, str]:
        """Returns (name of the file, key of the sample)."""
        return self.file.name, str(sample_index)

    def indexed(self, shard_index: int, sample_index: int) -> IndexedSample:
        """Returns what the index has on a sample: the size of its line.

        Raises:
            DatasetFormatError: The index is damaged, or has no such sample.
        """
        extent = self._extent(sample_index)
        if isinstance(extent, DatasetError):
            raise extent
        return IndexedSample(self.file.name, str(sample_index), {"json": extent[1]})

    def close(self) -> None:
        """Closes the file; it is opened again when needed."""
        if self._pid == os.getpid() and self._reader is not None:
            self._reader.close()
        self._forget()

    def _extent(self, index: int) -> tuple[int, int] | DatasetError:
        """Returns (offset, size) of a sample."""
        offsets = self.file.offsets
        if not 0 <= index < len(offsets) - 1:
            return ShardError(
                f"{self.file.path} has {len(offsets) - 1} samples, and sample {index} was requested. The key "
                "belongs to other data.",
                self.file.name,
            )
        first, end = int(offsets[index]), int(offsets[index + 1])
        if not first < end <= int(offsets[-1]):
            return DatasetFormatError(f"{self.file.storage_path}{INDEX_SUFFIX} is damaged at {index}. {self._remedy()}")
        return first, end - first

    def _local_lines(self, reader: RangeReader, indices: Sequence[int]) -> Iterator[bytes | DatasetError]:
        """Yields the lines; neighbours that are requested one after the other are read together."""
        extents = [self._extent(index) for index in indices]
        position = 0
        while position < len(extents):
            extent = extents[position]
            if isinstance(extent, DatasetError):
                yield extent
                position += 1
                continue
            start, end, stop = extent[0], sum(extent), position + 1
            while stop < len(extents):
                following = extents[stop]
                if isinstance(following, DatasetError) or following[0] != end or sum(following) - start > RUN_BYTES:
                    break
                end, stop = sum(following), stop + 1
            try:
                data = reader.read_at(start, end - start)
            except StoreUnavailableError:
                raise
            except (EnergonDaliError, OSError) as error:
                yield from (self.unreadable(0, error) for _ in range(position, stop))
            else:
                for offset, size in extents[position:stop]:  # type: ignore[misc]  # no errors among them
                    yield data[offset - start : offset - start + size]
            position = stop

    def _sample(self, index: int, line: bytes) -> RawSample | DatasetError:
        """Returns a sample, after checking that it is still exactly one line."""
        content = line.strip(BLANK)
        size = int(self.file.offsets[index + 1] - self.file.offsets[index])
        is_last = index == len(self.file.offsets) - 2
        if len(line) != size or not content or b"\n" in content or not (line.endswith(b"\n") or is_last):
            return ShardError(
                f"{self.file.path} changed since it was indexed: sample {index} is no longer one line. "
                f"{self._remedy()}",
                self.file.name,
            )
        return RawSample(str(index), self.file.name, index, 0, index, {PART: content})

    def unreadable(self, shard: int, error: Exception) -> ShardError:
        """Returns the error for a file that cannot be read."""
        found = ShardError(f"{self.file.path} cannot be read: {error}", self.file.name)
        found.__cause__ = error
        return found

    def _remedy(self) -> str:
        return f"Run `energon-dali prepare {shlex.quote(str(self.file.path))}`."

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file,)

    def __repr__(self) -> str:
        return f"JsonlReader({self.file!r})"
