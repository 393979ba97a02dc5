"""The loader of a rank that follows another: it builds no tree, opens no dataset and starts no worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from energon_dali.datasets.followed import FollowedDataset, asked_as
from energon_dali.datasets.step_entries import cursor_of
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.cuda_handoff import pin_for_trainer
from energon_dali.loader.deferred_close import close_when_collected
from energon_dali.loader.processes.signals import interrupts_deferred
from energon_dali.loader.savable_loader import without_failures
from energon_dali.loader.sharing.link import Link, RemoteFailure
from energon_dali.loader.sharing.messages import Course, Sizes
from energon_dali.loader.sharing.reader import Progress, PublishingPrefetcher, SharingLoader, hello_of, publisher_of
from energon_dali.samples.transfer import move
from energon_dali.shards.storage.forks import drop_in_child

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.stage_clock import StageClock
    from energon_dali.datasets.stream import State
    from energon_dali.loader.loader_options import LoaderOptions
    from energon_dali.loader.prefetcher import Prefetcher
    from energon_dali.loader.watchdog import Watchdog

T = TypeVar("T")


class FollowerLoader(SharingLoader[T]):
    """A loader whose batches another rank reads; `get_savable_loader` makes it.

    Its batches, states and ends of epochs are those of that rank's loader. `restore_state_rank`, `skip_steps`,
    `set_weights`, `resize` and `start_at` must be called on it as on that one; they change nothing here, and the calls
    are compared before the next batch.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        **options: Those of SavableDataLoader; the ones for reading and decoding have no effect.
    """

    def __init__(self, dataset: SavableDataset[T], **options: Any) -> None:
        # Files of traces and logs are named after the data-parallel rank, and are the reader's.
        config = replace(dataset.worker_config, trace_path=None, worker_debug_path=None)
        super().__init__(FollowedDataset(config, asked_as(dataset)), **options)
        group = self.worker_config.share_group
        assert group is not None, "get_savable_loader makes this for ranks that follow others"
        self._auto = None
        self._called_at = self._resized_at = -1
        """Where the last call, and the last `resize`, was: the next element brings the state after it."""
        self._started_at = -1, 0
        """Where `start_at` was called, and the samples that it named."""
        self._number = group.next_number()
        hello = hello_of(self.dataset, self._number, group.own.rank)
        self._link = Link(group.reader, hello, group.own.node, self._watchdog)
        close_when_collected(self, self._link)
        drop_in_child(self._link)

    def __len__(self) -> int:
        return self._sizes_now().length

    def _sizes_now(self) -> Sizes:
        """Returns the sizes of the loader of the rank that reads.

        Raises:
            StateError: `resize` was called after the last batch.
        """
        if self._resized_at == self._progress.given:
            raise StateError(
                "This rank follows another one, and after resize it receives its length and micro_batches_per_step "
                "with the next batch. Take a batch first."
            )
        return self._link.sizes()

    def _start_prefetcher(self, options: LoaderOptions) -> Prefetcher:
        return self._follow(options, self._progress)

    def _follow(self, options: LoaderOptions, progress: Progress) -> _FollowingPrefetcher:
        """Returns what takes the elements of the reader; it counts in `progress`."""
        change = pin_for_trainer if options.pin_memory else None
        self._link.is_stopped = self._link.is_failing = False
        waiting = self._metrics.clock("wait for reader")
        return _FollowingPrefetcher(self._link, self._course, progress, self._snapshot, self._watchdog, change, waiting)

    def _begin_taking(self) -> Any:
        self._link.oldest = self._progress.given
        return super()._begin_taking()

    def _close_failed(self) -> None:
        self._link.is_failing = True  # the reader must not take this for a Goodbye
        super()._close_failed()

    def close(self) -> None:
        """Ends the iteration. A later one continues after the last batch, as on the rank that reads."""
        super().close()
        self._link.leave()

    # --- states -----------------------------------------------------------------------------------------------------

    def save_state_rank(self) -> State:
        """Returns the state of the rank that reads, after the last batch that was delivered here."""
        if self._called_at == self._progress.given:
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
        with self._call():
            self._snapshot = dict(state)
            self._note_call("restore_state_rank", state=without_failures(state))

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Context manager in which a call is noted: Ctrl-C comes before or after it."""
        with self._turn:
            self._stop()
            with interrupts_deferred():
                self._called_at = self._progress.given
                yield

    def skip_steps(self, first: int, stop: int, *, by: Any = "auto") -> None:
        """Expects that the rank that reads skips the same steps; see SavableDataLoader.skip_steps."""
        with self._call():
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
        at, consumed = self._started_at
        if at == self._progress.given:
            return consumed
        cursor = cursor_of(self._snapshot or pickle.loads(self._link.welcome().state))
        return cursor.packs if self._link.sizes().counts_packs else cursor.unit

    @property
    def micro_batches_per_step(self) -> int:
        """Batches of each rank in a step of global batches.

        Raises:
            ConfigError: The loader has no global batches.
            StateError: `resize` was called after the last batch.
        """
        self._check_global_batches("micro_batches_per_step")
        number = self._sizes_now().micro_batches_per_step
        assert number is not None, "it was checked"
        return number

    def _check_global_batches(self, what: str) -> None:
        if self._link.sizes().micro_batches_per_step is None:
            raise ConfigError(
                f"{what} belongs to global batches, and this loader has none. Give get_train_dataset the option "
                "global_batch_size."
            )

    def start_at(self, consumed_samples: int, *, step: int | None = None) -> None:
        """Expects that the rank that reads continues there; see SavableDataLoader.start_at."""
        with self._call():
            self._started_at = self._progress.given, consumed_samples
            self._note_call("start_at", consumed_samples=consumed_samples, step=step)

    def resize(self, rank: int, world_size: int) -> None:
        """Expects that the rank that reads continues with another number of ranks; see SavableDataLoader.resize."""
        self._check_global_batches("resize")
        old = self.worker_config
        config = old.with_layout(rank=rank, world_size=world_size, num_workers=old.num_workers)
        with self._call():
            self.worker_config = config
            self._resized_at = self._progress.given
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
        with self._call():
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

        self._link.on_waiting = self._publisher.note
        self._publisher.on_waiting = self._link.report_waiting

    def _start_prefetcher(self, options: LoaderOptions) -> Prefetcher:
        link = self._link
        self._publisher.end_running()

        def report_after(snapshot: State, *, ends_epoch: bool) -> tuple[State, Sizes]:
            return snapshot, link.sizes()

        inner = self._follow(options, Progress(self._progress.given))
        return PublishingPrefetcher(
            inner, self._publisher, self._course, self._progress, report_after, self._watchdog, options.prefetch_factor
        )


