"""Sends the batches of a reader to the ranks that follow it: written once, into memory that all of them map."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError, WorkerDiedError, WorkerError
from energon_dali.loader.cuda_handoff import find_cuda_tensors
from energon_dali.loader.processes.messages import failed_stream
from energon_dali.loader.processes.serialization import SerializedBlock, serialize
from energon_dali.loader.processes.shared_memory import Arena, ArenaStore
from energon_dali.loader.sharing.connections import AnyChannel, RemoteChannel, drain, readable, writable
from energon_dali.loader.sharing.messages import (
    Course,
    Element,
    Failed,
    FromReader,
    Hello,
    Payload,
    Sizes,
    Waiting,
    Welcome,
    encode,
)
from energon_dali.loader.sharing.served import Served
from energon_dali.samples.transfer import move

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from energon_dali.datasets.stream import State
    from energon_dali.loader.deferred_close import Closeable

INLINE_BYTES = 16 << 10
"""Batches of up to this size travel inside the message."""
MOST_ARENAS = 32
"""Arenas that followers may hold; they copy what they keep beyond that."""
_SPARE_ARENAS = 2
_NOTICE_SECONDS = 2.0
"""After this time the followers receive the ranks for which the reader waits."""


class Publisher:
    """The followers of a loader, and the memory that they share. It outlives the iterations of the loader.

    Args:
        ranks: The followers, by their numbers in the whole job.
        hello: The message that each of them must send, apart from its rank.
        welcome: The answer that they receive.
        depth: Number of elements by which they may lag.
    """

    def __init__(self, ranks: tuple[int, ...], hello: Hello, welcome: Welcome, depth: int) -> None:
        self._ranks = ranks
        self._hello = hello
        self._welcome = welcome
        self._depth = depth
        self._new: queue.SimpleQueue[Served] = queue.SimpleQueue()
        self._followers: dict[int, Served] = {}
        self._store = ArenaStore(_SPARE_ARENAS)
        self._arenas: dict[int, Arena] = {}
        self._users: dict[int, set[int]] = {}
        self._seen_by_children: set[int] = set()
        """Arenas that processes may see which followers forked."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.waits_for: tuple[int, ...] = ()
        """Ranks for which the reader has been waiting for some seconds."""
        self.is_closed = self.is_interrupted = False
        self.running: Closeable | None = None
        """The prefetcher that publishes now; it is closed before the connections."""
        self.on_close: Callable[[], None] | None = None
        """Called once, when this is closed."""
        self.on_waiting: Callable[[tuple[int, ...]], None] | None = None
        """On a relay, reports to the reader for which ranks it waits."""

    # --- waiting ----------------------------------------------------------------------------------------------------

    def end_running(self) -> None:
        """Closes the prefetcher that still publishes, if Ctrl-C kept its loader from that."""
        if self.running is not None:
            self.running.close()

    def wake(self) -> None:
        """Makes `wait_for_room` check again; for other threads."""
        with contextlib.suppress(OSError, ValueError):  # it was closed meanwhile
            os.eventfd_write(self._wake, 1)

    def wait_for_room(self, course: Course, number: int, own: Callable[[], int | None], epoch_end: int) -> bool:
        """Waits until every consumer has room for an element.

        Args:
            course: The course of the loader.
            number: Number of the element.
            own: Returns the number of the element that the reader's own trainer asked for last; None to stop.
            epoch_end: Number of the last end of an epoch; a consumer must have asked for a later element.

        Returns:
            False if `own` returned None.

        Raises:
            WorkerDiedError: A follower has ended.
            ConfigError: The loader of a follower received other calls.
        """
        began = noticed = time.monotonic()
        while True:
            self._receive()
            self._check_calls(course)
            wanted = own()
            if wanted is None:
                return False
            behind = [rank for rank in self._ranks if self._is_behind(rank, course, number)]
            is_own_behind = number - wanted > self._depth
            some_wants = wanted > epoch_end or any(
                one.course == course and not one.has_left and one.wanted > epoch_end for one in self._followers.values()
            )
            if not behind and not is_own_behind and some_wants:
                self.report(())
                return True
            now = time.monotonic()
            if now - noticed > _NOTICE_SECONDS and some_wants:
                noticed = now
                late: list[int] = []
                for rank in behind:
                    one = self._followers.get(rank)
                    # One that is ahead by a call waits for this rank's own.
                    late += [rank] if one is None else [self._hello.rank] if one.is_ahead(course) else one.late
                if is_own_behind:
                    late.append(self._hello.rank)
                self.report(tuple(dict.fromkeys(late)))
            channels = [one.channel.fileno() for one in self._followers.values()]
            readable([self._wake, *channels], 0.25 if now - began < 1 else 1.0)
            drain(self._wake)

    def report(self, ranks: tuple[int, ...]) -> None:
        """Reports to all others for which ranks this one waits, if these are other ones than before."""
        if self.note(ranks) and self.on_waiting is not None:
            self.on_waiting(ranks)

    def note(self, ranks: tuple[int, ...]) -> bool:
        """Sends the followers the ranks for which the reader waits; returns whether these are other ones than before.

        A follower that has no room for the message has others to read first.
        """
        if ranks == self.waits_for:
            return False
        self.waits_for = ranks
        for one in self._followers.values():
            if not one.is_gone:
                with contextlib.suppress(OSError):
                    one.channel.send(encode(Waiting(ranks)), wait=False)
        return True

    def _is_behind(self, rank: int, course: Course, number: int) -> bool:
        one = self._followers.get(rank)
        return one is None or one.is_behind(course, number, self._depth)

    def _receive(self) -> None:
        while not self._new.empty():
            one = self._new.get()
            old = self._followers.get(one.rank)
            if old is not None:
                self._part_from(old)
            self._followers[one.rank] = one
        for one in self._followers.values():
            released: list[int] = []
            lasts = one.is_gone or one.receive(released)
            self._release(one, released)
            if not lasts:
                self._part_from(one)
            if one.is_gone and not one.has_left:
                raise WorkerDiedError(
                    f"Rank {one.rank}, which follows rank {self._hello.rank}, has ended or dropped its loader before "
                    "this one did. Its own output says why. Ranks that share their batches end together."
                )

    def _check_calls(self, course: Course) -> None:
        """Checks that followers which made as many calls as this rank made the same ones."""
        for one in self._followers.values():
            if one.made_other_calls(course):
                assert one.course is not None, "it made calls"
                raise ConfigError(
                    f"Rank {one.rank} and rank {self._hello.rank} share their batches, but their loaders received "
                    f"different calls: after {one.course.given} and {course.given} batches, restore_state_rank, "
                    "skip_steps, set_weights, resize or start_at were called with other arguments or in another order. "
                    "Call them on all ranks, with the same arguments and between the same batches."
                )

    def welcome(self, hello: Hello, channel: AnyChannel) -> None:
        """Answers a follower, and accepts it if its loader is the same as this one; called in another thread."""
        refusal = None
        if hello.rank not in self._ranks:
            refusal = f"rank {hello.rank} is not among the followers {self._ranks} of rank {self._hello.rank}"
        elif replace(hello, rank=self._hello.rank) != self._hello:
            refusal = (
                f"its loader number {hello.loader} is for {hello.dataset}, as data-parallel rank {hello.data_rank[0]} "
                f"of {hello.data_rank[1]}, and that of rank {self._hello.rank} is for {self._hello.dataset}, as "
                f"{self._hello.data_rank[0]} of {self._hello.data_rank[1]}"
            )
        one = Served(hello.rank, channel)
        data = encode(self._welcome if refusal is None else replace(self._welcome, refusal=refusal))
        with contextlib.suppress(OSError):  # `_receive` notices that it has ended
            while not channel.send(data, wait=False) and not self.is_closed:
                writable(channel.fileno(), 0.1)
        if refusal is None and not self.is_closed:
            self._new.put(one)
            self.wake()
        else:
            channel.close()

    # --- sending ----------------------------------------------------------------------------------------------------

    def publish(self, course: Course, number: int, batch: Any, state: State, sizes: Sizes, *, ends_epoch: bool) -> None:
        """Sends an element to all followers that do not have it.

        Args:
            course: The course of the loader.
            number: Number of the element.
            batch: The batch; None at the end of an epoch.
            state: The state of the loader after it.
            sizes: Those of the loader.
            ends_epoch: Whether it is the end of an epoch.
        """
        receivers = [one for one in self._followers.values() if not one.is_gone and one.sent <= number]
        if not receivers:
            return
        pickled = pickle.dumps(state, protocol=5)
        payload, arena = (None, None) if ends_epoch else self._write(batch)
        here: set[int] = set()
        try:
            for one in receivers:
                own, descriptors = self._payload_for(one, payload, arena)
                if self._send(one, Element(course, number, pickled, sizes, ends_epoch, own), descriptors):
                    one.sent = number + 1
                    if arena is not None and not isinstance(one.channel, RemoteChannel):
                        here.add(one.rank)
                        one.known.add(arena.number)
                        one.dropped.clear()
        finally:
            if arena is not None and here:
                self._users[arena.number] = here
            elif arena is not None:
                self._store.give_back(arena.number)

    def _write(self, batch: Any) -> tuple[Payload, Arena | None]:
        on_gpu = next(find_cuda_tensors(batch), None) is not None
        block = serialize(move(batch, "cpu", non_blocking=False) if on_gpu else batch, keep_aliasing=True)
        if block.size <= INLINE_BYTES:
            small = bytearray(block.size)
            block.write(memoryview(small))
            return _payload(block, -1, on_gpu=on_gpu, inline=bytes(small)), None
        must_copy = len(self._users) >= MOST_ARENAS
        arena = self._store.take(block.size)
        self._arenas[arena.number] = arena
        for number in self._store.take_dropped():
            self._drop(number)
        block.write(arena.memory.data)
        return _payload(block, arena.number, on_gpu=on_gpu, must_copy=must_copy), arena

    def _payload_for(
        self, one: Served, payload: Payload | None, arena: Arena | None
    ) -> tuple[Payload | None, tuple[int, ...]]:
        """Returns the payload for one follower, and the descriptors to send with it."""
        if payload is None or arena is None:
            return payload, ()
        if isinstance(one.channel, RemoteChannel):
            return replace(payload, arena=-1, inline=bytes(arena.memory[: payload.size])), ()
        dropped = tuple(one.dropped)
        if arena.number in one.known:
            return replace(payload, dropped=dropped), ()
        assert arena.descriptor is not None
        return replace(payload, dropped=dropped, new_capacity=arena.capacity), (arena.descriptor,)

    def fail(self, course: Course, number: int, error: BaseException) -> None:
        """Sends an exception that ended the iteration to all followers."""
        message = Failed(course, number, failed_stream(0, 0, error, None))
        for one in self._followers.values():
            if not one.is_gone:
                with contextlib.suppress(WorkerError):  # perhaps the error itself: too many open files
                    self._send(one, message)

    def _send(self, one: Served, message: FromReader, descriptors: tuple[int, ...] = ()) -> bool:
        """Sends a message; returns whether it was sent.

        Raises:
            WorkerError: The system refused what it needs.
        """
        data = encode(message)
        began = time.monotonic()
        try:
            while not one.channel.send(data, descriptors, wait=False):  # it has not received what was sent before
                if self.is_closed or self.is_interrupted:
                    return False
                if time.monotonic() - began > _NOTICE_SECONDS:
                    self.report((one.rank,))
                writable(one.channel.fileno(), 0.01)
        except OSError:
            return False  # `_receive` notices that it has ended
        return True

    # --- memory -----------------------------------------------------------------------------------------------------

    def _release(self, one: Served, arenas: Sequence[int]) -> None:
        for released in arenas:
            number = max(released, ~released)
            users = self._users.get(number)
            if users is None:
                continue
            if released < 0:
                self._seen_by_children.add(number)
            users.discard(one.rank)
            if not users:
                del self._users[number]
                if number in self._seen_by_children:
                    self._seen_by_children.remove(number)
                    self._store.abandon(number)
                    self._drop(number)
                else:
                    self._store.give_back(number)

    def _drop(self, number: int) -> None:
        """Drops an arena; followers drop it too when the next one arrives."""
        self._arenas.pop(number).close_descriptor()
        for one in self._followers.values():
            if number in one.known:
                one.known.discard(number)
                one.dropped.append(number)

    def _part_from(self, one: Served) -> None:
        """Ends a connection. The memory that the follower maps is never written again: its process may live on."""
        one.channel.close()
        one.is_gone = True
        for number, users in list(self._users.items()):
            if one.rank in users:
                del self._users[number]
                self._store.abandon(number)
                self._drop(number)

    def after_fork(self) -> None:
        """Closes the connections in a forked child; otherwise followers would not notice that the reader has ended."""
        self._close_channels()

    def _close_channels(self) -> None:
        while not self._new.empty():
            self._new.get().channel.close()
        for one in self._followers.values():
            one.channel.close()
        self._followers.clear()

    def close(self) -> None:
        """Closes all connections; followers then raise. May be called again."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.running is not None:
            self.running.close()  # its thread waits for the connections
        if self.on_close is not None:
            self.on_close()
        self._close_channels()
        for arena in self._arenas.values():
            arena.close_descriptor()
        self._arenas.clear()
        self._users.clear()
        self._store = ArenaStore(_SPARE_ARENAS)
        wake, self._wake = self._wake, -1  # `welcome` may write to it at this moment, and its number be taken again
        os.close(wake)


def _payload(
    block: SerializedBlock, arena: int, *, on_gpu: bool, must_copy: bool = False, inline: bytes = b""
) -> Payload:
    return Payload(arena, 0, (), block.size, block.extents, block.tensors, must_copy, on_gpu, inline)
