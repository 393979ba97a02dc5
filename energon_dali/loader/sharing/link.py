"""The connection of a follower to the rank that reads for it, and what it maps of that rank's memory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.errors import ConfigError, WorkerError
from energon_dali.loader.processes.messages import rebuild_error
from energon_dali.loader.processes.seen_arenas import SeenArenas
from energon_dali.loader.processes.serialization import deserialize
from energon_dali.loader.processes.shared_memory import map_memory
from energon_dali.loader.processes.signals import interrupts_deferred
from energon_dali.loader.sharing.connections import AnyChannel, connect, ended, readable
from energon_dali.loader.sharing.messages import (
    Course,
    Element,
    Failed,
    Goodbye,
    Hello,
    Payload,
    Sizes,
    Took,
    Waiting,
    Welcome,
    decode,
    encode,
)
from energon_dali.loader.sharing.reader import CLOSED, late_ranks

if TYPE_CHECKING:
    from energon_dali.loader.watchdog import Watchdog
    from energon_dali.share_group import Member

_WAIT_SECONDS = 0.2
"""After this time a wait checks whether it has to end."""


def _ends_by_error() -> bool:
    """Returns whether an exception is on its way, or has ended the program; a console goes on after one."""
    error = sys.exc_info()[1]
    if error is None and not hasattr(sys, "ps1"):
        error = getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        return bool(error.code)
    return error is not None and not isinstance(error, (StopIteration, GeneratorExit))


class RemoteFailure(Exception):  # noqa: N818 - it carries one
    """An exception ended the iteration of the rank that reads; `error` is that exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(eq=False)
class _Kept:
    """An element that was received."""

    element: Element
    has_view: bool = False
    """Whether a batch was made that gives the arena back."""


