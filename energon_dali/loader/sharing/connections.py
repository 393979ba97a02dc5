"""Connections between ranks: the reader accepts them, and finds the loader that each of them is for."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Protocol

from energon_dali.errors import WorkerDiedError, WorkerError
from energon_dali.loader.processes.shared_memory import Channel
from energon_dali.loader.sharing.messages import Hello, decode
from energon_dali.shards.storage.forks import drop_in_child
from energon_dali.shards.storage.node_files import is_own_user
from energon_dali.share_group import ShareGroup

if TYPE_CHECKING:
    from energon_dali.share_group import Member

_SIZE = struct.Struct("!Q")
"""Precedes each message over the network: its size in bytes."""
_GREETING_SECONDS, _CONNECT_SECONDS, _PAUSE_SECONDS = 10, 60.0, 0.1


class Reception:
    """Accepts the connections of followers in a thread, and passes each to the loader that it is for.

    Args:
        group: The group, of which this rank is a reader.
    """

    def __init__(self, group: ShareGroup) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._silent: list[AnyChannel] = []
        """Connections whose followers have not sent a message."""
        self._waiting: list[tuple[Hello, AnyChannel]] = []
        """Connections for loaders that this rank has not made yet."""
        self._loaders: dict[int, Registered] = {}
        self._closed: set[int] = set()
        """Numbers of the loaders that this rank has dropped."""
        self._pid = os.getpid()
        threading.Thread(target=self._run, name="energon-dali-share", daemon=True).start()

    def register(self, number: int, loader: Registered) -> None:
        """Serves the followers of a loader from now on.

        Args:
            number: Number of the loader.
            loader: Answers the followers.
        """
        with self._lock:
            self._loaders[number] = loader
        self._look_again()

    def unregister(self, number: int) -> None:
        """Stops serving a loader: followers that ask for it find that it has ended."""
        with self._lock:
            self._loaders.pop(number, None)
            self._closed.add(number)
        self._look_again()

    def _look_again(self) -> None:
        if os.getpid() == self._pid:
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while (servers := self._group.servers) and os.getpid() == self._pid:
            with self._lock:
                silent = [channel.fileno() for channel in self._silent]
            readable([*(server.fileno() for server in servers), self._wake, *silent], 60.0)
            drain(self._wake)
            for server in servers:
                self._accept(server)
            for channel in list(self._silent):
                self._listen(channel)
            self._introduce()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except BlockingIOError:
                return
            except OSError:  # the socket was closed meanwhile, or this process has too many files open
                time.sleep(_PAUSE_SECONDS)
                return
            if connection.family != socket.AF_UNIX:
                threading.Thread(target=self._greet, args=(connection,), name="energon-dali-share", daemon=True).start()
            elif is_own_user(connection):
                with self._lock:
                    self._silent.append(Channel(connection))
            else:
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        """Accepts a connection over the network, if the other end has the secret of the group."""
        try:
            channel = greeted(connection, self._group.own.address, asks_first=True)
        except (OSError, EOFError, AuthenticationError):
            return
        with self._lock:
            self._silent.append(channel)
        self._look_again()

    def _listen(self, channel: AnyChannel) -> None:
        """Receives the first message of a connection, if it has arrived."""
        try:
            received = channel.receive(wait=False)
        except (EOFError, WorkerError):
            with self._lock:
                self._silent.remove(channel)
            channel.close()
            return
        if received is not None:
            with self._lock:
                self._silent.remove(channel)
            try:
                hello = decode(received[0])
            except Exception:  # no rank of this job sends that
                channel.close()
                return
            with self._lock:
                self._waiting.append((hello, channel))

    def _introduce(self) -> None:
        """Passes connections to their loaders."""
        with self._lock:
            known = self._loaders.keys() | self._closed
            served = [(hello, channel) for hello, channel in self._waiting if hello.loader in known]
            self._waiting = [one for one in self._waiting if one[0].loader not in known]
        for hello, channel in served:
            loader = self._loaders.get(hello.loader)
            if loader is None:  # it was closed meanwhile
                channel.close()
            else:
                try:
                    loader.welcome(hello, channel)
                except Exception:  # of one follower: the others are still served
                    channel.close()

    def after_fork(self) -> None:
        """Closes the connections in a forked child; otherwise followers would not notice that the reader has ended."""
        self._lock = threading.Lock()
        for channel in (*self._silent, *(channel for _, channel in self._waiting)):
            channel.close()
        self._silent, self._waiting, self._loaders = [], [], {}


class Registered(Protocol):
    """A loader that followers can ask for."""

    def welcome(self, hello: Hello, channel: AnyChannel) -> None:
        """Takes over a connection; called in the thread of the reception."""


_receptions: weakref.WeakKeyDictionary[ShareGroup, Reception] = weakref.WeakKeyDictionary()


def reception_of(group: ShareGroup) -> Reception:
    """Returns the reception of a reader, which all of its loaders share."""
    found = _receptions.get(group)
    if found is None:
        found = _receptions[group] = Reception(group)
        drop_in_child(found)
    return found


def drain(event: int) -> None:
    """Resets an eventfd, if anything was written to it."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(event)


