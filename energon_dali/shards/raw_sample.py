"""A sample as it was read."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class IndexedSample:
    """What the index has on a sample, without reading it."""

    shard: str
    """Path of its shard within the dataset."""
    key: str
    """Its key; "" if only the shard itself holds it."""
    part_bytes: dict[str, int]
    """Size of each wanted part, in file order; empty where only the shard itself holds them."""
