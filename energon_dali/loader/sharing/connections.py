"""Connections between ranks of a node: the reader takes them, and finds the loader that each of them is for."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

from energon_dali.errors import WorkerDiedError, WorkerError
from energon_dali.loader.processes.channel import Channel
from energon_dali.loader.sharing.messages import Hello, decode
from energon_dali.shards.storage.forks import drop_in_child
from energon_dali.shards.storage.node_files import is_own_user
from energon_dali.share_group import ShareGroup

if TYPE_CHECKING:
    from energon_dali.share_group import Member


class Reception:
    """Takes the connections of followers in a thread, tells them what they have to know, and sorts them by loader.

    Args:
        group: The group, of which this rank is a reader.
    """

    def __init__(self, group: ShareGroup) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._silent: list[Channel] = []
        """Connections whose followers have not said anything."""
        self._waiting: list[tuple[Hello, Channel]] = []
        """Those for loaders that this rank has not made."""
        self._loaders: dict[int, Registered] = {}
        self._closed: set[int] = set()
        """Loaders that this rank has dropped."""
        self._pid = os.getpid()
        threading.Thread(target=self._run, name="energon-dali-share", daemon=True).start()

    def register(self, number: int, loader: Registered) -> None:
        """Serves the followers of a loader from now on.

        Args:
            number: Of the loader.
            loader: Answers them.
        """
        with self._lock:
            self._loaders[number] = loader
        self._look_again()

    def unregister(self, number: int) -> None:
        """Serves a loader no more: followers that ask for it find that it has ended."""
        with self._lock:
            self._loaders.pop(number, None)
            self._closed.add(number)
        self._look_again()

    def _look_again(self) -> None:
        if os.getpid() == self._pid:
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while (server := self._group.server) is not None and os.getpid() == self._pid:
            with self._lock:
                silent = [channel.fileno() for channel in self._silent]
            readable([server.fileno(), self._wake, *silent], 60.0)
            drain(self._wake)
            self._accept(server)
            for channel in list(self._silent):
                self._listen(channel)
            self._introduce()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # nobody waits, or the socket was closed meanwhile
                return
            if is_own_user(connection):
                with self._lock:
                    self._silent.append(Channel(connection))
            else:
                connection.close()

    def _listen(self, channel: Channel) -> None:
        """Takes the first message of a connection, if it has arrived."""
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
                self._waiting.append((decode(received[0]), channel))

    def _introduce(self) -> None:
        """Hands connections to their loaders."""
        with self._lock:
            known = self._loaders.keys() | self._closed
            served = [(hello, channel) for hello, channel in self._waiting if hello.loader in known]
            self._waiting = [one for one in self._waiting if one[0].loader not in known]
        for hello, channel in served:
            loader = self._loaders.get(hello.loader)
            if loader is None:  # it was closed meanwhile
                channel.close()
            else:
                loader.welcome(hello, channel)

    def after_fork(self) -> None:
        """Closes the connections in a forked child: followers would not notice that the reader has ended."""
        self._lock = threading.Lock()
        for channel in (*self._silent, *(channel for _, channel in self._waiting)):
            channel.close()
        self._silent, self._waiting, self._loaders = [], [], {}


class Registered(Protocol):
    """A loader that followers can ask for."""

    def welcome(self, hello: Hello, channel: Channel) -> None:
        """Takes a connection; called in the thread of the reception."""


_receptions: weakref.WeakKeyDictionary[ShareGroup, Reception] = weakref.WeakKeyDictionary()


def reception_of(group: ShareGroup) -> Reception:
    """Returns the reception of a reader, which all of its loaders share."""
    found = _receptions.get(group)
    if found is None:
        found = _receptions[group] = Reception(group)
        drop_in_child(found)
    return found


def drain(event: int) -> None:
    """Takes what was written to an eventfd, if anything was."""
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(event)


def connect(reader: Member) -> Channel:
    """Returns a connection to the rank that reads for this one.

    Args:
        reader: The rank.

    Raises:
        WorkerDiedError: Its process has ended.
        WorkerError: The process there is another user's.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"\0{reader.address}")
        if not is_own_user(connection):
            raise WorkerError(
                f"The process that answers for rank {reader.rank} is another user's. Start all ranks of a node as one "
                "user."
            )
    except OSError as error:
        connection.close()
        raise ended(reader.rank) from error
    except BaseException:
        connection.close()
        raise
    return Channel(connection)


def ended(rank: int) -> WorkerDiedError:
    """Returns the error about the end of a process that reads for this one."""
    return WorkerDiedError(
        f"Rank {rank}, which reads for this rank, has ended or closed its loader. Its own output says why. Ranks that "
        "share their batches end together."
    )


def readable(descriptors: list[int], seconds: float | None) -> list[int]:
    """Waits until one of some descriptors is readable or hung up, and returns those that are.

    Args:
        descriptors: Negative ones are left out.
        seconds: How long to wait at most; None waits without limit.
    """
    poller = select.poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(None if seconds is None else 1000 * seconds)]