class Link:
    """The connection of a follower's loader to the rank that reads, and what it maps of that rank's memory.

    Args:
        reader: The rank.
        hello: Introduces this loader to the reader.
        node: The node of this rank, as in `Member`.
        watchdog: Limits how long a wait may take.
    """

    def __init__(self, reader: Member, hello: Hello, node: str, watchdog: Watchdog) -> None:
        self.reader = reader
        self._hello = hello
        self._node = node
        self._watchdog = watchdog
        self._channel: AnyChannel | None = None
        self._welcome: Welcome | None = None
        self._sizes: Sizes | None = None
        """Those of the last element that was asked for."""
        self._arenas: dict[int, tuple[int, int]] = {}
        """Descriptor and size of each arena that may be used again."""
        self._seen = SeenArenas()
        self._late: tuple[int, ...] = ()
        self._is_lost = False
        self._failed: Failed | None = None
        self._broken: WorkerError | None = None
        """Why messages were lost on the way."""
        self.on_waiting: Callable[[tuple[int, ...]], object] | None = None
        """On a relay, passes on the ranks for which the reader waits: its own consumers judge their waits."""
        self.is_stopped = False
        """Whether a wait has to end, because the loader stops what waits."""
        self.is_failing = False
        """Whether the loader ends because of an error: its end is then an error for the reader too."""
        self._kept: dict[int, _Kept] = {}
        """By number, the elements that the trainer has not taken, or took last: Ctrl-C may make it ask again."""
        self.oldest = 0
        """Number of the first element that the trainer may ask for."""

    def welcome(self) -> Welcome:
        """Returns the reader's answer about its loader; connects first if necessary.

        Raises:
            WorkerDiedError: The reader has ended.
            ConfigError: The reader's loader is for another dataset, or another data-parallel rank.
        """
        if self._channel is None:
            channel = connect(self.reader, self._node)
            with interrupts_deferred():
                self._channel = channel
                self._send(self._hello)
        while self._welcome is None:
            self._receive()
        if self._welcome.refusal is not None:
            raise ConfigError(
                f"Rank {self._hello.rank} cannot follow rank {self.reader.rank}: {self._welcome.refusal}. Ranks that "
                "share their batches must make the same loaders in the same order."
            )
        return self._welcome

    def sizes(self) -> Sizes:
        """Returns those of the last element that was asked for, or of the welcome; see `welcome`."""
        return self._sizes or self.welcome().sizes

    def report_waiting(self, ranks: tuple[int, ...]) -> None:
        """Reports to the reader for which ranks this relay waits."""
        if self._channel is not None:
            self._send(Waiting(ranks))

    def _send(self, message: Hello | Took | Waiting) -> None:
        assert self._channel is not None
        try:
            self._channel.send(encode(message))
        except OSError:
            self._is_lost = True  # what it sent before it ended can still be received

    def element(self, course: Course, given: int) -> _Kept:
        """Asks for an element, and returns it. It is kept until the trainer has asked for a later one.

        Args:
            course: The course of the loader.
            given: Elements, and ends of epochs, that were delivered before.

        Raises:
            RemoteFailure: An exception ended the reader's iteration.
            WorkerDiedError: The reader has ended.
            WorkerError: The loader was stopped meanwhile.
            WatchdogTimeoutError: Some ranks do not take their batches, or no element arrived in time.
        """
        for number, kept in list(self._kept.items()):
            if kept.element.course != course or number < self.oldest:
                self._drop(number)
        if given not in self._kept:
            self.welcome()
            with interrupts_deferred():  # the reader would never get an arena back whose number is lost here
                self._send(Took(course, given, self.take_released()))
        while given not in self._kept:
            self._receive()
            failed, self._failed = self._failed, None
            if failed is not None and failed.course.calls >= course.calls:  # otherwise a call has undone it
                raise RemoteFailure(rebuild_error(failed.error, f"rank {self.reader.rank}"))
            for number, kept in list(self._kept.items()):
                if kept.element.course != course:
                    self._drop(number)  # sent before a call that changed what follows
        kept = self._kept[given]
        self._sizes = kept.element.sizes
        return kept

    def _drop(self, number: int) -> None:
        kept = self._kept.pop(number)
        payload = kept.element.payload
        if payload is not None and payload.arena >= 0 and not kept.has_view:
            self._seen.release(payload.arena)

    def _receive(self) -> None:
        """Receives the next message, and keeps it."""
        assert self._channel is not None
        began = time.monotonic()
        while True:
            if self._broken is not None:
                raise self._broken
            if self.is_stopped:
                raise WorkerError(CLOSED)
            readable([self._channel.fileno()], _WAIT_SECONDS)
            with interrupts_deferred():  # a message that was taken from the socket must not be lost
                try:
                    received = self._channel.receive(wait=False)
                except EOFError:
                    if self._is_lost:
                        raise ended(self.reader.rank) from None
                    self._is_lost = True  # a reset connection reports that first, and then returns what arrived
                    continue
                except WorkerError as error:
                    self._broken = error
                    continue
                if received is not None:
                    self._take(decode(received[0]), received[1])
                    return
            self._judge(time.monotonic() - began)

    def _take(self, message: Any, descriptors: list[int]) -> None:
        if isinstance(message, Waiting):
            self._late = message.ranks
            if self.on_waiting is not None:
                self.on_waiting(message.ranks)
            return
        self._late = ()
        if isinstance(message, Welcome):
            self._welcome = message
        elif isinstance(message, Failed):
            self._failed = message
        else:
            self._keep(message.payload, descriptors)
            self._kept[message.given] = _Kept(message)

    def _judge(self, waited: float) -> None:
        if not self._late:
            self._watchdog.check(waited)
            return
        limit = self._watchdog.limit_seconds
        if self.on_waiting is not None:
            self.on_waiting(self._late)
        elif limit is not None and waited > limit:
            raise late_ranks(self._late, waited)

    def batch(self, kept: _Kept) -> Any:
        """Returns a batch. Its large tensors are views of a private mapping: other ranks see no writes to them."""
        payload = kept.element.payload
        if payload is None:
            return None
        if payload.arena < 0:
            source = memoryview(bytearray(payload.inline))
        elif kept.has_view:  # of the same batch, which Ctrl-C kept from the trainer; that view gives the arena back
            source = self._copied(payload.arena)
        else:
            with interrupts_deferred():
                source = self._copied(payload.arena) if payload.must_copy else self._view(payload.arena)
                kept.has_view = True
                if payload.must_copy:
                    self._seen.release(payload.arena)
        return deserialize(source, payload.extents, payload.tensors)

    def _keep(self, payload: Payload | None, descriptors: list[int]) -> None:
        """Records new arenas that arrived with a batch, and drops those that are not used any more."""
        if payload is None:
            return
        for number in payload.dropped:
            os.close(self._arenas.pop(number)[0])
        if payload.new_capacity:
            (descriptor,) = descriptors
            self._arenas[payload.arena] = descriptor, payload.new_capacity

    def _view(self, number: int) -> memoryview:
        # Mapped again for each batch: otherwise pages that this process wrote to would keep their old content.
        descriptor, size = self._arenas[number]
        root = np.frombuffer(map_memory(descriptor, size, private=True), dtype=np.uint8)
        self._seen.watch(number, root)
        return root.data

    def _copied(self, number: int) -> memoryview:
        descriptor, size = self._arenas[number]
        return memoryview(np.frombuffer(map_memory(descriptor, size, private=True), dtype=np.uint8).copy())

    def take_released(self) -> tuple[int, ...]:
        """Returns the arenas that were released since the last call; see `SeenArenas.take_released`."""
        return tuple(self._seen.take_released())

    def leave(self) -> None:
        """Reports to the reader that this rank may end, unless an error ends it."""
        self.is_failing = self.is_failing or _ends_by_error()
        if self._channel is not None and self._welcome is not None and not self.is_failing:
            try:
                self._channel.send(encode(Goodbye()), wait=False)
            except OSError:
                return  # it has ended, which the next request shows

    def after_fork(self) -> None:
        """Closes the connection in a forked child; otherwise the reader would not notice that this rank has ended."""
        self._welcome = None  # no Goodbye to the reader, whose follower is the parent
        self.close()

    def close(self) -> None:
        """Ends the connection. Batches that are held stay valid: the reader does not use their memory again."""
        self.leave()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        self._seen.clear()
        while self._arenas:
            os.close(self._arenas.popitem()[1][0])
