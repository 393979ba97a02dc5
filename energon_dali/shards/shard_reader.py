"""Reads samples of a dataset by shard and index, as bytes."""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from energon_dali.errors import DatasetError, EnergonDaliError, ShardError, StoreUnavailableError
from energon_dali.plan.rng import Int64Array
from energon_dali.shards.folder import WebdatasetFolder
from energon_dali.shards.index.extents import PartLayout, check_member
from energon_dali.shards.index.tar_index import missing_shard
from energon_dali.shards.index.tar_scan import TAR_BLOCK_BYTES
from energon_dali.shards.part_source import PartSource
from energon_dali.shards.ranged_part import RangeChooser, RangedPart, RangeRun, Run
from energon_dali.shards.raw_sample import IndexedSample, RawSample
from energon_dali.shards.read_ahead import PlannedReads, read_planned
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.local import LocalReader
from energon_dali.shards.storage.protocols import RangeReader
from energon_dali.shards.storage.request_pool import call_together
from energon_dali.shards.storage.store import current_scope, open_shard

MAX_OPEN_SHARDS = 12_288
"""Shards of which all readers of a process together know the layout, of 3 to 4 KB each. One more costs tens of
microseconds."""

_PAGES_KEPT_FOR = 1024
"""Scattered samples after which the pages of the index that they touched, about ten each, are given back."""
_PAGES_KEPT_FOR_NEAR = 8192
"""The same for samples that are near each other."""

_NEAR_SLICES = 64
"""Slices within a window up to which the pages of the index that they use may stay mapped, some hundreds of KB each."""

_SLOW_SECONDS_PER_SAMPLE = 0.001
_SLOW_BYTES_PER_SECOND = 300e6
_SLOW_READS = 4
"""Reads in a row that take longer than these two allow mean that a disk is slow."""

CHUNK_BITS = 16
CHUNK_BYTES = 1 << CHUNK_BITS
"""Reading this much from the page cache takes about five times as long as reading 800 bytes."""
FEWEST_RANGED_BYTES = 256 << 10
"""Smaller parts are read whole, whatever is wanted of them."""
SMALL_BYTES = 4096
"""Larger ranges are read alone: views of them would keep whole chunks in memory."""
KEPT_CHUNK_BYTES = 16 << 20
"""Most memory of all chunks of this process."""
_FEW_SAMPLES = 8
"""Samples that are read together, below which no chunk is read: a blend takes one sample of each of its datasets."""
_TRIED_CHUNKS = 64
_LEAST_USES = 8
"""Mean number of samples that are taken out of a chunk, below which no more chunks are read."""

_opened: deque[tuple[weakref.ref[ShardReader], int]] = deque()
"""The shards that were opened, oldest first."""
_kept_chunks: deque[tuple[dict[int, bytes], int]] = deque()
"""The chunks that were read, oldest first: where each is kept, and under which number."""


class NearChunks:
    """Decides for one dataset whether small parts are taken out of chunks of local files, which are read once.

    A sample of some hundred bytes takes less time to parse than a read takes, even from the page cache. Where the
    window of the shuffle stays within few slices, the samples of a chunk are wanted soon after each other. All datasets
    of a process share the memory.
    """

    def __init__(self) -> None:
        self.are_expected = False
        """Whether the samples of a chunk are expected soon after each other."""
        self.are_wanted = False
        """Whether the samples of the current read are taken out of chunks."""
        self._chunks_read = 0
        self._samples_read = 0

    def begin_read(self, num_samples: int) -> None:
        """Decides how samples that are read together are read; gives up if chunks were read for too few of them."""
        self.are_wanted = self.are_expected and num_samples >= _FEW_SAMPLES
        if not self.are_wanted:
            return
        self._samples_read += num_samples
        if self._chunks_read >= _TRIED_CHUNKS:
            self.are_expected = self.are_wanted = self._samples_read >= self._chunks_read * _LEAST_USES
            self._chunks_read = self._samples_read = 0

    def read(self, reader: LocalReader, number: int, kept: dict[int, bytes]) -> bytes:
        """Returns a chunk of a file, and keeps it; shorter at the end of the file.

        One that cannot be read is empty: its samples are then read alone, so that a bad sector loses only the one that
        it is in.

        Args:
            reader: The file.
            number: Number of the chunk.
            kept: The chunks of the file that are in memory, by number. Receives this one.
        """
        start = number << CHUNK_BITS
        chunk = kept[number] = reader.try_read(start, max(0, min(CHUNK_BYTES, reader.size - start))) or b""
        self._chunks_read += 1
        _kept_chunks.append((kept, number))
        while len(_kept_chunks) * CHUNK_BYTES > KEPT_CHUNK_BYTES:
            try:
                oldest, oldest_number = _kept_chunks.popleft()
            except IndexError:  # another thread was faster
                break
            oldest.pop(oldest_number, None)
        return chunk


