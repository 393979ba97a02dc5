"""The loader of a rank that follows another: it builds no tree, opens no dataset and starts no worker."""

from __future__ import annotations

import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from energon_dali.datasets.followed import FollowedDataset, asked_as
from energon_dali.datasets.step_entries import cursor_of
from energon_dali.errors import ConfigError, StateError, WorkerError
from energon_dali.loader.deferred_close import close_when_collected
from energon_dali.loader.processes.messages import rebuild_error
from energon_dali.loader.processes.serialization import deserialize
from energon_dali.loader.processes.shared_memory import map_memory
from energon_dali.loader.processes.signals import interrupts_deferred
from energon_dali.loader.savable_loader import SavableDataLoader, without_failures
from energon_dali.loader.sharing.connections import AnyChannel, connect, ended, readable
from energon_dali.loader.sharing.messages import (
    Course,
    Element,
    Failed,
    Goodbye,
    Hello,
    Payload,
    Took,
    Waiting,
    Welcome,
    decode,
    encode,
)
from energon_dali.loader.sharing.reader import CLOSED, PublishingPrefetcher, hello_of, late_ranks, publisher_of
from energon_dali.samples.transfer import move, pin_batch
from energon_dali.shards.storage.forks import drop_in_child

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State
    from energon_dali.loader.loader_options import LoaderOptions
    from energon_dali.loader.prefetcher import Prefetcher
    from energon_dali.loader.watchdog import Watchdog
    from energon_dali.share_group import Member

T = TypeVar("T")

_WAIT_SECONDS = 0.2
"""After this time a wait checks whether it has to end."""


