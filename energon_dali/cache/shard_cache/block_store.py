"""The blocks on disk: reading, adding and evicting them, by any number of processes at the same time.

Each block is a file, written under another name and renamed, so that it is there as a whole or not at all. Whoever
fetches a block holds a locked file in `claims/`; the kernel releases the lock if the process dies. How many bytes are
on disk is written in a ledger under a lock. A claim counts with the size of its block from the moment it is admitted,
and the total is counted again from the folder whenever blocks are evicted, so that what a killed process had reserved
does not stay reserved.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from energon_dali.cache.shard_cache.block_file import (
    PAGE_BYTES,
    BlockName,
    DamagedBlockError,
    file_bytes,
    header_bytes,
    read_block,
    write_block,
)
from energon_dali.cache.shard_cache.block_listing import BLOCKS, CLAIMS, OBJECTS, BlockListing, block_file, list_blocks
from energon_dali.cache.shard_cache.future import FloatArray, Future, eviction_order
from energon_dali.cache.shard_cache.ledger import Ledger, read_ledger, write_ledger
from energon_dali.cache.shard_cache.plan_file import FOLDER as PLANS
from energon_dali.cache.shard_cache.private_folder import FolderLock, PrivateFolder
from energon_dali.plan.next_use import block_ids
from energon_dali.plan.rng import Uint64Array
from energon_dali.shards.storage.store import current_scope

LOCK_SECONDS = 2.0
"""A block is not kept if the lock of the cache is not free for this long."""
EVICTED_SHARE = 100
"""One in this many blocks is evicted at a time, so that looking for them costs little per block."""

_CHEAP_SECONDS = 0.002
_REFUSAL_FACTOR = 20.0
"""After a look through the cache that found nothing to evict, none follows for this many times as long."""
_LONGEST_REFUSAL_SECONDS = 10.0
_PLACE_TRIES = 10
_POLL_SECONDS = 0.001
_LONGEST_POLL_SECONDS = 0.01


@dataclass(slots=True, eq=False)
class Claim:
    """The right to fetch a block, held by one thread of one process."""

    name: BlockName
    size: int
    """Of the block, in bytes."""
    descriptor: int
    """Of the locked file."""
    reserved_bytes: int = 0
    """Counted in the ledger."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when the block is stored or given up."""


