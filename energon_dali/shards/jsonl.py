"""JSONL files as datasets: one JSON value per line, found by the offsets in the `.jsonl.idx` beside the file."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.errors import DatasetError, DatasetFormatError, EnergonDaliError, ShardError, StoreUnavailableError
from energon_dali.plan import Slices
from energon_dali.shards.index.jsonl_index import BLANK, INDEX_SUFFIX, read_jsonl_offsets
from energon_dali.shards.ranged_reads import RangedReads
from energon_dali.shards.reader import RawSample
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.path import RangeReader

PART = "json"

RUN_BYTES = 1 << 20
"""Neighbouring lines are read in one request up to this size, on a local disk."""


class JsonlFile:
    """A prepared JSONL file: every line that is not blank is a crude sample with the part `json`.

    The key of a sample is the number of its line, blank ones not counted. There are no splits: every part of a split
    is the whole file. Picklable.

    Args:
        path: Local path or URL of the `.jsonl` file, with its `.jsonl.idx` beside it.

    Raises:
        DatasetFormatError: There is no index, or it is not of this file as it is now.
        StorageError: It cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str] | StoragePath) -> None:
        self.place = StoragePath.of(path)
        self._offsets: npt.NDArray[np.uint64] | None = None
        self._check()

    @property
    def path(self) -> str:
        """Local path or URL of the file."""
        return self.place.url

    @property
    def name(self) -> str:
        """Name of the file, which stands where tar shards have theirs."""
        return self.place.name

    @property
    def num_samples(self) -> int:
        """Number of lines that are not blank."""
        return len(self.offsets) - 1

    @property
    def offsets(self) -> npt.NDArray[np.uint64]:
        """uint64[num_samples + 1]: where each sample begins, and the size of the file; mapped from a local disk.

        Raises:
            DatasetFormatError: There is no index.
            StorageError: It cannot be read.
        """
        if self._offsets is None:
            self._offsets = read_jsonl_offsets(self.place)
        return self._offsets

    @property
    def uuid(self) -> str:
        """Identity of the index: its length and a digest of its ends."""
        offsets = self.offsets
        ends = offsets[:4096].tobytes() + offsets[-4096:].tobytes()
        return f"{len(offsets) - 1}-{hashlib.blake2b(ends, digest_size=16).hexdigest()}"

    def split_ranges(self, split_part: str) -> Slices:
        """Returns the range of all samples, whatever the part of the split.

        Args:
            split_part: Such as "train"; not looked at.
        """
        return Slices.whole_shards([self.num_samples])

    def _check(self) -> None:
        size = self._size()
        offsets = self.offsets
        if int(offsets[-1]) != size or (len(offsets) > 1 and int(offsets[0]) != 0):
            raise DatasetFormatError(
                f"{self.place} has {size:,} bytes, and {self.place.name}{INDEX_SUFFIX} was made of {int(offsets[-1]):,}"
                f". Run `energon-dali prepare {shlex.quote(str(self.place))}`."
            )

    def _size(self) -> int:
        try:
            return self.place.size()
        except FileNotFoundError as error:
            raise DatasetFormatError(f"{self.place} is missing. Give the path of a .jsonl file.") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "_offsets": None}

    def __repr__(self) -> str:
        return f"JsonlFile({self.path}, {self.num_samples} samples)"


