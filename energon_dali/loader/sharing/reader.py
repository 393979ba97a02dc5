"""The loader of a rank that reads for others: its batches go to them and to its own trainer."""

from __future__ import annotations

import functools
import os
import pickle
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from energon_dali.datasets.followed import asked_as
from energon_dali.datasets.worker_border import rank_seeds_generators
from energon_dali.errors import ConfigError, WatchdogTimeoutError, WorkerError
from energon_dali.loader.cuda_handoff import CudaHandoff
from energon_dali.loader.deferred_close import close_when_collected
from energon_dali.loader.prefetcher import DirectPrefetcher, Prefetcher, ThreadPrefetcher
from energon_dali.loader.savable_loader import SavableDataLoader, make_state
from energon_dali.loader.sharing.connections import reception_of
from energon_dali.loader.sharing.messages import Course, Hello, Sizes, Welcome
from energon_dali.loader.sharing.publisher import Publisher
from energon_dali.plan.packed_batches import PackedBatchPlan
from energon_dali.shards.documents.state_entries import plain
from energon_dali.shards.storage.forks import drop_in_child

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stream import State
    from energon_dali.loader.loader_options import LoaderOptions
    from energon_dali.loader.watchdog import Watchdog

T = TypeVar("T")


@dataclass
class Progress:
    """How much a loader has delivered. All of its prefetchers count here: one that was closed may still deliver."""

    given: int = 0
    """Elements, and ends of epochs, that the trainer took."""


_JOIN_SECONDS = 10.0
CLOSED = "The loader was closed. Make a new iterator to continue."


class SharingLoader(SavableDataLoader[T]):
    """What the loaders of ranks that share batches have in common: a course, and how much they have delivered."""

    shares_batches = True

    def __init__(self, dataset: SavableDataset[T], **options: Any) -> None:
        super().__init__(dataset, **options)
        self._course = Course()
        self._progress = Progress()
        self._made_in = os.getpid()

    def _check_process(self) -> None:
        if os.getpid() != self._made_in:
            raise ConfigError(
                f"This loader was made in process {self._made_in}, and this process ({os.getpid()}) is a forked copy "
                "without its connections to the ranks that share their batches. Fork first, and make the process "
                "groups, the WorkerConfig and the loader in the process that takes the batches."
            )
        super()._check_process()

    def _begin_taking(self) -> Any:
        return super()._begin_taking(), self._progress.given

    def _go_back_to(self, place: Any) -> None:
        before, self._progress.given = place
        super()._go_back_to(before)

    def _note_call(self, name: str, **arguments: Any) -> None:
        self._course = self._course.after(name, self._progress.given, arguments)


class ReaderLoader(SharingLoader[T]):
    """A loader that also gives its batches to the ranks that follow this one; `get_savable_loader` makes it.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        **options: As those of SavableDataLoader.

    Raises:
        ConfigError: Hooks of the rank seed the global generators of random numbers, without a decode process.
    """

    def __init__(self, dataset: SavableDataset[T], **options: Any) -> None:
        super().__init__(dataset, **options)
        if not self._options.decode_process and rank_seeds_generators(self._tree):
            raise ConfigError(
                "Ranks that share batches run hooks in a thread, where the random numbers of hooks marked "
                "@stateless(restore_seeds=True) would mix with the trainer's. Give decode_process=True, or move these "
                "hooks to workers (preencode_sample, or SampleDecoder, with num_workers > 0)."
            )
        group = self.worker_config.share_group
        assert group is not None, "get_savable_loader makes this for ranks that read for others"
        first = self._make_state(self._delivered())
        welcome = Welcome(self._sizes(), pickle.dumps(first, protocol=5))
        self._publisher = publisher_of(self, group.next_number(), welcome, self._options.prefetch_factor)

    def _sizes(self) -> Sizes:
        batches = self._tree.global_batches
        per_step = None if batches is None else batches.micro_batches_per_step
        return Sizes(len(self), per_step, isinstance(batches, PackedBatchPlan))

    def _start_prefetcher(self, options: LoaderOptions) -> Prefetcher:
        self._publisher.end_running()
        sizes = self._sizes()
        inner = super()._start_prefetcher(options)
        job = None if self._job is None else self._job.twin()
        identity, reporter, metrics = self._identity, self._reporter, self._metrics

        def report_after(snapshot: State, *, ends_epoch: bool) -> tuple[State, Sizes]:
            if job is not None:
                job.note(snapshot)
                if ends_epoch:
                    job.note_end(snapshot)
            return make_state(identity, job, reporter, metrics, plain(snapshot)), sizes

        return PublishingPrefetcher(
            inner, self._publisher, self._course, self._progress, report_after, self._watchdog, options.prefetch_factor
        )


