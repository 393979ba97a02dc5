"""A sample as it was read: its key, its place, and the bytes of its parts."""

from __future__ import annotations

from dataclasses import dataclass


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