class BlockStore:
    """The blocks in a folder.

    Methods raise OSError where the local disk fails; the caller then works without the cache.

    Args:
        folder: The folder of the cache.
        max_bytes: Most bytes on disk, of all processes together.
        own_future: Returns what the streams of this process will use.
        node_future: Returns what the streams of all processes of the node will use.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(
        self,
        folder: PrivateFolder,
        max_bytes: int,
        own_future: Callable[[], Future],
        node_future: Callable[[], Future],
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._own_future = own_future
        self._node_future = node_future
        for name in (BLOCKS, CLAIMS, OBJECTS, PLANS):
            folder.make(name)
        self._lock = FolderLock(folder, "lock")
        with self._lock.held(LOCK_SECONDS):  # a file system without locks fails here
            pass
        self._ledger = folder.open("ledger", os.O_RDWR | os.O_CREAT)
        self._fetching: dict[str, Claim] = {}

    # --- reading ---------------------------------------------------------------------------------------------------

    def has(self, name: BlockName, size: int) -> bool:
        """Returns whether a block is on disk."""
        return self.folder.stat(_path(name, size)) is not None

    def read(self, name: BlockName, size: int, start: int, stop: int) -> bytes | None:
        """Returns bytes start ... stop - 1 of a block; None if it is not on disk, or damaged, which removes it.

        Args:
            name: Which block.
            size: Its size in bytes.
            start: First byte.
            stop: Byte after the last one.
        """
        path = _path(name, size)
        try:
            descriptor = self.folder.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            self.folder.unlink(path)  # a link is not what was written
            return None
        try:
            data = read_block(descriptor, name, size, start, stop)
            status = os.fstat(descriptor)
            os.utime(descriptor, ns=(time.time_ns(), status.st_mtime_ns))  # for blocks that no plan covers
            return data
        except DamagedBlockError:
            self._remove(path, size, os.fstat(descriptor))
            return None
        finally:
            os.close(descriptor)

    def _remove(self, path: str, size: int, status: os.stat_result) -> None:
        """Removes a damaged block, unless another process has written it again."""
        with self._lock.held(LOCK_SECONDS) as held:
            now = self.folder.stat(path)
            if now is not None and os.path.samestat(now, status) and self.folder.unlink(path) and held:
                ledger = self._read_ledger()
                ledger.total_bytes = max(0, ledger.total_bytes - file_bytes(size))
                write_ledger(self._ledger, ledger)

    # --- fetching --------------------------------------------------------------------------------------------------

    def claim(self, name: BlockName, size: int) -> Claim | None:
        """Returns the right to fetch a block; None if another thread or process fetches it.

        Args:
            name: Which block.
            size: Its size in bytes.
        """
        for _ in range(2):
            try:
                descriptor = self.folder.open(name.claim, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                if not self._remove_stale_claim(name.claim):
                    return None
                continue
            if self._holds(descriptor, name.claim):
                claim = Claim(name, size, descriptor)
                self._fetching[name.claim] = claim
                return claim
            os.close(descriptor)
        return None

    def _holds(self, descriptor: int, path: str) -> bool:
        """Locks a file; returns False if it is locked by another process, or no longer at its path."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        status = self.folder.stat(path)
        return status is not None and os.path.samestat(status, os.fstat(descriptor))

    def _remove_stale_claim(self, path: str) -> bool:
        """Removes the claim of a process that is gone; returns whether there is none now."""
        try:
            descriptor = self.folder.open(path, os.O_RDWR)
        except FileNotFoundError:
            return True
        try:
            return self._holds(descriptor, path) and (self.folder.unlink(path) or True)
        finally:
            os.close(descriptor)

    def admit(self, claim: Claim) -> bool:
        """Makes room for a claimed block; returns False if the cache is full of blocks that are needed earlier."""
        need = file_bytes(claim.size)
        if self.folder.stat(claim.name.folder) is None:
            need += PAGE_BYTES
        if need > self.max_bytes or self._refused(claim.name, need, self._peek()):
            return False
        with self._lock.held(LOCK_SECONDS) as held:
            if not held:
                return False
            ledger = self._read_ledger()
            if ledger.total_bytes + need > self.max_bytes and (
                self._refused(claim.name, need, ledger) or not self._evict(need, ledger, claim.name)
            ):
                write_ledger(self._ledger, ledger)
                return False
            os.ftruncate(claim.descriptor, need)
            claim.reserved_bytes = need
            ledger.total_bytes += need
            write_ledger(self._ledger, ledger)
        return True

    def commit(self, claim: Claim, content: bytes | memoryview) -> None:
        """Stores an admitted block and ends the claim."""
        try:
            write_block(claim.descriptor, claim.name, content)
            os.ftruncate(claim.descriptor, header_bytes(claim.size) + claim.size)
            self._place(claim)
        except OSError:
            self.abandon(claim)
            raise
        self._end(claim)

    def _place(self, claim: Claim) -> None:
        """Renames the file of a claim to that of its block."""
        for tries_left in reversed(range(_PLACE_TRIES)):
            self.folder.make(claim.name.folder)
            try:
                self.folder.rename(claim.name.claim, _path(claim.name, claim.size))
                return
            except FileNotFoundError:  # whoever lists the blocks removes empty folders, also one just created
                if not tries_left:
                    raise

    def abandon(self, claim: Claim) -> None:
        """Ends a claim without storing the block."""
        try:
            with contextlib.suppress(OSError):
                self.folder.unlink(claim.name.claim)
            if claim.reserved_bytes:
                self.add_bytes(-claim.reserved_bytes)
        finally:
            self._end(claim)

    def _end(self, claim: Claim) -> None:
        if self._fetching.get(claim.name.claim) is claim:  # its file is gone: another thread may hold the next one
            del self._fetching[claim.name.claim]
        with contextlib.suppress(OSError):
            fcntl.flock(claim.descriptor, fcntl.LOCK_UN)  # closing is not enough if the process forked meanwhile
        os.close(claim.descriptor)
        claim.ended.set()

    def wait(self, name: BlockName, patience_seconds: float) -> bool:
        """Waits until nobody fetches a block; returns False if somebody still does when the time is over.

        Args:
            name: Which block.
            patience_seconds: Longest time to wait.
        """
        end = time.monotonic() + patience_seconds
        fetching = self._fetching.get(name.claim)
        if fetching is not None:
            return fetching.ended.wait(patience_seconds)
        pause = _POLL_SECONDS
        while not self._remove_stale_claim(name.claim):
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)
        return True

    # --- room ------------------------------------------------------------------------------------------------------

    def add_bytes(self, delta: int) -> None:
        """Counts a file other than a block, and evicts blocks to make room for it.

        Args:
            delta: How many bytes more are on disk, in whole pages; negative for less.
        """
        with self._lock.held(LOCK_SECONDS) as held:
            if held:
                ledger = self._read_ledger()
                if delta > 0 and ledger.total_bytes + delta > self.max_bytes:
                    self._evict(delta, ledger)
                ledger.total_bytes = max(0, ledger.total_bytes + delta)
                write_ledger(self._ledger, ledger)

    def total_bytes(self) -> int:
        """Returns how many bytes the ledger counts."""
        return self._peek().total_bytes

    def _peek(self) -> Ledger:
        return read_ledger(self._ledger) or Ledger(0)

    def _read_ledger(self) -> Ledger:
        return read_ledger(self._ledger) or Ledger(list_blocks(self.folder).total_bytes)

    def _refused(self, name: BlockName, need: int, ledger: Ledger) -> bool:
        """Returns whether a block is needed later than everything in a full cache, as far as was found lately."""
        now = time.time()
        if ledger.total_bytes + need <= self.max_bytes or not now < ledger.refused_until < now + 60:
            return False
        seconds = float(self._own_future().seconds_until(*_row(name))[0])
        return now + seconds >= ledger.refused_after  # False for nan: its future is unknown

    def _evict(self, need: int, ledger: Ledger, name: BlockName | None = None) -> bool:
        """Evicts blocks until there is room; returns False if all that are there are needed earlier than a new one.

        Args:
            need: Bytes that are added.
            ledger: Receives the total.
            name: The new block; None is another file, which is needed more than any block.
        """
        began = time.monotonic()
        self._remove_stale_claims()
        listing = list_blocks(self.folder)
        ledger.total_bytes = listing.total_bytes
        if ledger.total_bytes + need <= self.max_bytes:
            return True
        future = self._node_future()
        seconds = future.seconds_until(block_ids(listing.shard, listing.number), listing.shard)
        idle = self._idle_seconds(listing, seconds)
        order, expected = eviction_order(seconds, idle)
        own = -1.0 if name is None else float(future.seconds_until(*_row(name))[0])
        own = 0.0 if np.isnan(own) else own
        later = order[: int((expected > own).sum())]
        room = np.cumsum(file_bytes(listing.size[later]))
        enough = int(np.searchsorted(room, ledger.total_bytes + need - self.max_bytes)) + 1
        if enough > len(later):
            spent = time.monotonic() - began
            if name is not None and spent > _CHEAP_SECONDS and len(order):
                # The next refusals are found without looking through the cache.
                now = time.time()
                ledger.refused_after = now + float(expected.max())
                ledger.refused_until = now + min(_REFUSAL_FACTOR * spent, _LONGEST_REFUSAL_SECONDS)
            return False
        evicted = 0
        for row in later[: max(enough, len(order) // EVICTED_SHARE)].tolist():
            if self.folder.unlink(listing.path(row)):
                evicted += int(listing.size[row])
            ledger.total_bytes -= file_bytes(int(listing.size[row]))
        current_scope().count("shard_cache.evicted_bytes", evicted)
        return True

    def _idle_seconds(self, listing: BlockListing, seconds: FloatArray) -> FloatArray:
        """Returns float64[n]: for how long the blocks without a known next use have not been read."""
        idle = np.zeros(len(seconds))
        now = time.time()
        for row in np.flatnonzero(~np.isfinite(seconds)).tolist():
            status = self.folder.stat(listing.path(row))
            idle[row] = now - status.st_atime if status is not None else np.inf
        return idle

    def _remove_stale_claims(self) -> None:
        for claim in self.folder.list(CLAIMS):
            with contextlib.suppress(OSError):
                self._remove_stale_claim(f"{CLAIMS}/{claim}")

    def remove_version(self, folder: str) -> None:
        """Removes the blocks of an object that has changed.

        Args:
            folder: `BlockName.folder` of any of its blocks.
        """
        for name in self.folder.list(folder):
            self.folder.unlink(f"{folder}/{name}")
        self.folder.remove_folder(folder)
        with self._lock.held(LOCK_SECONDS) as held:
            if held:
                write_ledger(self._ledger, Ledger(list_blocks(self.folder).total_bytes))

    def close(self) -> None:
        """Closes all files, in a forked child those of its parent."""
        self._lock.close()
        os.close(self._ledger)
        for claim in list(self._fetching.values()):
            os.close(claim.descriptor)
        self._fetching.clear()


def _path(name: BlockName, size: int) -> str:
    return f"{name.folder}/{block_file(name.number, size)}"


def _row(name: BlockName) -> tuple[Uint64Array, Uint64Array]:
    shard = np.array([int.from_bytes(name.shard[:8], "little")], np.uint64)
    return block_ids(shard, np.array([name.number], np.int64)), shard