def publisher_of(loader: SavableDataLoader[Any], number: int, welcome: Welcome, prefetch_factor: int) -> Publisher:
    """Returns what sends the batches of a loader to other ranks, which can ask for them from now on.

    Args:
        loader: The loader; when it is collected, the connections end.
        number: Number of the loader.
        welcome: What the other ranks receive first.
        prefetch_factor: Number of batches by which they may lag.
    """
    group = loader.worker_config.share_group
    assert group is not None, "get_savable_loader makes this for ranks that give batches to others"
    ranks = tuple(member.rank for member in group.followers)
    publisher = Publisher(ranks, hello_of(loader.dataset, number, group.own.rank), welcome, prefetch_factor + 1)
    drop_in_child(publisher)
    close_when_collected(loader, publisher)
    if ranks:
        reception = reception_of(group)
        publisher.on_close = functools.partial(reception.unregister, number)
        reception.register(number, publisher)
    return publisher


def hello_of(dataset: SavableDataset[Any], number: int, rank: int) -> Hello:
    """Returns the message with which the loader of a dataset introduces itself to the rank that reads.

    Args:
        dataset: The outermost dataset.
        number: Number of the loader.
        rank: Number of this process in the whole job.
    """
    config = dataset.worker_config
    return Hello(number, rank, asked_as(dataset), (config.rank, config.world_size))


_ELEMENT, _ENDED, _FAILED = object(), object(), object()


class PublishingPrefetcher:
    """Takes elements of another prefetcher in a thread, and passes each to the followers and to the trainer.

    Args:
        inner: Yields the elements; from now on only the thread uses it.
        publisher: Sends the elements to the followers.
        course: The course of the loader.
        progress: How much the loader has delivered; counts what the trainer takes.
        report_after: Returns (the state of the loader after an element, its sizes), from the snapshot of `inner`.
        watchdog: Limits how long a wait may take.
        depth: Elements that may wait for the trainer.
    """

    def __init__(
        self,
        inner: Prefetcher,
        publisher: Publisher,
        course: Course,
        progress: Progress,
        report_after: Callable[..., tuple[State, Sizes]],
        watchdog: Watchdog,
        depth: int,
    ) -> None:
        self._publisher = publisher
        self._watchdog = watchdog
        self._depth = depth
        self._progress = progress
        self.snapshot = inner.snapshot
        self._failure: BaseException | None = None
        self._inner = inner
        self._handoff = CudaHandoff()
        given = progress.given
        self._shared = _Shared(inner, publisher, course, given, report_after, self._handoff)
        # With workers, hooks of the rank run in the thread of the other prefetcher; without, in this one.
        name = ThreadPrefetcher.thread_name if isinstance(inner, DirectPrefetcher) else "energon-dali-publish"
        self._thread = threading.Thread(target=_run, args=(self._shared, given), name=name, daemon=True)
        publisher.running, publisher.is_interrupted = self, False
        self._thread.start()

    @property
    def occupancy(self) -> float | None:
        return min(1.0, self._shared.items.qsize() / self._depth)

    def next(self) -> Any:
        if self._failure is not None:
            raise self._failure
        try:
            kind, value, snapshot = self._shared.items.get_nowait()
            self._ask()
        except queue.Empty:
            self._ask()
            kind, value, snapshot = self._take()
        if kind is _FAILED:
            self._failure = value
            raise value
        self.snapshot = snapshot
        self._progress.given += 1
        if kind is _ENDED:
            raise StopIteration
        element, ready = value
        self._handoff.receive(element, ready)
        return element

    def _ask(self) -> None:
        """Lets the thread go on: the trainer has asked for one more element."""
        self._shared.wanted = self._progress.given
        self._publisher.wake()

    def _take(self) -> tuple[object, Any, Any]:
        started = time.monotonic()
        limit = self._watchdog.limit_seconds
        while True:
            try:
                return self._shared.items.get(timeout=1.0)
            except queue.Empty:
                ranks = self._publisher.waits_for
                waited = time.monotonic() - started
                if ranks and limit is not None and waited > limit:
                    raise late_ranks(ranks, waited) from None  # other waits are checked where they happen

    def close(self) -> None:
        self._shared.is_stopped = self._publisher.is_interrupted = True
        self._publisher.wake()
        self._inner.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
        if self._publisher.running is self:
            self._publisher.running = None