class FollowerLoader(SavableDataLoader[T]):
    """A loader whose batches another rank reads; `get_savable_loader` makes it.

    Its batches, states and ends of epochs are those of that rank's loader. `restore_state_rank`, `skip_steps`,
    `set_weights`, `resize` and `start_at` must be called on it as on that one; they change nothing here, and the calls
    are compared before the next batch.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        **options: Those of SavableDataLoader; the ones for reading and decoding have no effect.
    """

    shares_batches = True

    def __init__(self, dataset: SavableDataset[T], **options: Any) -> None:
        # Files of traces and logs are named after the data-parallel rank, and are the reader's.
        config = replace(dataset.worker_config, trace_path=None, worker_debug_path=None)
        super().__init__(FollowedDataset(config, asked_as(dataset)), **options)
        group = self.worker_config.share_group
        assert group is not None, "get_savable_loader makes this for ranks that follow others"
        self._auto = None
        self._course = Course()
        self._count = 0
        self._is_stale = False
        """Whether a call changed the state, which the next batch brings."""
        self._consumed: int | None = None
        """The samples that `start_at` named, until the next batch."""
        self._number = group.next_number()
        hello = hello_of(self.dataset, self._number, group.own.rank)
        self._link = Link(group.reader, hello, group.own.node, self._watchdog)
        close_when_collected(self, self._link)
        drop_in_child(self._link)

    def __len__(self) -> int:
        return self._link.welcome().length

    def _start_prefetcher(self, options: LoaderOptions) -> Prefetcher:
        change = pin_batch if options.pin_memory else None
        self._link.is_stopped = False
        return _FollowingPrefetcher(self._link, self._course, self._count, self._snapshot, self._watchdog, change)

    @property
    def _position(self) -> int:
        """Elements, and ends of epochs, that were delivered."""
        return getattr(self._prefetcher, "given", self._count)

    def _next(self, epoch: int) -> T:
        before = self._position
        self._link.oldest = before
        self._link.is_failing = True  # an error closes this loader, and the reader must not take that for a Goodbye
        try:
            batch = super()._next(epoch)
        except StopIteration:
            self._link.is_failing = False
            raise
        except BaseException:  # what was taken is delivered again
            self._count = before
            raise
        self._link.is_failing = False
        self._is_stale, self._consumed = False, None
        return batch

    def _stop(self) -> bool:
        position = self._position
        stopped = super()._stop()
        self._count = max(position, self._count)
        return stopped

    def close(self) -> None:
        """Ends the iteration. A later one continues after the last batch, as on the rank that reads."""
        super().close()
        self._link.leave()

    # --- states -----------------------------------------------------------------------------------------------------

    def save_state_rank(self) -> State:
        """Returns the state of the rank that reads, after the last batch that was delivered here."""
        if self._is_stale:
            raise StateError(
                "This rank follows another one, and after restore_state_rank, skip_steps, set_weights, resize or "
                "start_at it receives a state with the next batch. Take a batch first."
            )
        return self._snapshot or pickle.loads(self._link.welcome().state)

    def restore_state_rank(self, state: State | None, *, allow_changed_hooks: bool = False) -> None:
        """Expects that the rank that reads continues at the same state. Call it before the first batch is taken.

        Args:
            state: The state that the other rank restores. None changes nothing.
            allow_changed_hooks: Has no effect: the other rank checks the state.

        Raises:
            StateError: Iteration has begun.
        """
        if state is None:
            return
        if self._begun:
            raise StateError(
                "A state can only be restored before the first batch is taken, and this loader has delivered some. "
                "Make a new loader and restore into that."
            )
        self._snapshot = dict(state)
        self._note_call("restore_state_rank", state=without_failures(state))

    def _note_call(self, name: str, **arguments: Any) -> None:
        position = self._position
        self._stop()
        self._is_stale = True
        self._course = self._course.after(name, position, arguments)

    def skip_steps(self, first: int, stop: int, *, by: Any = "auto") -> None:
        """Expects that the rank that reads skips the same steps; see SavableDataLoader.skip_steps."""
        self._note_call("skip_steps", first=first, stop=stop, by=by)

    def change_workers(self, num_workers: int) -> None:
        """Does nothing: the other rank has the workers, and no batch depends on their number."""

    # --- global batches ---------------------------------------------------------------------------------------------

    @property
    def consumed_samples(self) -> int:
        """Samples of the whole job before its next step; see SavableDataLoader.consumed_samples.

        Raises:
            ConfigError: The loader has no global batches.
        """
        self._check_global_batches("consumed_samples")
        if self._consumed is not None:
            return self._consumed
        return cursor_of(self._snapshot or pickle.loads(self._link.welcome().state)).unit

    @property
    def micro_batches_per_step(self) -> int:
        """Batches of each rank in a step of global batches.

        Raises:
            ConfigError: The loader has no global batches.
        """
        return self._check_global_batches("micro_batches_per_step")

    def _check_global_batches(self, what: str) -> int:
        number = self._link.welcome().micro_batches_per_step
        if number is None:
            raise ConfigError(
                f"{what} belongs to global batches, and this loader has none. Give get_train_dataset the option "
                "global_batch_size."
            )
        return number

    def start_at(self, consumed_samples: int, *, step: int | None = None) -> None:
        """Expects that the rank that reads continues there; see SavableDataLoader.start_at."""
        self._note_call("start_at", consumed_samples=consumed_samples, step=step)
        self._consumed = consumed_samples

    def resize(self, rank: int, world_size: int) -> None:
        """Expects that the rank that reads continues with another number of ranks; see SavableDataLoader.resize."""
        self._note_call("resize", rank=rank, world_size=world_size)

    def set_weights(
        self,
        weights: Sequence[float] | Mapping[str, float],
        *,
        from_step: int | None = None,
        until_step: int | None = None,
        from_sample: int | None = None,
        until_sample: int | None = None,
    ) -> None:
        """Expects that the rank that reads sets the same weights; see SavableDataLoader.set_weights."""
        steps, samples = (from_step, until_step), (from_sample, until_sample)
        self._note_call("set_weights", weights=weights, steps=steps, samples=samples)


