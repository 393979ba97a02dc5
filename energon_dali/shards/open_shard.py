"""A shard of a dataset that is open, and how a sample of it is read."""

from __future__ import annotations

from collections.abc import Callable

from energon_dali.errors import ShardError
from energon_dali.shards.index.extents import PartLayout
from energon_dali.shards.raw_sample import RawSample
from energon_dali.shards.storage.local import LocalReader
from energon_dali.shards.storage.near_chunks import CHUNK_BITS, CHUNK_BYTES, SMALL_BYTES, NearChunks
from energon_dali.shards.storage.path import RangeReader


class OpenShard:
    """A shard that is open for reading.

    Args:
        number: Its number in the dataset.
        name: Its name.
        first_index: Number of its first sample in the dataset.
        layout: Where its wanted parts are.
        reader: The file.
        near: Decides whether small parts are taken out of chunks of the file.
    """

    __slots__ = ("chunks", "first_index", "layout", "name", "near", "number", "read", "reader", "was_used")

    def __init__(
        self, number: int, name: str, first_index: int, layout: PartLayout, reader: RangeReader, near: NearChunks
    ) -> None:
        self.number = number
        self.name = name
        self.first_index = first_index
        self.layout = layout
        self.reader = reader
        self.read: Callable[[int, int], bytes | memoryview] = (
            reader.read_view if isinstance(reader, LocalReader) else reader.read_at
        )
        """Reads a range for parts that may be views of it."""
        self.near = near
        self.chunks: dict[int, bytes] = {}
        """Chunks of the file that are kept, by number; `near` fills it."""
        self.was_used = False
        """Whether it was used since it was opened, or since it was spared."""

    def read_sample(self, sample: int) -> RawSample:
        """Returns a sample; large parts are views of what was read.

        Raises:
            ShardError: There is no such sample, or the shard differs from its index.
            StorageError: The shard cannot be read.
        """
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
