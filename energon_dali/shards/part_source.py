"""Reads ranges of one part of a shard while it is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from energon_dali.errors import EnergonDaliError, ShardError, StoreUnavailableError
from energon_dali.shards.ranged_part import ByteRange
from energon_dali.shards.read_ahead import join_runs
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.request_pool import call_together
from energon_dali.shards.storage.store import current_scope, open_shard


def join_ranges(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Returns the ranges to read for others, in increasing order: joined where little is between them."""
    joined: list[ByteRange] = []
    for offset, size in sorted(ranges):  # those that touch count as one, so that the rule sees their size
        if joined and offset <= sum(joined[-1]):
            joined[-1] = joined[-1][0], max(joined[-1][1], offset + size - joined[-1][0])
        else:
            joined.append((offset, size))
    return join_runs((0, 0, offset, size) for offset, size in joined)


class PartSource:
    """Reads ranges of a part while it is decoded. Picklable; opens the shard for each call.

    Args:
        path: The shard.
        shard_bytes: Its size; -1 if unknown.
        offset: Where the content of the part is in the shard.
    """

    def __init__(self, path: StoragePath, shard_bytes: int, offset: int) -> None:
        self.path = path
        self.shard_bytes = shard_bytes
        self.offset = offset

    def __call__(self, ranges: Sequence[ByteRange]) -> list[bytes | memoryview]:
        """Returns the content of ranges, several of which are read at the same time from remote storage.

        Raises:
            ShardError: The shard cannot be read.
            StoreUnavailableError: The store returned only errors for too long.
        """
        requests = join_ranges(ranges)
        current_scope().requests.count_on_demand(sum(size for _, size in requests))
        try:
            reader = open_shard(self.path, self.shard_bytes if self.shard_bytes >= 0 else None)
            try:
                starts = [self.offset + start for start, _ in requests]
                if self.path.is_local:
                    contents = [
                        reader.read_view(start, size) for start, (_, size) in zip(starts, requests, strict=True)
                    ]
                else:
                    found = call_together(
                        lambda number: reader.read_view(starts[number], requests[number][1]), range(len(requests))
                    )
                    contents = [_unless_failed(found[number]) for number in range(len(requests))]
            finally:
                reader.close()
        except StoreUnavailableError:
            raise
        except (EnergonDaliError, OSError) as error:
            raise ShardError(f"{self.path} cannot be read: {error}", self.path.url) from error
        return [_cut(offset, size, requests, contents) for offset, size in ranges]


def _unless_failed(found: bytes | memoryview | Exception) -> bytes | memoryview:
    if isinstance(found, Exception):
        raise found
    return found


def _cut(
    offset: int, size: int, requests: Sequence[ByteRange], contents: Sequence[bytes | memoryview]
) -> bytes | memoryview:
    """Returns a range, which is inside one of those that were read."""
    for (start, length), content in zip(requests, contents, strict=True):
        if start <= offset and offset + size <= start + length:
            return memoryview(content)[offset - start : offset - start + size]
    raise AssertionError("join_ranges covers every range")
