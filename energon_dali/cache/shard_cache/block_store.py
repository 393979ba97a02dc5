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
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from energon_dali.cache.shard_cache.block_file import (
    BLOCKS,
    CLAIMS,
    JOBS,
    OBJECTS,
    PAGE_BYTES,
    Block,
    BlockFolder,
    BlockListing,
    DamagedBlockError,
    file_bytes,
    header_bytes,
    list_blocks,
    list_folders,
    read_block,
    write_block,
)
from energon_dali.cache.shard_cache.eviction import (
    ANY_JOB,
    Ledger,
    RunningJobs,
    Shares,
    choose_victims,
    read_ledger,
    write_ledger,
)
from energon_dali.cache.shard_cache.object_record import read_record
from energon_dali.cache.shard_cache.private_folder import FolderLock, PrivateFolder
from energon_dali.plan.rng import Int64Array
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

    block: Block
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
        job: 8 bytes: key of the job of this process.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: PrivateFolder, max_bytes: int, job: bytes) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.jobs = RunningJobs(folder, job)
        for name in (BLOCKS, CLAIMS, OBJECTS, JOBS):
            folder.make(name)
        self._lock = FolderLock(folder, "lock")
        with self._lock.held(LOCK_SECONDS):  # a file system without locks fails here
            pass
        self._ledger = folder.open("ledger", os.O_RDWR | os.O_CREAT)
        self._fetching: dict[str, Claim] = {}
        if self.total_bytes() > max_bytes:  # the limit is lower than it was
            self.add_bytes(0)

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, block: Block, start: int, stop: int) -> bytes | None:
        """Returns bytes start ... stop - 1 of a block; None if it is not on disk, or damaged, which removes it.

        Args:
            block: Which block.
            start: First byte.
            stop: Byte after the last one.
        """
        try:
            descriptor = self.folder.open(block.path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            self.folder.unlink(block.path)  # a link is not what was written
            return None
        try:
            return read_block(descriptor, block, start, stop)
        except DamagedBlockError:
            self._remove(block, os.fstat(descriptor))
            return None
        finally:
            os.close(descriptor)

    def _remove(self, block: Block, status: os.stat_result) -> None:
        """Removes a damaged block, unless another process has written it again."""
        with self._lock.held(LOCK_SECONDS) as held:
            now = self.folder.stat(block.path)
            if now is not None and os.path.samestat(now, status) and self.folder.unlink(block.path) and held:
                ledger = self._read_ledger()
                ledger.total_bytes = max(0, ledger.total_bytes - file_bytes(block.size))
                write_ledger(self._ledger, ledger)

    # --- fetching --------------------------------------------------------------------------------------------------

    def claim(self, block: Block) -> Claim | None:
        """Returns the right to fetch a block; None if another thread or process fetches it."""
        for _ in range(2):
            try:
                descriptor = self.folder.open(block.claim, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                if not self._remove_stale_claim(block.claim):
                    return None
                continue
            try:
                if self._holds(descriptor, block.claim):
                    claim = self._fetching[block.claim] = Claim(block, descriptor)
                    return claim
            except BaseException:
                os.close(descriptor)
                raise
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
        """Makes room for a claimed block; returns False if the cache is full of blocks that stay."""
        need = file_bytes(claim.block.size)
        if self.folder.stat(claim.block.folder.path) is None:
            need += PAGE_BYTES
        if need > self.max_bytes or self._is_refused(need, self._peek()):
            return False
        with self._lock.held(LOCK_SECONDS) as held:
            if not held:
                return False
            ledger = self._read_ledger()
            if ledger.total_bytes + need > self.max_bytes and (
                self._is_refused(need, ledger) or not self._evict_for_block(need, ledger)
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
            write_block(claim.descriptor, claim.block, content)
            os.ftruncate(claim.descriptor, header_bytes(claim.block.size) + claim.block.size)
            self._place(claim)
        except BaseException:
            self.abandon(claim)
            raise
        self._end(claim)

    def _place(self, claim: Claim) -> None:
        """Renames the file of a claim to that of its block."""
        for tries_left in reversed(range(_PLACE_TRIES)):
            self.folder.make(claim.block.folder.path)
            try:
                self.folder.rename(claim.block.claim, claim.block.path)
                return
            except FileNotFoundError:  # whoever lists the blocks removes empty folders, also one just created
                if not tries_left:
                    raise

    def abandon(self, claim: Claim) -> None:
        """Ends a claim without storing the block."""
        try:
            with contextlib.suppress(OSError):
                self.folder.unlink(claim.block.claim)
            if claim.reserved_bytes:
                self.add_bytes(-claim.reserved_bytes)
        finally:
            self._end(claim)

    def _end(self, claim: Claim) -> None:
        if self._fetching.get(claim.block.claim) is claim:  # its file is gone: another thread may hold the next one
            del self._fetching[claim.block.claim]
        with contextlib.suppress(OSError):
            fcntl.flock(claim.descriptor, fcntl.LOCK_UN)  # closing is not enough if the process forked meanwhile
        os.close(claim.descriptor)
        claim.ended.set()

    def wait(self, block: Block, patience_seconds: float) -> bool:
        """Waits until nobody fetches a block; returns False if somebody still does when the time is over.

        Args:
            block: Which block.
            patience_seconds: Longest time to wait.
        """
        end = time.monotonic() + patience_seconds
        fetching = self._fetching.get(block.claim)
        if fetching is not None:
            return fetching.ended.wait(patience_seconds)
        pause = _POLL_SECONDS
        while not self._remove_stale_claim(block.claim):
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
                if delta >= 0 and ledger.total_bytes + delta > self.max_bytes:
                    self._evict_for_file(delta, ledger)
                ledger.total_bytes = max(0, ledger.total_bytes + delta)
                write_ledger(self._ledger, ledger)

    def total_bytes(self) -> int:
        """Returns how many bytes the ledger counts."""
        return self._peek().total_bytes

    def _peek(self) -> Ledger:
        return read_ledger(self._ledger) or Ledger(0)

    def _read_ledger(self) -> Ledger:
        return read_ledger(self._ledger) or Ledger(list_blocks(self.folder).total_bytes)

    def _is_refused(self, need: int, ledger: Ledger) -> bool:
        """Returns whether the cache is full, and lately had nothing to evict for this job."""
        now = time.time()
        return (
            ledger.total_bytes + need > self.max_bytes
            and now < ledger.refused_until < now + 2 * _LONGEST_REFUSAL_SECONDS
            and ledger.refused_job in (ANY_JOB, self.jobs.own)
        )

    def _evict_for_block(self, need: int, ledger: Ledger) -> bool:
        """Evicts blocks until there is room for another one; returns False if those that are there stay.

        Args:
            need: Bytes that are added.
            ledger: Receives the total.
        """
        began = time.monotonic()
        listing = self._clean(ledger)
        short = ledger.total_bytes + need - self.max_bytes
        if short <= 0:
            return True
        shares = self._shares(listing)
        has_room = shares.has_room(self.jobs.own, need)
        may_go = [
            shares.is_finished(one.dataset) or (has_room and shares.is_surplus(one.dataset)) for one in listing.folders
        ]
        rows = self._oldest_first(listing, np.flatnonzero(np.array(may_go, bool)[listing.folder]))
        datasets = [listing.folders[folder].dataset for folder in listing.folder[rows].tolist()]
        sizes = file_bytes(listing.size[rows]).tolist()
        wanted = max(short, self.max_bytes // EVICTED_SHARE)
        victims = choose_victims(datasets, sizes, shares, wanted, from_surplus=has_room)
        if sum(sizes[victim] for victim in victims) >= short:
            self._evict(listing, rows[victims].tolist(), ledger)
            return True
        spent = time.monotonic() - began
        if spent > _CHEAP_SECONDS:  # the next blocks are refused without looking through the cache
            ledger.refused_until = time.time() + min(_REFUSAL_FACTOR * spent, _LONGEST_REFUSAL_SECONDS)
            ledger.refused_job = self.jobs.own if not has_room and shares.any_has_room(need) else ANY_JOB
        return False

    def _evict_for_file(self, need: int, ledger: Ledger) -> None:
        """Evicts blocks until there is room for another file, which is needed more than any block.

        Args:
            need: Bytes that are added.
            ledger: Receives the total.
        """
        listing = self._clean(ledger)
        rows = self._oldest_first(listing, np.arange(len(listing.size))).tolist()
        shares = self._shares(listing)
        rows.sort(key=lambda row: not shares.is_finished(listing.folders[int(listing.folder[row])].dataset))
        freed = np.cumsum(file_bytes(listing.size[rows]))
        short = ledger.total_bytes + need - self.max_bytes
        if short > 0:
            self._evict(listing, rows[: int(np.searchsorted(freed, short)) + 1], ledger)

    def _clean(self, ledger: Ledger) -> BlockListing:
        """Removes what dead processes and changed objects left, and returns the blocks on disk."""
        for claim in self.folder.list(CLAIMS):
            with contextlib.suppress(OSError):
                self._remove_stale_claim(f"{CLAIMS}/{claim}")
        for folder in list_folders(self.folder):
            record = read_record(self.folder, folder.shard)
            if record is not None and record.version.folder != folder:
                self._remove_blocks(folder)
        listing = list_blocks(self.folder)
        ledger.total_bytes = listing.total_bytes
        return listing

    def _shares(self, listing: BlockListing) -> Shares:
        held: Counter[bytes] = Counter()
        sizes = np.bincount(listing.folder, file_bytes(listing.size), len(listing.folders)).tolist()
        for folder, size in zip(listing.folders, sizes, strict=True):
            held[folder.dataset] += int(size)
        return Shares(self.max_bytes, self.jobs.datasets(), held)

    def _oldest_first(self, listing: BlockListing, rows: Int64Array) -> Int64Array:
        """Returns rows of blocks in the order in which these were written."""
        statuses = [self.folder.stat(listing.path(row)) for row in rows.tolist()]
        written = np.array([0 if status is None else status.st_mtime_ns for status in statuses], np.int64)
        return rows[np.argsort(written, kind="stable")]

    def _evict(self, listing: BlockListing, rows: list[int], ledger: Ledger) -> None:
        evicted = 0
        for row in rows:
            if self.folder.unlink(listing.path(row)):
                evicted += int(listing.size[row])
            ledger.total_bytes -= file_bytes(int(listing.size[row]))
        current_scope().count("shard_cache.evicted_bytes", evicted)

    def remove_version(self, folder: BlockFolder) -> None:
        """Removes the blocks of an object that has changed."""
        self._remove_blocks(folder)
        with self._lock.held(LOCK_SECONDS) as held:
            if held:
                write_ledger(self._ledger, Ledger(list_blocks(self.folder).total_bytes))

    def _remove_blocks(self, folder: BlockFolder) -> None:
        for name in self.folder.list(folder.path):
            self.folder.unlink(f"{folder.path}/{name}")
        self.folder.remove_folder(folder.path)

    def close(self) -> None:
        """Closes all files, in a forked child those of its parent."""
        self._lock.close()
        os.close(self._ledger)
        for claim in list(self._fetching.values()):
            os.close(claim.descriptor)
        self._fetching.clear()