class RelayLoader(FollowerLoader[T]):
    """A loader that takes the batches of a rank on another node, and passes them to the ranks of its own node.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        **options: Those of SavableDataLoader.
    """

    def __init__(self, dataset: SavableDataset[T], **options: Any) -> None:
        super().__init__(dataset, **options)
        self._publisher = publisher_of(self, self._number, self._link.welcome(), self._options.prefetch_factor)

    def _start_prefetcher(self, options: LoaderOptions) -> Prefetcher:
        def state_after(snapshot: State, *, ends_epoch: bool) -> State:
            return snapshot

        inner = super()._start_prefetcher(options)
        return PublishingPrefetcher(
            inner, self._publisher, self._course, self._count, state_after, self._watchdog, options.prefetch_factor
        )


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
        self._arenas: dict[int, tuple[int, int]] = {}
        """Descriptor and size of each arena that may be used again."""
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._released: deque[int] = deque()
        self._late: tuple[int, ...] = ()
        self._is_lost = False
        self._failed: Failed | None = None
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

    def _send(self, message: Hello | Took) -> None:
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
            self._send(Took(course, given, self.take_released()))
        while given not in self._kept:
            self._receive()
            failed, self._failed = self._failed, None
            if failed is not None and failed.course.calls >= course.calls:  # otherwise a call has undone it
                raise RemoteFailure(rebuild_error(failed.error, f"rank {self.reader.rank}"))
            for number, kept in list(self._kept.items()):
                if kept.element.course != course:
                    self._drop(number)  # sent before a call that changed what follows
        return self._kept[given]

    def _drop(self, number: int) -> None:
        kept = self._kept.pop(number)
        payload = kept.element.payload
        if payload is not None and payload.arena >= 0 and not kept.has_view:
            self._released.append(payload.arena)

    def _receive(self) -> None:
        """Receives the next message, and keeps it."""
        assert self._channel is not None
        began = time.monotonic()
        while True:
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
                if received is not None:
                    self._take(decode(received[0]), received[1])
                    return
            self._judge(time.monotonic() - began)

    def _take(self, message: Any, descriptors: list[int]) -> None:
        if isinstance(message, Waiting):
            self._late = message.ranks
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
        limit = self._watchdog.limit_seconds
        if self._late and limit is not None and waited > limit:
            raise late_ranks(self._late, waited)
        self._watchdog.check(waited)

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
                kept.has_view = True
                source = self._copied(payload.arena) if payload.must_copy else self._view(payload.arena)
                if payload.must_copy:
                    self._released.append(payload.arena)
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
        released, watched = self._released, self._watched

        # Called wherever the garbage collector runs, in any thread: it takes no lock.
        def lost(_: object, number: int = number) -> None:
            watched.pop(number, None)
            released.append(number)

        watched[number] = weakref.ref(root, lost)
        return root.data

    def _copied(self, number: int) -> memoryview:
        descriptor, size = self._arenas[number]
        return memoryview(np.frombuffer(map_memory(descriptor, size, private=True), dtype=np.uint8).copy())

    def take_released(self) -> tuple[int, ...]:
        """Returns the arenas that were released since the last call."""
        released = []
        while self._released:
            released.append(self._released.popleft())
        return tuple(released)

    def leave(self) -> None:
        """Reports to the reader that this rank may end."""
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
        self._watched.clear()
        while self._arenas:
            os.close(self._arenas.popitem()[1][0])


class _FollowingPrefetcher:
    """Takes the elements of the rank that reads.

    Args:
        link: The connection.
        course: The course of the loader.
        given: Elements, and ends of epochs, that were delivered before.
        snapshot: The state after the last of them; None if there were none.
        watchdog: Is reset at every batch.
        change: Is applied to every batch.
    """

    occupancy: float | None = None

    def __init__(
        self,
        link: Link,
        course: Course,
        given: int,
        snapshot: State | None,
        watchdog: Watchdog,
        change: Callable[[Any], Any] | None,
    ) -> None:
        self._link = link
        self._course = course
        self.given = given
        """Elements, and ends of epochs, that were taken."""
        self.snapshot: Any = snapshot
        self._watchdog = watchdog
        self._change = change
        self._failure: Exception | None = None

    def next(self) -> Any:
        if self._failure is not None:
            raise self._failure
        try:
            kept = self._link.element(self._course, self.given)
        except RemoteFailure as failure:
            self._failure = failure.error
            raise failure.error from failure.error.__cause__
        element, batch = kept.element, self._link.batch(kept)
        if element.payload is not None and element.payload.on_gpu:
            batch = move(batch, "cuda", non_blocking=False)
        self.snapshot = pickle.loads(element.state)
        self.given += 1
        self._watchdog.reset()
        if element.ends_epoch:
            raise StopIteration
        return batch if self._change is None else self._change(batch)

    def close(self) -> None:
        """Ends a wait of another thread. The connection is the loader's."""
        self._link.is_stopped = True