def late_ranks(ranks: tuple[int, ...], seconds: float) -> WatchdogTimeoutError:
    """Returns the error for ranks that do not take their batches.

    Args:
        ranks: Their numbers in the whole job.
        seconds: Time for which others have waited for them.
    """
    named, has = (f"Rank {ranks[0]}", "has") if len(ranks) == 1 else (f"Ranks {', '.join(map(str, ranks))}", "have")
    return WatchdogTimeoutError(
        f"{named} {has} not asked for a batch for {seconds:.0f} s, or {has} not made a call that others have made, and "
        "the ranks that share these batches wait. All of them must call next equally often, and call skip_steps, "
        "set_weights, resize and the like between the same batches. Leave a dimension of the mesh out of `shared` if "
        "its ranks need no batches, or raise watchdog_timeout_seconds if a step may take that long."
    )


@dataclass(eq=False)
class _Shared:
    """What the thread and the trainer share. It has no reference to the loader, so that the loader can be collected."""

    inner: Prefetcher
    publisher: Publisher
    course: Course
    wanted: int
    """Number of the element that the trainer asked for last."""
    report_after: Callable[..., tuple[State, Sizes]]
    handoff: CudaHandoff
    items: queue.SimpleQueue[tuple[object, Any, Any]] = field(default_factory=queue.SimpleQueue)
    is_stopped: bool = False

    def wanted_by_trainer(self) -> int | None:
        return None if self.is_stopped or self.publisher.is_closed else self.wanted


def _run(shared: _Shared, first: int) -> None:
    """Thread body."""
    publisher, course, number, epoch_end = shared.publisher, shared.course, first, -1
    try:
        shared.handoff.enter()
        while publisher.wait_for_room(course, number, shared.wanted_by_trainer, epoch_end):
            try:
                element = shared.inner.next()
                if shared.is_stopped:  # another thread may publish by now
                    break
            except StopIteration:
                if shared.wanted_by_trainer() is None:
                    break
                snapshot = shared.inner.snapshot
                state, sizes = shared.report_after(snapshot, ends_epoch=True)
                publisher.publish(course, number, None, state, sizes, ends_epoch=True)
                if shared.wanted_by_trainer() is None:  # followers without the element get it again
                    break
                shared.items.put((_ENDED, None, snapshot))
                epoch_end = number
            else:
                snapshot = shared.inner.snapshot
                state, sizes = shared.report_after(snapshot, ends_epoch=False)
                publisher.publish(course, number, element, state, sizes, ends_epoch=False)
                if shared.wanted_by_trainer() is None:
                    break
                shared.items.put((_ELEMENT, (element, shared.handoff.record(element)), snapshot))
                element = None
            number += 1
        publisher.report(())
        shared.items.put((_FAILED, WorkerError(CLOSED), None))
    except BaseException as error:
        try:
            if not shared.is_stopped:
                publisher.fail(course, number, error)
        finally:
            shared.items.put((_FAILED, error, None))
