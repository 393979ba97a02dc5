"""A loader without saved state: workers, the rank's pipeline, prefetching, watchdog and statistics."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Generic, NoReturn, TypeVar, cast

from typing_extensions import Unpack

from energon_dali.cache import CachePool
from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.rank_iterator import refuse_stages
from energon_dali.datasets.source import source_of
from energon_dali.datasets.step_entries import cursor_of
from energon_dali.datasets.stream import State
from energon_dali.datasets.torch_workers import refuse_indexing, refuse_resharding, refuse_worker_process
from energon_dali.decode.dali.runtime.device import refuse_capture
from energon_dali.errors import ConfigError
from energon_dali.loader.advice import diagnose
from energon_dali.loader.agreement import compare_ranks
from energon_dali.loader.auto_workers import auto_workers, with_workers
from energon_dali.loader.deferred_close import close_when_collected, forget
from energon_dali.loader.failure_report import ClosedWithReport, FailureReporter
from energon_dali.loader.global_job import GlobalJob
from energon_dali.loader.loader_options import LoaderArguments, LoaderOptions, TorchAttributes, show_loader_options
from energon_dali.loader.prefetcher import Prefetcher, open_prefetcher
from energon_dali.loader.processes.signals import interrupts_deferred
from energon_dali.loader.rank_pipeline import cut_tree, has_workers, prepare_start, rank_has_work
from energon_dali.loader.source_losses import SourceLosses
from energon_dali.loader.statistics import LoaderStatistics, planned_shares
from energon_dali.loader.step_times import StepClock, StepTimes
from energon_dali.loader.trace_file import end_trace, open_metrics
from energon_dali.loader.waiting import describe_wait
from energon_dali.loader.watchdog import Watchdog
from energon_dali.shards.documents.state_entries import plain
from energon_dali.shards.storage.store import read_scope
from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")


class BasicDataLoader(TorchAttributes, Generic[T]):
    """Iterates a dataset, with worker processes if its WorkerConfig asks for some.

    `iter(loader)` continues the live iteration until an epoch ends; the next `iter` starts the next epoch, also if the
    one before took all elements of its epoch and did not ask for more. `next(loader)` takes the next element of the
    running epoch. Workers live until `close()`, the end of a `with` block, the end of the process, or until nothing
    refers to the loader.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        worker_config: Deprecated; must equal the dataset's.
        prefetch_factor: Blocks per stream that workers make ahead, and batches that wait for the trainer; at least 1.
            Cost: for each, the memory of a block per stream and of a batch.
        cache_pool: Fetches files ahead for cookers and hooks, such as FileStoreCachePool(); its limits hold for all
            processes together. Close it yourself, after the loader. None fetches nothing ahead. Cost: disk or memory up
            to its limits.
        shard_cache: Keeps shards of remote datasets on local disk, for all processes of the node, such as
            ShardCache("/scratch", max_bytes="500GB") (docs/shard-cache.md). "auto" is the one that the environment
            variable ENERGON_DALI_SHARD_CACHE=PATH:MAX_BYTES describes, if it is set. None keeps none. Cost: local disk
            up to its `max_bytes`.
        watchdog_timeout_seconds: Longest normal wait for a batch; None never complains.
        watchdog_initial_timeout_seconds: The same for the first batch; None uses watchdog_timeout_seconds.
        fail_on_timeout: Raise WatchdogTimeoutError where the watchdog would warn.
        start_method: How processes start: "spawn" (safe everywhere; what the task encoder holds must be picklable by
            cloudpickle), "fork" (quick; a copy of this process), "forkserver" (a copy of a process that does nothing
            else), or "auto": fork where that is safe, otherwise forkserver (docs/workers.md). Cost: "fork" takes
            milliseconds for each process, "spawn" seconds, and "forkserver" seconds once.
        pin_memory: Whether CPU batches are put into page-locked memory; "auto" if CUDA is available. Cost: a copy of
            each batch, and page-locked memory for the batches that wait.
        read_ahead_bytes: Bytes that each process may request before they are wanted; None is 256 MiB for remote storage
            and slow disks, and 0 for fast disks; 0 reads nothing ahead. Cost: memory up to that size in each process.
        requests_in_flight: Requests that each process makes at the same time; None adapts it to the latency. Cost: a
            thread for each request.
        retry_policy: How reading is repeated after transient errors, and when a store counts as down; None is
            RetryPolicy(). Saved states do not depend on it.
        decode_process: Whether decoding and the hooks after it run in a process of their own, which sends finished
            batches: for trainers whose Python is busy (docs/decode-process.md). "auto" if the rank decodes or runs
            hooks, and there are workers. Cost: one more process, a copy of each batch, and memory for prefetch_factor +
            2 batches.
        check_plan: Whether the ranks of a job with global batches compare, before their first batch, what decides who
            takes which samples. A collective call over the data-parallel group. Cost: one collective call.

    Raises:
        ConfigError: An argument is invalid.
        DeviceError: pin_memory=True without CUDA.
    """

    shares_batches = False
    """Whether loaders of this class give their batches to other ranks, or take them from one."""

    @explain_call
    @show_loader_options
    def __init__(
        self,
        dataset: SavableDataset[T],
        *,
        worker_config: WorkerConfig | None = None,
        **options: Unpack[LoaderArguments],
    ) -> None:
        if not isinstance(dataset, SavableDataset):
            raise ConfigError(
                f"A loader was given a {type(dataset).__name__}, which is not a dataset of energon_dali. Give what "
                "get_train_dataset or get_val_dataset returns."
            )
        if worker_config is not None:
            warnings.warn("worker_config is the dataset's: leave it out here.", DeprecationWarning, stacklevel=3)
            if worker_config != dataset.worker_config:
                raise ConfigError(
                    f"The loader was given {worker_config}, but the dataset has {dataset.worker_config}. Leave "
                    "worker_config out to take the dataset's."
                )
        group = dataset.worker_config.share_group
        if group is not None and group.is_shared and not self.shares_batches:
            raise ConfigError(
                f"Ranks {[one.rank for one in group.members]} share their batches, and a {type(self).__name__} would "
                "read for this one alone. Call get_savable_loader(dataset) or get_loader(dataset), which make the "
                "loader that this rank needs."
            )
        refuse_stages(dataset)
        self.dataset = dataset
        self.worker_config = dataset.worker_config
        self._tree: SavableDataset[T] = cut_tree(dataset)
        self._options = LoaderOptions(**options).resolved(  # type: ignore[arg-type]  # it checks start_method
            rank_has_work=rank_has_work(self._tree), num_workers=self.worker_config.num_workers
        )
        if group is not None and group.own != group.members[0]:
            # The first ranks of groups compare their plans: the same ranks of other groups may follow, and not answer.
            self._options = replace(self._options, check_plan=False)
        prepare_start(self._tree, self._options.start_method)
        self._auto = auto_workers(self.worker_config)
        self._shared_cache: CachePool | None = None
        self._metrics, self._clock = open_metrics(self.worker_config)
        self._watchdog = Watchdog(
            self._options.watchdog_timeout_seconds,
            self._options.watchdog_initial_timeout_seconds,
            fail_on_timeout=self._options.fail_on_timeout,
            metrics=self._metrics,
        )
        self._reporter = FailureReporter(self._metrics, self.worker_config)
        self._closing: ClosedWithReport | None = None
        self._ranges = _Ranges()
        self._prefetcher: Prefetcher | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._snapshot: State | None = None
        """The state after the last delivered batch, of which `plain` makes plain values; None before the first."""
        self._begun = False
        self._job = None if self._tree.global_batches is None else GlobalJob(self._tree)
        self._steps = StepClock()
        self._losses: SourceLosses | None = None
        self._epoch = self._given = 0
        self._must_compare = self._options.check_plan
        self._pid = os.getpid()
        self._turn = threading.RLock()

    # --- iteration -------------------------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator[T]:
        refuse_worker_process()
        refuse_resharding(self.worker_config)
        # Not kept: a loader that refers to its iterators could not end its workers when the last user drops it.
        return LoaderIterator(self)

    def __next__(self) -> T:
        return self._next(self._epoch)

    def __getitem__(self, index: object) -> NoReturn:
        refuse_indexing(self)

    def __len__(self) -> int:
        dataset, batches = self.dataset, self.dataset.global_batches
        if batches is not None and self.worker_config.world_size != batches.world_size:  # after `resize`
            dataset = dataset.continued(batches.start, self.worker_config)
        return dataset.len_rank()

    def _next(self, epoch: int) -> T:
        """Returns the next element of an epoch, given by its number among those that this loader started."""
        self._check_process()
        refuse_capture("A batch was taken")  # before it leaves the queue: the loader stays open, and loses nothing
        started = -1.0
        before: State | None = None
        place: Any = None
        taken = False
        try:
            started = self._clock.start()
            # Threads that share a loader take turns; a signal handler inside a wait may ask for a batch as well.
            with self._turn, self._ranges.named("energon_dali.next"):
                if epoch != self._epoch:  # another iterator reached its end
                    self._clock.stop_without_batch(started, "the epoch is over")
                    raise StopIteration
                if self._auto is not None and (number := self._auto.decide(self.stats)) is not None:
                    self.change_workers(number)
                prefetcher = self._prefetcher or self._open()
                occupancy = prefetcher.occupancy
                before, place = prefetcher.snapshot, self._begin_taking()
                if self._job is not None:
                    self._job.note(before)
                try:
                    taken = True
                    element = prefetcher.next()
                except StopIteration:
                    self._epoch, self._given = self._epoch + 1, 0
                    self._snapshot = prefetcher.snapshot
                    if self._job is not None:
                        self._job.note_end(prefetcher.snapshot)
                        self._steps.end(started)
                    self._reporter.report(is_end=False)
                    self._clock.stop_without_batch(started, "the epoch is over")
                    raise
                if self.worker_config.delivery is not None:
                    element = self.worker_config.delivery.of(element)
                self._snapshot = prefetcher.snapshot
                self._given += 1
                self._clock.stop(started, occupancy)
                if self._job is not None:
                    self._steps.note(before, started, time.perf_counter())
                if self._auto is not None:
                    self._auto.note(time.perf_counter() - started)
            # Nothing may follow before the trainer has the element: Ctrl-C up to this line takes it back.
            return element  # type: ignore[no-any-return]
        except StopIteration:
            raise
        except BaseException as error:
            self._clock.stop_without_batch(started, type(error).__name__)
            if taken:
                self._snapshot = before
                self._go_back_to(place)
            self._close_failed()
            raise

    def _begin_taking(self) -> Any:
        """Returns where the loader is, for `_go_back_to`; an element is taken next."""
        return self._epoch, self._given

    def _go_back_to(self, place: Any) -> None:
        """Takes back what was taken since `_begin_taking`: the trainer does not get it."""
        self._epoch, self._given = place

    def _close_failed(self) -> None:
        """Closes the loader because of an error, which may be Ctrl-C."""
        self.close()

    def _check_process(self) -> None:
        """Refuses to take batches in a forked copy: it would take those of the original."""
        if self._prefetcher is not None and os.getpid() != self._pid:
            raise ConfigError(
                f"This loader runs in process {self._pid}, and this process ({os.getpid()}) is a forked copy of it; "
                "the workers serve the original alone. Build a loader here, or fork before the first batch is taken."
            )

    def _open(self) -> Prefetcher:
        """Starts workers and threads, at the beginning or after the last delivered batch."""
        refuse_worker_process()  # an iterator may have been made elsewhere than it is used
        refuse_resharding(self.worker_config)
        self._begun = True
        if self._snapshot is not None and self._job is not None:
            self._job.note(self._snapshot)
        if self._must_compare and self._tree.global_batches is not None:
            state = plain(self._snapshot)
            compare_ranks(self._tree, self._tree.global_batches.start if state is None else cursor_of(state))
        self._must_compare = False
        self._pid = os.getpid()
        cache_pool = self._options.cache_pool
        if cache_pool is not None and has_workers(self._tree):
            # One more: hooks may run in the rank's process as well.
            self._shared_cache = cache_pool.shared_by(self.worker_config.num_workers + 1)
        options = replace(self._options, cache_pool=self._shared_cache or self._options.cache_pool)
        with interrupts_deferred():  # what runs already and is not stored here would never be ended
            self._prefetcher = prefetcher = self._start_prefetcher(options)
            self._closing = ClosedWithReport(prefetcher, self._reporter)
            self._finalizer = close_when_collected(self, self._closing)
        return prefetcher

    def _start_prefetcher(self, options: LoaderOptions) -> Prefetcher:
        """Returns what brings the batches after the last delivered one; its workers, processes and threads run."""
        return open_prefetcher(self._tree, options, plain(self._snapshot), self._metrics, self._watchdog)

    def change_workers(self, num_workers: int) -> None:
        """Goes on with another number of worker processes. No batch changes, and no state.

        What the workers have prefetched is dropped and made again by the new ones, which start when the next batch is
        asked for. The number of streams stays what it is.

        Args:
            num_workers: Must divide the streams of this rank, unless there are global batches; 0 runs everything in
                this process.

        Raises:
            ConfigError: It is not a whole number of at least 0.
            LayoutError: It does not divide the streams of this rank.
        """
        old = self.worker_config
        if self._tree.global_batches is not None:
            config = old.with_layout(rank=old.rank, world_size=old.world_size, num_workers=num_workers)
            with self._turn:
                self._stop()
                self._continue_with(config)
            return
        config = old.with_workers(num_workers)
        with self._turn:
            self._stop()
            if self._tree is self.dataset:
                self._tree = copy.copy(self._tree)
            with_workers(self._tree, config)
            self.worker_config = config

    def _continue_with(self, config: WorkerConfig) -> None:
        """Lets global batches continue with other ranks or workers; nothing may run meanwhile."""
        batches = self._tree.global_batches
        assert batches is not None
        state = plain(self._snapshot)
        start = batches.start if state is None else cursor_of(state)
        self._tree = self._tree.continued(start, config)
        if self._job is not None:
            self._job.tree = self._tree
            self._steps.clear()
        self.worker_config = config

    def close(self) -> None:
        """Ends workers and threads; may be called again. A later iteration continues after the last batch."""
        if self._stop():
            self._reporter.report(is_end=True)
            end_trace(self._metrics, lambda: diagnose(self.stats(), num_workers=self.worker_config.num_workers))

    def _stop(self) -> bool:
        """Ends workers and threads, if there are any; returns whether there were."""
        prefetcher: Prefetcher | None = None
        is_open = False
        try:
            with interrupts_deferred():  # what is not stored here any more and not closed would never be ended
                prefetcher, self._prefetcher = self._prefetcher, None
                if prefetcher is not None:
                    # Another thread may open the next one meanwhile.
                    finalizer, closing = self._finalizer, self._closing
                    self._finalizer = self._closing = None
                    self._watchdog.show_workers = None
                    is_open = finalizer is not None and finalizer.detach() is not None
                    if closing is not None and is_open:
                        forget(closing)
        finally:  # also after Ctrl-C
            try:
                if prefetcher is not None and is_open:
                    prefetcher.close()
            finally:
                if prefetcher is not None and self._shared_cache is not None:
                    self._shared_cache.close()
        return prefetcher is not None

    def __enter__(self) -> BasicDataLoader[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- single samples --------------------------------------------------------------------------------------------

    def can_restore_sample(self) -> bool:
        """Returns whether `restore_sample` works: whether every hook is marked stateless."""
        return self._tree.can_restore_sample()

    def restore_sample(self, restore_key: tuple[Any, ...]) -> T:
        """Returns the element of a `__restore_key__`, made again in this process.

        Raises:
            StateError: The key is not of this dataset, or a hook is not stateless.
        """
        self._tree.assert_can_restore()
        retries = self._options.read_scope(self._metrics.count, outlasts_stores=False)
        with read_scope(retries):
            return self._tree.restore_sample(restore_key)

    def config(self) -> dict[str, Any]:
        """Returns what this loader does, as plain values."""
        return {
            "type": type(self).__name__,
            "num_workers": self.worker_config.num_workers,
            "prefetch_factor": self._options.prefetch_factor,
            "decode_process": self._options.decode_process,
            "dataset": self.dataset.config(),
        }

    def _repr_html_(self) -> str:
        from energon_dali.samples.cards import Bar, card

        config, stats = self.worker_config, self.stats()
        rows: list[tuple[str, str | Bar]] = [
            ("rank", f"{config.rank} of {config.world_size}"),
            ("workers", f"{config.num_workers}" if config.num_workers else "0: in this process"),
            ("streams of this rank", f"{len(config.streams)}"),
            ("prefetch_factor", str(self.prefetch_factor)),
        ]
        if stats.elapsed_seconds:
            blocked = f"{stats.blocked_share:.1%}, {stats.blocked_seconds:.1f} s"
            rows.append(("batches", f"{stats.batches:,}, {stats.batches_per_second:.1f} per second"))
            rows.append(("trainer blocked", Bar(stats.blocked_share, blocked)))
        rows += [(f"failed {count:,} times", kind) for kind, count in sorted(stats.failure_kinds.items())]
        note = "running" if stats.elapsed_seconds else "no batch was taken yet"
        return card(type(self).__name__, rows, note=note, text=("Tree of datasets, outermost first", str(self.dataset)))

    def stats(self) -> LoaderStatistics:
        """Returns what happened so far: how long the trainer waited, time per stage, routes, bytes and failures."""
        losses = {} if self._losses is None else self._losses.totals()
        times = self._clock.times()
        return LoaderStatistics.collect(
            self._metrics.snapshot(),
            planned_blend=self._planned_blend(),
            losses=losses,
            waiting_for=describe_wait(self._metrics) if times["waiting_seconds"] else "",
            **times,
        )

    def report_losses(self, batch: Any, losses: Iterable[Any], weights: Iterable[Any] | None = None) -> None:
        """Counts the losses of the samples of a batch for their datasets, which `stats().losses` shows.

        Nothing is communicated: each rank has its own.

        Args:
            batch: A batch of this loader, with its `__restore_key__`.
            losses: The mean loss of each sample, in the order of the batch; of a pack, of each of its samples. Numbers
                or a tensor of them.
            weights: What each is a mean over, such as its predicted tokens; None counts samples.

        Raises:
            ConfigError: The batch has no restore key, there is not one loss for each sample, or another rank reads the
                dataset.
        """
        if self._losses is None:
            try:
                names = source_of(self._tree).names
            except ValueError:
                raise ConfigError(
                    "report_losses counts losses by dataset, and this loader reads datasets that were put together by "
                    "hand, or by another rank. Give get_train_dataset a metadataset."
                ) from None
            self._losses = SourceLosses(names)
        self._losses.add(batch, losses, weights)

    def step_times(self, last: int = 16) -> StepTimes:
        """Returns what the last steps of a job with global batches took, next to what was planned for each rank.

        Nothing is communicated: the plan of every rank has that of all. It deals the steps again, which takes up to
        80 ms for each on a thousand ranks.

        Args:
            last: How many steps, at most 256. A step counts when the trainer asks for what follows.

        Raises:
            ConfigError: There are no global batches, or neither a balance nor packs, so that no measures are read.
        """
        batches = self._tree.global_batches
        if batches is None:
            raise ConfigError(
                "step_times shows the steps of global batches, and this loader has none. Give get_train_dataset the "
                "option global_batch_size."
            )
        if type(last) is not int or last < 1:
            raise ConfigError(f"last={last!r} is invalid: give a whole number of steps from 1 on.")
        return self._steps.times(batches, self.worker_config.rank, last)

    def _planned_blend(self) -> dict[str, dict[str, float]]:
        """Returns the shares of a blend with global batches in the steps that were delivered."""
        found = None if self._job is None else self._job.blended(plain(self._snapshot))
        return {} if found is None else planned_shares(source_of(self._tree).names, *found)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Called by copy, deepcopy and pickle, which would otherwise fail on a lock or a process somewhere inside.
        raise ConfigError(
            f"A {type(self).__name__} cannot be copied or pickled: it owns processes and a position. Copy its dataset "
            "and build another loader; to continue at its position, restore its state_dict() there."
        )

    def __repr__(self) -> str:
        config = self.worker_config
        return (
            f"{type(self).__name__}({self.dataset!r}, rank={config.rank}, world_size={config.world_size}, "
            f"num_workers={config.num_workers}, prefetch_factor={self._options.prefetch_factor})"
        )

    def __str__(self) -> str:
        return f"{type(self).__name__}(num_workers={self.worker_config.num_workers})\n{self._tree}"


class LoaderIterator(Iterator[T], Generic[T]):
    """The live iteration of a loader, up to the end of an epoch.

    Args:
        loader: The loader; it lives as long as its iterators.
    """

    def __init__(self, loader: BasicDataLoader[T]) -> None:
        self._loader = loader
        self._epoch: int | None = None
        self.exhausted = False
        """Whether the epoch is over."""

    def __next__(self) -> T:
        if self.exhausted:
            raise StopIteration
        # Trainers that know the length do not ask for the end: a pending one belongs to the iterator before this one.
        end_is_pending = self._epoch is None and self._loader._given > 0
        if self._epoch is None:
            self._epoch = self._loader._epoch
        while True:
            try:
                return self._loader._next(self._epoch)
            except StopIteration:
                self.exhausted = not end_is_pending
                if self.exhausted:
                    raise
            self._epoch, end_is_pending = self._loader._epoch, False

    def __len__(self) -> int:
        return len(self._loader)


class _Ranges:
    """NVTX ranges if nvtx is installed, else nothing."""

    def __init__(self) -> None:
        self._annotate: Any = None
        if importlib.util.find_spec("nvtx") is not None:
            import nvtx

            self._annotate = nvtx.annotate

    def named(self, name: str) -> contextlib.AbstractContextManager[Any]:
        if self._annotate is None:
            return contextlib.nullcontext()
        return cast("contextlib.AbstractContextManager[Any]", self._annotate(name, domain="energon_dali"))