class JsonlReader:
    """Reads samples of a JSONL file by number; what `SourceDataset` asks of a reader.

    Picklable; the file is opened when first needed, in each process anew.

    Args:
        file: The file.
    """

    def __init__(self, file: JsonlFile) -> None:
        self.file = file
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._reader: RangeReader | None = None
        self._remote = None if self.file.place.is_local else RangedReads()

    def read(self, shard_indices: Sequence[int], sample_indices: Sequence[int]) -> list[RawSample | DatasetError]:
        """Returns one entry per asked sample, in order: the sample, or the error that stood in its way.

        Args:
            shard_indices: All 0: the file counts as one shard.
            sample_indices: Numbers of the samples.

        Raises:
            StoreUnavailableError: The store gave nothing but errors for too long.
        """
        if self._pid != os.getpid():
            self._forget()
        try:
            reader = self._reader = self._reader or self.file.place.open()
        except StoreUnavailableError:
            raise
        except (EnergonDaliError, OSError) as error:
            return [self._unreadable(error) for _ in sample_indices]
        lines = self._local_lines if self._remote is None else self._remote_lines
        return [
            line if isinstance(line, DatasetError) else self._sample(index, line)
            for index, line in zip(sample_indices, lines(reader, sample_indices), strict=True)
        ]

    def index_of(self, shard_index: int, sample_index: int) -> int:
        """Returns the number of a sample in the file."""
        return sample_index

    def locate(self, index: int) -> tuple[int, int]:
        """Returns (0, number of the sample).

        Raises:
            DatasetError: There is no such sample.
        """
        if not 0 <= index < self.file.num_samples:
            raise DatasetError(
                f"{self.file.path} has {self.file.num_samples} samples, and sample {index} was asked for. The key is "
                "of other data."
            )
        return 0, index

    def name(self, shard_index: int, sample_index: int) -> tuple[str, str]:
        """Returns (name of the file, key of the sample)."""
        return self.file.name, str(sample_index)

    def close(self) -> None:
        """Lets go of the file; it is opened anew when needed."""
        if self._pid == os.getpid():
            if self._reader is not None:
                self._reader.close()
            if self._remote is not None:
                self._remote.close()
        self._forget()

    def _extent(self, index: int) -> tuple[int, int] | DatasetError:
        """Returns (offset, size) of a sample."""
        offsets = self.file.offsets
        if not 0 <= index < len(offsets) - 1:
            return ShardError(
                f"{self.file.path} has {len(offsets) - 1} samples, and sample {index} was asked for. The key is of "
                "other data.",
                self.file.name,
            )
        first, end = int(offsets[index]), int(offsets[index + 1])
        if not first < end <= int(offsets[-1]):
            return DatasetFormatError(f"{self.file.place}{INDEX_SUFFIX} is damaged at {index}. {self._cure()}")
        return first, end - first

    def _local_lines(self, reader: RangeReader, indices: Sequence[int]) -> Iterator[bytes | DatasetError]:
        """Yields the lines; neighbours that are asked for one after the other are read together."""
        extents = [self._extent(index) for index in indices]
        place = 0
        while place < len(extents):
            extent = extents[place]
            if isinstance(extent, DatasetError):
                yield extent
                place += 1
                continue
            start, end, behind = extent[0], sum(extent), place + 1
            while behind < len(extents):
                following = extents[behind]
                if isinstance(following, DatasetError) or following[0] != end or sum(following) - start > RUN_BYTES:
                    break
                end, behind = sum(following), behind + 1
            try:
                data = reader.read_at(start, end - start)
            except StoreUnavailableError:
                raise
            except (EnergonDaliError, OSError) as error:
                yield from (self._unreadable(error) for _ in range(place, behind))
            else:
                for offset, size in extents[place:behind]:  # type: ignore[misc]  # no errors among them
                    yield data[offset - start : offset - start + size]
            place = behind

    def _remote_lines(self, reader: RangeReader, indices: Sequence[int]) -> Iterator[bytes | DatasetError]:
        """Yields the lines, all asked for at once."""
        assert self._remote is not None
        found: dict[int, bytes | DatasetError] = {}
        wanted = []
        for place, index in enumerate(indices):
            extent = self._extent(index)
            if isinstance(extent, DatasetError):
                found[place] = extent
            else:
                wanted.append((place, [(0, 1, *extent)]))
        for place, [(piece, (data, base))] in self._remote.ask(reader, wanted):
            try:
                found[place] = data()[piece[2] - base : piece[2] - base + piece[3]]
            except StoreUnavailableError:
                raise
            except (EnergonDaliError, OSError) as error:
                found[place] = self._unreadable(error)
        return (found[place] for place in range(len(indices)))

    def _sample(self, index: int, line: bytes) -> RawSample | DatasetError:
        """Returns a sample, after checking that what was read is the one line that was indexed."""
        content = line.strip(BLANK)
        size = int(self.file.offsets[index + 1] - self.file.offsets[index])
        is_last = index == len(self.file.offsets) - 2
        if len(line) != size or not content or b"\n" in content or not (line.endswith(b"\n") or is_last):
            return ShardError(
                f"{self.file.path} changed since it was indexed: sample {index} is no longer one line. {self._cure()}",
                self.file.name,
            )
        return RawSample(str(index), self.file.name, index, 0, index, {PART: content})

    def _unreadable(self, error: Exception) -> ShardError:
        found = ShardError(f"{self.file.path} cannot be read: {error}", self.file.name)
        found.__cause__ = error
        return found

    def _cure(self) -> str:
        return f"Run `energon-dali prepare {shlex.quote(str(self.file.path))}`."

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["file"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"JsonlReader({self.file!r})"