class OpenShard:
    """A shard that is open for reading.

    Args:
        number: Its number in the dataset.
        name: Its name.
        first_index: Number of its first sample in the dataset.
        layout: Where its wanted parts are.
        reader: The file.
        near: Decides whether small parts are taken out of chunks of the file.
        chooser: Decides which ranges of large parts are read; None reads them whole.
        path: The file.
    """

    __slots__ = (
        "_chooser",
        "_path",
        "chunks",
        "first_index",
        "layout",
        "name",
        "near",
        "number",
        "read",
        "reader",
        "was_used",
    )

    def __init__(
        self,
        number: int,
        name: str,
        first_index: int,
        layout: PartLayout,
        reader: RangeReader,
        near: NearChunks,
        chooser: RangeChooser | None,
        path: StoragePath,
    ) -> None:
        self.number = number
        self.name = name
        self.first_index = first_index
        self.layout = layout
        self.reader = reader
        self.read = reader.read_view
        """Reads a range for parts that may be views of it."""
        self.near = near
        self._chooser = chooser
        self._path = path
        self.chunks: dict[int, bytes] = {}
        """Chunks of the file that are kept, by number; `near` fills it."""
        self.was_used = False
        """Whether it was used since it was opened, or since it was spared."""

    def runs(self, sample: int, seed: int | None = None) -> Sequence[Run]:
        """Returns what has to be read of a sample.

        Args:
            sample: Index of the sample.
            seed: Its seed, by which ranges of its parts are chosen; None reads them whole.

        Raises:
            DatasetError: There is no such sample, or what ranges are chosen by cannot be read.
        """
        extents = self.layout.extents
        if not 0 <= sample < extents.num_samples:
            raise self.missing(sample)
        if seed is None or self._chooser is None:
            return self.layout.runs(sample)
        chosen: dict[int, RangedPart] = {}
        ranges: list[Run] = []
        for part in range(extents.first_part[sample], extents.first_part[sample + 1]):
            name = extents.part_names[extents.part_name[part]]
            size = extents.part_size[part]
            if size < FEWEST_RANGED_BYTES or not self.layout.wanted[extents.part_name[part]]:
                continue
            start = extents.part_block[part] * TAR_BLOCK_BYTES
            found = self._chooser.choose(self.number, name, start, size, seed)
            if found is not None:
                chosen[part] = found
                # The header shows that it is the part that was indexed, where nothing of its content does.
                places = [(start + offset, length) for offset, length in found.ranges]
                places = places or [(start - TAR_BLOCK_BYTES, TAR_BLOCK_BYTES)]
                ranges += [RangeRun(found, part, offset, length) for offset, length in places]
        return [*self.layout.runs(sample, chosen), *ranges] if chosen else self.layout.runs(sample)

    def assemble(self, sample: int, pieces: Iterable[tuple[Run, bytes | memoryview, int]]) -> RawSample:
        """Returns a sample of the bytes that were read for it.

        Args:
            sample: Index of the sample.
            pieces: (run, bytes that contain it, their offset in the file).

        Raises:
            ShardError: The shard differs from its index.
        """
        layout = self.layout
        extents = layout.extents
        key = extents.key(sample)
        parts: dict[str, Any] = {}
        ranged: dict[int, tuple[RangedPart, list[bytes | memoryview]]] = {}
        for run, data, base in pieces:
            if isinstance(run, RangeRun):
                if len(data) < run.size:
                    raise layout.changed(f"it ends before byte {run.offset + run.size}")
                ranged.setdefault(run.number, (run.part, []))[1].append(data)
            else:
                layout.extract(key, run, data, base, parts)
        for number, (part, contents) in ranged.items():
            name, offset = layout.names[extents.part_name[number]], extents.part_block[number] * TAR_BLOCK_BYTES
            if not part.ranges:
                member = f"{key}.{name}".encode()
                check_member(self.name, bytes(contents.pop()), member, extents.part_size[number], offset)
            parts[name] = part.content(contents, PartSource(self._path, extents.shard_bytes, offset))
        if ranged:
            numbers = range(extents.first_part[sample], extents.first_part[sample + 1])
            names = [layout.names[extents.part_name[part]] for part in numbers]
            parts = {name: parts[name] for name in names if name in parts}  # in file order
        return RawSample(key, self.name, self.first_index + sample, self.number, sample, parts)

    def read_sample(self, sample: int, seed: int | None = None) -> RawSample:
        """Returns a sample; large parts are views of what was read.

        Args:
            sample: Index of the sample.
            seed: As in `runs`.

        Raises:
            DatasetError: As `runs` and `assemble`.
            StorageError: The shard cannot be read.
        """
        if seed is not None and self._chooser is not None:
            return self.assemble(sample, [(run, self.read(run[2], run[3]), run[2]) for run in self.runs(sample, seed)])
        layout = self.layout
        if not 0 <= sample < layout.extents.num_samples:
            raise self.missing(sample)
        key = layout.extents.key(sample)
        parts: dict[str, bytes | memoryview] = {}
        for run in layout.runs(sample):
            start, size = run[2], run[3]
            number = start >> CHUNK_BITS
            base = number << CHUNK_BITS
            if size < SMALL_BYTES and self.near.are_wanted and start + size <= base + CHUNK_BYTES:
                chunk = self.chunks.get(number)
                if chunk is None and isinstance(self.reader, LocalReader):
                    chunk = self.near.read(self.reader, number, self.chunks)
                if chunk:
                    layout.extract(key, run, chunk, base, parts)
                    continue
            layout.extract(key, run, self.read(start, size), start, parts)
        return RawSample(key, self.name, self.first_index + sample, self.number, sample, parts)

    def missing(self, sample: int) -> ShardError:
        """Returns the error for a sample that the shard does not have."""
        return ShardError(
            f"{self.name} has {self.layout.extents.num_samples} samples, and sample {sample} was requested. The key "
            "belongs to other data.",
            self.name,
        )

    def close(self) -> None:
        """Closes the file, and forgets its chunks."""
        self.reader.close()
        self.chunks.clear()