class RemoteChannel:
    """A connection over the network: whole messages, and no descriptors. They travel in parts.

    Args:
        sock: This end of it; the channel owns it from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        sock.setblocking(False)
        self._sending: bytes | None = None
        """The message of which `_unsent` is the rest."""
        self._unsent: list[memoryview] = []
        self._size = bytearray(_SIZE.size)
        self._message: bytearray | None = None
        """The message that arrives; None until its size is known."""
        self._arrived = 0
        """Bytes of the message, or of its size, that have arrived."""

    def fileno(self) -> int:
        """Returns the descriptor to poll; -1 once closed."""
        return self._socket.fileno()

    def send(self, message: bytes, fds: Sequence[int] = (), *, wait: bool = True) -> bool:
        """Sends a message; with `wait=False` as much of it as there is room for now.

        Args:
            message: The bytes. If they were not sent, call again with this object; another message follows the rest.
            fds: Must be empty: descriptors do not travel between nodes.
            wait: Whether to wait for room.

        Returns:
            Whether all of it was sent.

        Raises:
            OSError: The other end is gone.
        """
        assert not fds, "descriptors do not travel between nodes"
        if self._sending is not message:
            if not self._flush(wait):
                return False
            self._sending = message
            self._unsent = [memoryview(_SIZE.pack(len(message))), memoryview(message)]
        return self._flush(wait)

    def _flush(self, wait: bool) -> bool:
        """Sends the rest of a message; returns whether nothing is left of it."""
        while self._unsent:
            try:
                sent = self._socket.sendmsg(self._unsent)
            except BlockingIOError:
                if not wait:
                    return False
                writable(self.fileno(), None)
                continue
            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if self._unsent:
                self._unsent[0] = self._unsent[0][sent:]
        self._sending = None
        return True

    def receive(self, *, wait: bool = True) -> tuple[bytes | bytearray, list[int]] | None:
        """Returns the next message, and no descriptors; None if not all of it has arrived and not `wait`.

        Raises:
            EOFError: The other end is gone.
        """
        while True:
            into = self._size if self._message is None else self._message
            if self._arrived < len(into):
                try:
                    count = self._socket.recv_into(memoryview(into)[self._arrived :])
                except BlockingIOError:
                    if not wait:
                        return None
                    readable([self.fileno()], None)
                    continue
                except OSError as error:
                    raise EOFError from error
                if not count:
                    raise EOFError
                self._arrived += count
                continue
            self._arrived = 0
            message, self._message = self._message, None
            if message is not None:
                return message, []
            self._message = bytearray(_SIZE.unpack(into)[0])

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()


AnyChannel = Channel | RemoteChannel


def greeted(connection: socket.socket, secret: str, *, asks_first: bool) -> RemoteChannel:
    """Returns a channel over a connection after both ends have proved that they have the same secret.

    Args:
        connection: A connection over the network.
        secret: Only the ranks of the group have it: it was gathered over their process groups.
        asks_first: Whether this end sends the first challenge.

    Raises:
        AuthenticationError: The other end does not have it.
        OSError: The connection ended, or nothing arrived for some seconds.
        EOFError: The connection ended.
    """
    connection.setblocking(True)
    # An option of the socket itself: Python's timeout would make it non-blocking, which Connection does not expect.
    if asks_first:  # the other end waits as long as this one needs to open its first dataset
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _GREETING_SECONDS, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
        connection.setsockopt(socket.IPPROTO_TCP, option, 5)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects a lost node within half a minute
    plain = Connection(connection.detach())
    try:
        key = secret.encode()
        for asks in (asks_first, not asks_first):
            (deliver_challenge if asks else answer_challenge)(plain, key)
    except BaseException:
        plain.close()
        raise
    same = socket.socket(fileno=os.dup(plain.fileno()))
    plain.close()
    return RemoteChannel(same)


def connect(reader: Member, node: str) -> AnyChannel:
    """Returns a connection to the rank that reads for this one.

    Args:
        reader: The rank.
        node: The node of this rank, as in `Member`.

    Raises:
        WorkerDiedError: Its process has ended, or cannot be reached.
        WorkerError: The process there belongs to another user or another job.
    """
    if reader.node != node:
        assert reader.network is not None, "only relays take batches from other nodes"
        try:
            remote = socket.create_connection(reader.network, timeout=_CONNECT_SECONDS)
            return greeted(remote, reader.address, asks_first=False)
        except AuthenticationError as error:
            raise WorkerError(f"The process at {reader.network} is not rank {reader.rank} of this job.") from error
        except (OSError, EOFError) as error:
            raise ended(reader.rank) from error
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"\0{reader.address}")
        if not is_own_user(connection):
            raise WorkerError(
                f"The process at the socket of rank {reader.rank} belongs to another user. Start all ranks of a node "
                "as the same user."
            )
    except OSError as error:
        connection.close()
        raise ended(reader.rank) from error
    except BaseException:
        connection.close()
        raise
    return Channel(connection)


def ended(rank: int) -> WorkerDiedError:
    """Returns the error for a reader that has ended."""
    return WorkerDiedError(
        f"Rank {rank}, which reads for this rank, has ended or closed its loader. Its own output says why. Ranks that "
        "share their batches end together."
    )


def readable(descriptors: list[int], seconds: float | None) -> list[int]:
    """Waits until one of some descriptors is readable or hung up, and returns those that are.

    Args:
        descriptors: What to wait for; negative ones are ignored.
        seconds: How long to wait at most; None waits without limit.
    """
    poller = select.poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(None if seconds is None else 1000 * seconds)]


def writable(descriptor: int, seconds: float | None) -> None:
    """Waits until there is room to send, or the other end is gone.

    Args:
        descriptor: A socket.
        seconds: How long to wait at most; None waits without limit.
    """
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    poller.poll(None if seconds is None else 1000 * seconds)
