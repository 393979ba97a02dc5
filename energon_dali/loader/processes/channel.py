"""A connection between two processes: whole messages and file descriptors, and no name in the file system."""

from __future__ import annotations

import array
import mmap
import os
import socket
from collections.abc import Sequence

from energon_dali.errors import WorkerError
from energon_dali.loader.processes.shared_memory import taking_memory

INLINE_BYTES = 32 * 1024
"""Messages up to this size travel in the socket; larger ones in anonymous memory whose descriptor travels."""

_MAX_FDS = 8
_INLINE, _IN_MEMORY = b"\x00", b"\x01"


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
