"""What two processes share: anonymous memory, and a connection for messages and file descriptors; no names of files.

There is one arena of memory per block in flight, reused when nobody sees it any more.
"""

from __future__ import annotations

import array
import ctypes
import errno
import mmap
import os
import resource
import socket
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from energon_dali.errors import WorkerError
from energon_dali.loader.processes.seen_arenas import SeenArenas

INLINE_BYTES = 32 * 1024
"""Messages up to this size travel in the socket; larger ones in anonymous memory whose descriptor travels."""

_MAX_FDS = 8
_INLINE, _IN_MEMORY = b"\x00", b"\x01"

_PAGE = mmap.PAGESIZE
# PyDLL keeps the interpreter lock: releasing it for a system call of microseconds would cost the thread that unmaps up
# to one switch interval (5 ms) next to a busy trainer.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


def map_memory(descriptor: int, size: int, *, private: bool = False) -> Any:
    """Maps a descriptor, readable and writable. It is unmapped when the last view of the result is gone.

    The descriptor may be closed afterwards. (`mmap.mmap` keeps a copy of it open while the mapping exists, so a user
    who keeps a thousand batches would run out of descriptors.)

    Args:
        descriptor: A memory file of at least `size` bytes.
        size: Bytes to map, a multiple of the page size.
        private: Keep what this process writes to itself; otherwise all processes that map the descriptor see it.

    Returns:
        An object with the buffer protocol.

    Raises:
        MemoryError: The address space or a limit of the process is exhausted.
    """
    flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
    if address is None or address == _MAP_FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise MemoryError(f"Mapping {size} bytes of a block failed: {reason}. Keep fewer batches alive.")
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, size).atexit = False
    return memory


@contextmanager
def taking_memory(size: int) -> Iterator[None]:
    """Turns an error about shared memory into one that says why and what to do.

    Args:
        size: Bytes that are requested.

    Raises:
        WorkerError: The system refused them.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            remedy = (
                f"The limit on the size of files counts for it too, and is {limit} bytes: raise it (`ulimit -f "
                "unlimited`), or give smaller batches."
            )
        elif error.errno in (errno.EMFILE, errno.ENFILE):
            remedy = "Close files that are not needed, or raise the limit (ulimit -n)."
        else:
            remedy = "Give smaller batches, fewer workers or a smaller prefetch_factor."
        raise WorkerError(
            f"{size} bytes of memory that processes of the loader share could not be taken: "
            f"{error.strerror or error}. {remedy}"
        ) from error


class Arena:
    """A piece of shared memory, in the process that writes it."""

    __slots__ = ("capacity", "descriptor", "device", "memory", "number")

    def __init__(self, number: int, capacity: int) -> None:
        self.number = number
        self.capacity = capacity
        self.device = 0
        with taking_memory(capacity):
            self.descriptor: int | None = os.memfd_create("energon-dali-block", os.MFD_CLOEXEC)
            try:
                os.ftruncate(self.descriptor, capacity)
                self.memory = np.frombuffer(map_memory(self.descriptor, capacity), dtype=np.uint8)
            except BaseException:
                os.close(self.descriptor)
                raise

    def close_descriptor(self) -> None:
        """Closes the descriptor after it was sent; the mapping stays."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class AnyArena(Protocol):
    """An arena of any kind of memory."""

    number: int
    capacity: int
    device: int


ArenaT = TypeVar("ArenaT", bound=AnyArena)


