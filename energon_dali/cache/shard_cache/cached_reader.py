"""Reads a shard through the cache."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from energon_dali.cache.shard_cache.block_store import Claim
from energon_dali.cache.shard_cache.object_record import ObjectVersion
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.forks import drop_in_child
from energon_dali.shards.storage.protocols import RangeReader, VersionedReader
from energon_dali.shards.storage.store import VersionChangedError, current_scope

if TYPE_CHECKING:
    from energon_dali.cache.shard_cache.node_cache import NodeCache

VERSIONS = 3
"""Versions of an object that are tried while it is being replaced."""
WAIT_SECONDS = 10.0
"""How long a reader waits for a block that another thread or process fetches, before it reads from the store."""
CLAIM_TRIES = 3
"""How often a reader tries to fetch a block that others give up fetching, before it reads past the cache."""
REQUEST_BYTES = 16 << 20
"""Missing blocks that follow each other are fetched together, up to this size."""


class CachedReader:
    """A shard whose blocks are kept on local disk. Thread-safe.

    What is not on disk is fetched in whole blocks if the cache keeps them, and otherwise exactly as requested.
    Blocks that another thread or process is fetching are waited for.

    Args:
        cache: The cache of this process.
        path: The shard.
        size: Its size in bytes; None asks the store.

    Raises:
        FileNotFoundError: There is no such object.
        StorageError: The store does not answer.
    """

    def __init__(self, cache: NodeCache, path: StoragePath, size: int | None) -> None:
        self._cache = cache
        self._path = path
        self.after_fork()
        drop_in_child(self)
        self._reader: RangeReader | None = None
        self._tag = ""
        if size is None:
            version = cache.version(path)
            size = self._remote(None, "").size if version is None else version.size
        self.size = size

    def after_fork(self) -> None:
        """Replaces the lock in a forked child: a thread that the child does not have may hold it."""
        self._lock = threading.Lock()

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes from `offset` on; fewer only at the end of the file.

        Raises:
            FileNotFoundError: The object is no longer there.
            StorageError: It could not be read, retries included.
        """
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        for _ in range(VERSIONS):
            version = self._cache.version(self._path)
            if version is None or version.size != self.size:  # the store says what is wrong with the object
                break
            try:
                data = self._read(version, offset, offset + size)
            except VersionChangedError:
                self._cache.distrust(self._path)
                continue
            if data is not None:
                return data
            break
        return self._fetch(None, offset, size)

    read_view = read_at

    def close(self) -> None:
        """Closes the shard."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _remote(self, size: int | None, tag: str) -> RangeReader:
        """Returns the shard in its storage, opened again for another version."""
        with self._lock:
            if self._reader is None or self._tag != tag:
                self._reader, self._tag = self._path.open(size), tag
                if isinstance(self._reader, VersionedReader):
                    self._reader.expected_tag = tag
            return self._reader

    def _fetch(self, version: ObjectVersion | None, start: int, size: int) -> bytes:
        """Returns a range from the storage, of a version if one is given.

        Raises:
            VersionChangedError: The object has another version by now.
        """
        data = self._remote(self.size, "" if version is None else version.tag).read_at(start, size)
        current_scope().count("shard_cache.bytes_remote", len(data))
        return data

    def _read(self, version: ObjectVersion, start: int, stop: int, tries: int = CLAIM_TRIES) -> bytes | None:
        """Returns bytes start ... stop - 1; None if the object turned out to be shorter."""
        block = self._cache.block_bytes
        numbers = range(start // block, -(-stop // block))
        found = {number: self._cache.read(version, number, start, stop) for number in numbers}
        pieces = {number: data for number, data in found.items() if data is not None}
        scope = current_scope()
        if pieces:
            scope.count("shard_cache.hits", len(pieces))
            scope.count("shard_cache.bytes_local", sum(map(len, pieces.values())))
        missing = [number for number in numbers if number not in pieces]
        if not missing:
            return b"".join(pieces[number] for number in numbers)
        fetched, waited = 0, 0
        claims: dict[int, Claim] = {}
        busy = []
        try:
            for number in missing:
                claim = self._cache.claim(version, number)
                if claim is None:
                    if self._cache.is_usable:
                        busy.append(number)
                    continue
                claims[number] = claim
                data = self._cache.read(version, number, start, stop)  # another one may just have fetched it
                if data is not None:
                    pieces[number] = data
                    waited += 1
                if data is not None or not self._cache.admit(claim):
                    self._cache.release(claims.pop(number))
            wanted = [number for number in missing if number not in pieces and number not in busy]
            for low, high in self._ranges(wanted, claims, start, stop):
                mine = {number: claims.pop(number) for number in list(claims) if low <= number * block < high}
                data = self._fetch_range(version, low, high, mine)
                if data is None:
                    return None
                for number in range(low // block, -(-high // block)):
                    if number not in pieces:
                        begin, end = max(start, low, number * block), min(stop, high, (number + 1) * block)
                        pieces[number] = data[begin - low : end - low]
                        fetched += 1
        finally:
            for claim in claims.values():
                self._cache.release(claim)
        for number in busy:
            is_free = self._cache.wait(version, number, WAIT_SECONDS)
            data = self._cache.read(version, number, start, stop)
            if data is not None:
                waited += 1
            else:
                begin, end = max(start, number * block), min(stop, (number + 1) * block)
                if is_free and tries > 1:
                    data = self._read(version, begin, end, tries - 1)
                    if data is None:
                        return None
                else:
                    data = self._fetch(version, begin, end - begin)
                    fetched += 1
            pieces[number] = data
        scope.count("shard_cache.misses", fetched)
        if waited:
            scope.count("shard_cache.hits", waited)
        whole = b"".join(pieces[number] for number in numbers)
        return whole if len(whole) == stop - start else None

    def _ranges(self, wanted: list[int], claims: dict[int, Claim], start: int, stop: int) -> list[tuple[int, int]]:
        """Returns the (start, stop) of the requests: whole blocks where they are kept, else only the bytes wanted."""
        block = self._cache.block_bytes
        ranges: list[tuple[int, int]] = []
        for number in wanted:
            low, high = number * block, min(self.size, (number + 1) * block)
            if number not in claims:
                low, high = max(low, start), min(high, stop)
            if ranges and ranges[-1][1] == low and high - ranges[-1][0] <= max(REQUEST_BYTES, block):
                ranges[-1] = ranges[-1][0], high
            else:
                ranges.append((low, high))
        return ranges

    def _fetch_range(self, version: ObjectVersion, low: int, high: int, claims: dict[int, Claim]) -> bytes | None:
        """Fetches a range and stores the claimed blocks in it; returns None if the object turned out to be shorter.

        Raises:
            VersionChangedError: The object has another version by now.
        """
        block = self._cache.block_bytes
        try:
            data = self._fetch(version, low, high - low)
            if len(data) != high - low:
                return None
            view = memoryview(data)
            for number in list(claims):
                begin = number * block - low
                claim = claims.pop(number)
                self._cache.commit(claim, view[begin : begin + claim.block.size])
            return data
        finally:
            for claim in claims.values():
                self._cache.release(claim)
