"""The file in which a process tells the others of its node what its streams will use.

    - "<8sIIQQ": magic, number of streams, CRC-32 of what follows the positions, bytes of it, number of followed shards
- "<qd" for each stream: position that is read next, seconds per position (changed in place)
- "<QQQ" for each stream: number of blocks, number of uses, span
- arrays: keys of the followed shards (uint64); for each stream ids (uint64), starts (int64), keys (int64)

The process holds a lock on the file. A file without a lock belongs to a process that is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import struct
import uuid
from collections.abc import Callable
from zlib import crc32

import numpy as np

from energon_dali.cache.shard_cache.block_file import pages
from energon_dali.cache.shard_cache.future import Future, StreamFuture
from energon_dali.cache.shard_cache.private_folder import PrivateFolder
from energon_dali.plan.next_use import UseTable
from energon_dali.plan.rng import Int64Array, Uint64Array

FOLDER = "plans"
MAX_BYTES = 256 << 20

_MAGIC = b"EDSHPLN1"
_HEAD = struct.Struct("<8sIIQQ")
_LIVE = struct.Struct("<qd")
_COUNTS = struct.Struct("<QQQ")


class PlanFile:
    """The plan of this process, for the others.

    Args:
        folder: The folder of the cache.
        add_bytes: Called before the file takes more bytes on disk, and after it takes fewer, with the difference.
    """

    def __init__(self, folder: PrivateFolder, add_bytes: Callable[[int], None]) -> None:
        self._folder = folder
        self._add_bytes = add_bytes
        self.name = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._descriptor = -1
        self._streams = 0
        self._bytes = 0

    def publish(self, future: Future) -> None:
        """Writes the plan, in place of the last one.

        Raises:
            OSError: It cannot be written.
        """
        data = pack_plan(future)
        bytes_on_disk = pages(len(data))
        self._add_bytes(bytes_on_disk)  # the last one stays until this one replaces it
        path = f"{FOLDER}/{self.name}"
        temporary = f"{path}.tmp"
        descriptor = self._folder.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            self._folder.rename(temporary, path)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                self._folder.unlink(temporary)
            self._add_bytes(-bytes_on_disk)
            raise
        # Forgotten before it is closed: a fork in between would close a number that may be another file's by then.
        before, bytes_before = self._descriptor, self._bytes
        self._descriptor, self._streams, self._bytes = descriptor, len(future.streams), bytes_on_disk
        if before >= 0:
            os.close(before)
            self._add_bytes(-bytes_before)

    def update(self, live: list[tuple[int, float]]) -> None:
        """Writes the positions of the streams.

        Args:
            live: (position that is read next, seconds per position) of each stream that was published.

        Raises:
            OSError: They cannot be written.
        """
        if self._descriptor >= 0 and len(live) == self._streams:
            os.pwrite(self._descriptor, b"".join(_LIVE.pack(*row) for row in live), _HEAD.size)

    def forget(self) -> None:
        """Closes the file in a forked child, so that it does not hold the lock of its parent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def close(self) -> None:
        """Removes the file."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._folder.unlink(f"{FOLDER}/{self.name}")
            self._add_bytes(-self._bytes)
            self.forget()


def pack_plan(future: Future) -> bytes:
    """Returns the content of a plan file."""
    arrays: list[Uint64Array | Int64Array] = [future.followed]
    counts, live = [], []
    for stream in future.streams:
        table = stream.table
        counts.append(_COUNTS.pack(len(table.ids), len(table.keys), table.span))
        live.append(_LIVE.pack(stream.now, stream.seconds_per_position))
        arrays += [table.ids, table.starts, table.keys]
    body = b"".join(counts) + b"".join(array.astype("<u8").tobytes() for array in arrays)
    head = _HEAD.pack(_MAGIC, len(future.streams), crc32(body), len(body), len(future.followed))
    return head + b"".join(live) + body


def unpack_plan(data: bytes) -> Future:
    """Returns the plan of a file's content.

    Raises:
        ValueError: It is damaged.
    """
    if len(data) < _HEAD.size:
        raise ValueError("it is too short")
    magic, streams, checksum, size, followed = _HEAD.unpack_from(data)
    live_end = _HEAD.size + _LIVE.size * streams
    body = memoryview(data)[live_end:]
    if magic != _MAGIC or len(body) != size or crc32(body) != checksum or size < _COUNTS.size * streams:
        raise ValueError("it is damaged")
    offset = live_end + _COUNTS.size * streams

    def take(dtype: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        nonlocal offset
        array = np.frombuffer(data, dtype, count, offset)
        offset += array.nbytes
        return array

    shards: Uint64Array = take("<u8", followed).astype(np.uint64)
    found = []
    for number in range(streams):
        now, pace = _LIVE.unpack_from(data, _HEAD.size + _LIVE.size * number)
        blocks, uses, span = _COUNTS.unpack_from(data, live_end + _COUNTS.size * number)
        if not (now >= 0 and math.isfinite(pace) and pace >= 0 and span < 1 << 63):
            raise ValueError("a position is damaged")
        ids, starts, keys = take("<u8", blocks), take("<i8", blocks + 1), take("<i8", uses)
        table = UseTable(ids.astype(np.uint64), starts.astype(np.int64), keys.astype(np.int64), span)
        found.append(StreamFuture(table, now, pace))
    return Future(found, shards)


def read_plans(folder: PrivateFolder, own: str) -> list[Future]:
    """Returns the plans of the other processes, and removes those of processes that are gone.

    Args:
        folder: The folder of the cache.
        own: Name of this process's file, which is not read.

    Raises:
        OSError: The folder cannot be listed.
    """
    plans = []
    for name in folder.list(FOLDER):
        if name.removesuffix(".tmp") == own:
            continue
        path = f"{FOLDER}/{name}"
        with contextlib.suppress(OSError, ValueError):
            descriptor = folder.open(path, os.O_RDWR)
            try:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    size = os.fstat(descriptor).st_size
                    if size <= MAX_BYTES and not name.endswith(".tmp"):
                        plans.append(unpack_plan(os.pread(descriptor, size, 0)))
                else:
                    # Not one that was replaced between opening and locking, and not one that is just being created.
                    status = folder.stat(path)
                    if status is not None and os.path.samestat(status, os.fstat(descriptor)):
                        folder.unlink(path)
            finally:
                os.close(descriptor)
    return plans