class ArenaPool(ABC, Generic[ArenaT]):
    """The arenas of the process that writes: one per block that somebody still sees, and a few free ones.

    Args:
        spare: Free arenas to keep per device, at least 1.
    """

    granule: int
    """Capacities are multiples of it."""

    def __init__(self, spare: int) -> None:
        self._spare = spare
        self._free: list[ArenaT] = []
        self._used: dict[int, ArenaT] = {}
        self._next_number = 0
        self._dropped: list[int] = []

    @abstractmethod
    def _make(self, number: int, device: int, capacity: int) -> ArenaT:
        """Returns a new arena."""

    def take(self, size: int, device: int = 0) -> ArenaT:
        """Returns an arena of at least `size` bytes; never waits."""
        own = [arena for arena in self._free if arena.device == device]
        fitting = [arena for arena in own if arena.capacity >= size]
        if fitting:
            arena = min(fitting, key=lambda candidate: candidate.capacity)
            self._free.remove(arena)
        else:
            if own:  # all are too small: drop the smallest
                self._drop(min(own, key=lambda candidate: candidate.capacity))
            # A quarter more than needed, so that blocks of slightly different sizes fit the same arena.
            arena = self._make(self._next_number, device, -(-(size + size // 4) // self.granule) * self.granule)
            self._next_number += 1
        self._used[arena.number] = arena
        return arena

    def give_back(self, number: int) -> None:
        """Marks an arena as free, because nobody sees it any more."""
        arena = self._used.pop(number)
        self._free.append(arena)
        own = [other for other in self._free if other.device == arena.device]
        if len(own) > self._spare:
            self._drop(min(own, key=lambda candidate: candidate.capacity))

    def abandon(self, number: int) -> None:
        """Forgets an arena that somebody may see indefinitely; it is not used again."""
        self._used.pop(number, None)

    def take_back(self, released: int) -> None:
        """Marks an arena as free, or forgets it, as `SeenArenas.take_released` says."""
        if released >= 0:
            self.give_back(released)
        else:
            self.abandon(~released)

    def _drop(self, arena: ArenaT) -> None:
        self._free.remove(arena)
        self._dropped.append(arena.number)

    def take_dropped(self) -> list[int]:
        """Returns the numbers of the arenas dropped since the last call; the reader has to drop them too."""
        dropped, self._dropped = self._dropped, []
        return dropped


class ArenaStore(ArenaPool[Arena]):
    """The arenas of shared memory of one process."""

    granule = _PAGE

    def _make(self, number: int, device: int, capacity: int) -> Arena:
        return Arena(number, capacity)


class ArenaViews:
    """The arenas of one writer in the process that reads them, and which of them nobody sees any more."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}
        self._seen = SeenArenas()

    def add(self, number: int, descriptor: int, capacity: int) -> None:
        """Maps a new arena and closes the descriptor."""
        try:
            self._memory[number] = map_memory(descriptor, capacity)
        finally:
            os.close(descriptor)

    def drop(self, numbers: list[int]) -> None:
        """Drops arenas; their memory is unmapped when the last view of it is gone."""
        for number in numbers:
            self._memory.pop(number, None)

    def view(self, number: int) -> memoryview:
        """Returns the memory of an arena, writable. `take_released` returns its number when all views are gone."""
        root = np.frombuffer(self._memory[number], dtype=np.uint8)
        self._seen.watch(number, root)
        return root.data

    def take_released(self) -> list[int]:
        """Returns the arenas whose views have all gone since the last call; see `SeenArenas.take_released`."""
        released = self._seen.take_released()
        self.drop([~one for one in released if one < 0])
        return released

    def drop_all(self) -> None:
        """Drops all arenas; views that are still held stay valid."""
        self._seen.clear()
        self._memory.clear()


class Channel:
    """One end of a connection. A message is some bytes and a few file descriptors; it arrives whole or not at all.

    Args:
        sock: A Unix SOCK_SEQPACKET socket; the channel owns it from now on.
    """

    __slots__ = ("_socket",)

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Returns two ends of a new connection."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        """Returns the descriptor to poll; -1 once closed."""
        return self._socket.fileno()

    def send(self, message: bytes, fds: Sequence[int] = (), *, wait: bool = True) -> bool:
        """Sends a message; with `wait=False` only if there is room now.

        Args:
            message: The bytes.
            fds: Descriptors to send copies of; the caller keeps and closes its own.
            wait: Whether to wait for room.

        Returns:
            Whether it was sent.

        Raises:
            OSError: The other end is gone.
            WorkerError: The system refused memory for it.
        """
        if len(message) > INLINE_BYTES:
            memory = _in_memory(message)
            try:
                return self._send(_IN_MEMORY, (*fds, memory), wait)
            finally:
                os.close(memory)
        return self._send(_INLINE + message, fds, wait)

    def _send(self, data: bytes, fds: Sequence[int], wait: bool) -> bool:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        flags = socket.MSG_NOSIGNAL | (0 if wait else socket.MSG_DONTWAIT)
        try:
            self._socket.sendmsg([data], rights, flags)
        except BlockingIOError:
            return False
        return True

    def receive(self, *, wait: bool = True) -> tuple[bytes, list[int]] | None:
        """Returns the next message and its descriptors, which the caller closes; None if there is none and not `wait`.

        Raises:
            EOFError: The other end is gone, and everything it sent was received; or this end was closed.
            WorkerError: This process is at its limit of open files, so descriptors of the message are lost; or
                something else in it closed the connection's descriptor.
        """
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        try:
            data, ancillary, got, _ = self._socket.recvmsg(INLINE_BYTES + 1, socket.CMSG_SPACE(4 * _MAX_FDS), flags)
        except BlockingIOError:
            return None
        except OSError as error:
            if isinstance(error, ConnectionError) or self.fileno() < 0:
                raise EOFError from error
            raise WorkerError(
                f"The connection to another process of the loader cannot be used any more: {error}. Something in this "
                "process closed a file descriptor that it had not opened, such as by os.close or os.closerange."
            ) from error
        if not data:
            raise EOFError
        fds = array.array("i")
        for level, kind, rights in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
        descriptors = fds.tolist()
        if got & socket.MSG_CTRUNC:
            for descriptor in descriptors:
                os.close(descriptor)
            raise WorkerError(
                "Memory that another process of the loader sent could not be taken: this process has as many files "
                "open as it may. Close files that are not needed, or raise the limit (ulimit -n)."
            )
        if data[:1] == _INLINE:
            return data[1:], descriptors
        memory = descriptors.pop()
        try:
            return _from_memory(memory), descriptors
        finally:
            os.close(memory)

    def hang_up(self) -> None:
        """Ends the connection for both ends, also for copies of this end in other processes."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end hung up first

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()


def _in_memory(message: bytes) -> int:
    with taking_memory(len(message)):
        descriptor = os.memfd_create("energon-dali-message", os.MFD_CLOEXEC)
        try:
            view = memoryview(message)
            while view:
                view = view[os.write(descriptor, view) :]
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def _from_memory(descriptor: int) -> bytes:
    with mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=mmap.ACCESS_READ) as mapped:
        return mapped[:]