class _FollowingPrefetcher:
    """Takes the elements of the rank that reads.

    Args:
        link: The connection.
        course: The course of the loader.
        progress: How much was delivered before; counts what is taken here.
        snapshot: The state after the last of them; None if there were none.
        watchdog: Is reset at every batch.
        change: Is applied to every batch.
        waiting: Measures the waits.
    """

    occupancy: float | None = None

    def __init__(
        self,
        link: Link,
        course: Course,
        progress: Progress,
        snapshot: State | None,
        watchdog: Watchdog,
        change: Callable[[Any], Any] | None,
        waiting: StageClock,
    ) -> None:
        self._link = link
        self._course = course
        self._progress = progress
        self.snapshot: Any = snapshot
        self._watchdog = watchdog
        self._change = change
        self._waiting = waiting
        self._failure: Exception | None = None

    def next(self) -> Any:
        if self._failure is not None:
            raise self._failure
        outer = self._waiting.begin()
        try:
            while True:
                given = self._progress.given
                kept = self._link.element(self._course, given)
                if given == self._progress.given:
                    break  # otherwise a signal handler took it during the wait
        except RemoteFailure as failure:
            self._failure = failure.error
            raise failure.error from failure.error.__cause__
        finally:
            self._waiting.end(outer)
        element, batch = kept.element, self._link.batch(kept)
        if element.payload is not None and element.payload.on_gpu:
            batch = move(batch, "cuda", non_blocking=False)
        self.snapshot = pickle.loads(element.state)
        self._progress.given += 1
        self._watchdog.reset()
        if element.ends_epoch:
            raise StopIteration
        return batch if self._change is None else self._change(batch)

    def close(self) -> None:
        """Ends a wait of another thread. The connection is the loader's."""
        self._link.is_stopped = True