class ShardReader:
    """Reads samples of a dataset: only the wanted parts, at the offsets in the index.

    The tar header before each part is read too and compared, so that a shard that changed since it was indexed is an
    error and never returns bytes of another sample. Picklable; each process opens the files on first use. Not
    thread-safe.

    Args:
        folder: The dataset.
        part_filter: Returns whether a part is wanted, given its name; picklable if the reader has to be. None takes
            all parts.
        chooser: Decides which ranges of large parts are read, where the seeds of samples are given; None reads them
            whole.
        max_open_shards: Number of shards whose layout this reader keeps; one that was not used lately is dropped.
    """

    def __init__(
        self,
        folder: WebdatasetFolder,
        part_filter: Callable[[str], bool] | None = None,
        *,
        chooser: RangeChooser | None = None,
        max_open_shards: int = MAX_OPEN_SHARDS,
    ) -> None:
        self.folder = folder
        self.part_filter = part_filter
        self.chooser = chooser
        self.max_open_shards = max_open_shards
        self.is_remote = not folder.root.is_local
        """Whether requests wait for a network."""
        self._starts = [0, *accumulate(folder.shard_counts)]
        self._slow_reads = 0
        self._near = NearChunks()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._open: dict[int, OpenShard] = {}
        self._failed: dict[int, DatasetError] = {}
        self._coming: dict[int, RangeReader | Exception] = {}
        self._samples_read = 0
        self._shards_opened = 0

    def read(
        self, shard_indices: Sequence[int], sample_indices: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[RawSample | DatasetError]:
        """Returns one entry per requested sample, in order: the sample, or the error that prevented reading it.

        Args:
            shard_indices: Indices of the shards in `folder.shard_names`.
            sample_indices: Indices of the samples within them.
            seeds: Their seeds, where ranges of parts are chosen by them; None reads parts whole.

        Raises:
            StoreUnavailableError: The store returned only errors for too long.
        """
        if self.is_remote:
            return read_planned(self, shard_indices, sample_indices, seeds)
        self._begin_read(len(shard_indices))
        results: list[RawSample | DatasetError] = []
        opened = self._open
        last_number, shard = -1, None
        for position, (number, sample) in enumerate(zip(shard_indices, sample_indices, strict=True)):
            try:
                if number != last_number:
                    last_number = -1
                    shard = opened.get(number)
                    if shard is None:
                        shard = self._open_shard(number)
                    else:
                        shard.was_used = True
                    last_number = number
                assert shard is not None
                results.append(shard.read_sample(sample, None if seeds is None else seeds[position]))
            except (EnergonDaliError, OSError) as error:
                results.append(self.unreadable(number, error))
        return results

    def _begin_read(self, num_samples: int) -> None:
        """Prepares for reading some samples: shards that could not be opened are tried again."""
        if self._pid != os.getpid():  # forked: pread shares no file position, but closing would affect the parent
            self._forget()
        self._failed.clear()
        self._samples_read += num_samples
        self._near.begin_read(num_samples)
        if self._samples_read >= _PAGES_KEPT_FOR:
            index = self.folder.index
            if index.is_scattered or self._samples_read >= _PAGES_KEPT_FOR_NEAR:
                self._samples_read = 0
                index.release_pages()

    @property
    def shard_starts(self) -> Int64Array:
        """int64[number of shards]: the number in the dataset of the first sample of each shard."""
        return np.array(self._starts[:-1], np.int64)

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
            opened, index = self._open.get(shard_index), self.folder.index
            extents = index.known(shard_index) if opened is None else opened.layout.extents
            if extents is None and not self.is_remote:
                extents = index.shard(shard_index)
            if extents is None:
                return names[shard_index], ""
            key = extents.key(sample_index) if 0 <= sample_index < extents.num_samples else ""
        except (EnergonDaliError, OSError, ValueError):
            key = ""
        return names[shard_index], key

    def indexed(self, shard_index: int, sample_index: int) -> IndexedSample:
        """Returns what the index has on a sample; no shard is opened.

        Raises:
            DatasetFormatError: The index is damaged.
            StorageError: It cannot be read.
        """
        name, index = self.folder.shard_names[shard_index], self.folder.index
        if index.source == "tar":  # there is no index, and scanning the shards is reading them
            return IndexedSample(name, "", {})
        if self.is_remote and index.known(shard_index) is None:
            index.fetch([shard_index])
        extents = index.shard(shard_index)
        wanted = self.part_filter
        parts = {part: size for part, _, size in extents.parts(sample_index) if wanted is None or wanted(part)}
        return IndexedSample(name, extents.key(sample_index), parts)

    def close(self) -> None:
        """Closes all open files; they are opened again when needed."""
        if self._pid == os.getpid():
            for shard in self._open.values():
                shard.close()
        self._forget()
        self.folder.index.close()

    def _open_shard(self, number: int) -> OpenShard:
        """Opens a shard; an error is kept, so that the samples of one read do not each try again."""
        failed = self._failed.get(number)
        if failed is None:
            try:
                return self._try_open(number)
            except (EnergonDaliError, OSError) as error:
                failed = self._failed[number] = self.unreadable(number, error)
        raise failed

    def _try_open(self, number: int) -> OpenShard:
        if not 0 <= number < len(self.folder.shard_names):
            raise DatasetError(
                f"{self.folder.path} has {len(self.folder.shard_names)} shards, and shard {number} was requested."
            )
        folder = self.folder
        name = folder.shard_names[number]
        extents = folder.index.shard(number)
        layout = PartLayout(name, extents, self.part_filter)
        try:
            reader = self._open_file(number, extents.shard_bytes)
        except FileNotFoundError as error:
            raise missing_shard(folder.root, name) from error
        size, changed = reader.size, ""
        if extents.shard_bytes not in (-1, size):
            changed = f"it has {size} bytes and had {extents.shard_bytes}"
        elif extents.shard_bytes < 0 and extents.end_of_parts() > size:
            changed = f"it has {size} bytes, and the index needs {extents.end_of_parts()}"
        if changed:
            reader.close()
            raise layout.changed(changed)
        path = folder.root / name
        shard = OpenShard(number, name, self._starts[number], layout, reader, self._near, self.chooser, path)
        if len(self._open) >= self.max_open_shards:
            self._drop_one()
        self._open[number] = shard
        self._shards_opened += 1
        _opened.append((weakref.ref(self), number))
        while len(_opened) > MAX_OPEN_SHARDS:
            owner, oldest = _opened.popleft()
            reader_of_oldest = owner()
            found = None if reader_of_oldest is None else reader_of_oldest._open.get(oldest)
            if found is not None and found.was_used:
                found.was_used = False
                _opened.append((owner, oldest))
            elif reader_of_oldest is not None and found is not shard:
                reader_of_oldest._open.pop(oldest, None)
        return shard

    def _open_file(self, number: int, size: int) -> RangeReader:
        coming = self._coming.pop(number, None)
        if isinstance(coming, Exception):
            raise coming
        path = self.folder.root / self.folder.shard_names[number]
        return coming or open_shard(path, size if size >= 0 else None)

    def _drop_one(self) -> None:
        """Drops the shard that was opened first among those that were not used since they were last spared."""
        while True:
            number, shard = next(iter(self._open.items()))
            del self._open[number]
            if not shard.was_used:
                return
            shard.was_used = False
            self._open[number] = shard

    def planned_reads(self, window: int, lanes: int) -> PlannedReads | None:
        """Returns an object that reads ahead in a planned order; None where reading waits for nothing.

        Args:
            window: Window of the order's shuffle, in samples.
            lanes: Number of its interleave lanes.
        """
        requests = current_scope().requests
        is_slow = self.is_remote or self._slow_reads >= _SLOW_READS or requests.is_wanted
        return PlannedReads(self, window, lanes) if requests.is_allowed and is_slow else None

    def expect_order(self, window: int, slice_length: float) -> None:
        """Takes the order in which samples will be read.

        Args:
            window: Window of the order's shuffle, in samples.
            slice_length: Mean length of its slices, in samples.
        """
        self._near.are_expected = window <= _NEAR_SLICES * slice_length
        if not self._near.are_expected and not self.folder.index.is_scattered:
            self.folder.index.is_scattered = True
            self._open.clear()

    def note_speed(self, seconds: float, num_samples: int, size: int) -> None:
        """Records how long a read took, so that a slow disk is read ahead.

        Args:
            seconds: Its duration.
            num_samples: Samples that were read.
            size: Their size in bytes.
        """
        if self._shards_opened:  # the time for checking their index says nothing about the disk
            self._shards_opened = 0
            return
        expected = num_samples * _SLOW_SECONDS_PER_SAMPLE + size / _SLOW_BYTES_PER_SECOND
        self._slow_reads = self._slow_reads + 1 if seconds > expected else 0

    def open_shards(self, numbers: Iterable[int], num_samples: int) -> None:
        """Prepares for planning some samples of shards; see PlannedSource."""
        self._begin_read(num_samples)
        if self.is_remote:
            new = [number for number in numbers if number not in self._open and 0 <= number < len(self._starts) - 1]
            if new:
                index = self.folder.index
                with suppress(EnergonDaliError, OSError):  # raised again for the shards that are concerned
                    index.fetch(new)
                    if self.chooser is not None:
                        self.chooser.prepare(new)
                    if index.source == "sqlite":  # which does not have the sizes of the shards: asked for together
                        self._coming = call_together(lambda number: self._open_file(number, -1), new)

    def runs(self, shard: int, sample: int, seed: int | None = None) -> tuple[RangeReader, Sequence[Run]]:
        """Returns the file of a sample, and what has to be read of it; see PlannedSource.

        Raises:
            DatasetError: The shard cannot be opened, or has no such sample.
        """
        opened = self._open.get(shard) or self._open_shard(shard)
        opened.was_used = True
        return opened.reader, opened.runs(sample, seed)

    def assemble(self, shard: int, sample: int, pieces: Sequence[tuple[Run, bytes | memoryview, int]]) -> RawSample:
        """Returns a sample of the bytes that were read for it; see PlannedSource.

        Raises:
            DatasetError: The shard differs from its index.
        """
        return (self._open.get(shard) or self._open_shard(shard)).assemble(sample, pieces)

    def unreadable(self, number: int, error: Exception) -> DatasetError:
        """Returns what a sample of a shard gets in place of its data: the error itself if it is of the dataset.

        Args:
            number: Number of the shard.
            error: What was raised when it was opened or read.

        Raises:
            StoreUnavailableError: That is the error, which ends the run.
        """
        if isinstance(error, StoreUnavailableError):
            raise error
        if isinstance(error, DatasetError):
            return error
        name = self.folder.shard_names[number]
        found = (
            missing_shard(self.folder.root, name)
            if isinstance(error, FileNotFoundError)
            else ShardError(f"{self.folder.root / name} cannot be read: {error}", name)
        )
        found.__cause__ = error
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), chooser=self.chooser, max_open_shards=self.max_open_shards)
        return make, (self.folder, self.part_filter)

    def __repr__(self) -> str:
        return f"ShardReader({self.folder!r})"
