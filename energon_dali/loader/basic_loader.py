"""A loader without saved state: workers, the rank's part, prefetch, watchdog and statistics."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

from energon_dali.cache import CachePool, pool_context
from energon_dali.cache.file_cache_pool import check_cache_pool
from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.metrics import Metrics
from energon_dali.datasets.resharding import refuse_indexing, refuse_resharding
from energon_dali.error_handlers import LOGGER
from energon_dali.errors import ConfigError
from energon_dali.loader.deferred_close import close_when_collected, forget
from energon_dali.loader.delivery import Delivery
from energon_dali.loader.delivery_setup import DeliverySetup, open_delivery, wants_decode_process
from energon_dali.loader.pinning import wants_pinning
from energon_dali.loader.rank_part import has_workers
from energon_dali.loader.statistics import LoaderStatistics, TrainerClock
from energon_dali.loader.tree import cut_tree
from energon_dali.loader.watchdog import Watchdog
from energon_dali.loader.workers.interrupts import interrupts_deferred
from energon_dali.loader.workers.launch import check_start_method
from energon_dali.shards import RetryPolicy
from energon_dali.shards.storage.retry import RetryScope, retry_scope

if TYPE_CHECKING:
    from energon_dali.datasets.stream import State
    from energon_dali.worker_config import WorkerConfig

T = TypeVar("T")


class BasicDataLoader(Generic[T]):
    """Iterates a dataset, with worker processes if its WorkerConfig asks for some.

    `iter(loader)` continues the live iteration until an epoch ends; the next `iter` begins the next epoch, also behind
    one that took all elements of an epoch and did not ask for more. `next(loader)` takes the next element of the
    running epoch. Workers live as long as the loader: until
    `close()`, the end of a `with`, the end of the process, or until nobody holds it.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        worker_config: Deprecated; must equal the dataset's.
        prefetch_factor: Blocks per stream that workers make ahead, and batches that wait for the trainer; at least 1.
            Each costs the memory of a block or batch.
        cache_pool: What fetches files ahead for cookers and hooks, such as FileStoreCachePool(); its limits hold for
            all processes together. It stays yours to close, after the loader. None fetches nothing ahead.
        watchdog_timeout_seconds: Longest wait for a batch that is normal; None never complains.
        watchdog_initial_timeout_seconds: The same for the first batch; None is the same.
        fail_on_timeout: Raise WatchdogTimeoutError where the watchdog would warn.
        start_method: How workers start: "spawn" (safe everywhere; what the task encoder holds must be picklable by
            cloudpickle), "fork" or "forkserver".
        pin_memory: Whether CPU batches are put into page-locked memory; "auto" where CUDA is available.
        retry_policy: How reading is repeated after errors that may pass, and when a store counts as down; None is
            RetryPolicy(). Saved states do not depend on it.
        decode_process: Whether decoding and the hooks behind it run in a process of their own, which hands finished
            batches over: for trainers whose Python is busy (docs/decode-process.md). "auto" where the rank decodes or
            runs hooks, beside workers.

    Raises:
        ConfigError: An argument cannot work.
        DeviceError: pin_memory=True without CUDA.
    """

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[T],
        *,
        worker_config: WorkerConfig | None = None,
        prefetch_factor: int = 2,
        cache_pool: CachePool | None = None,
        watchdog_timeout_seconds: float | None = 60,
        watchdog_initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
        start_method: str = "spawn",
        pin_memory: bool | str = "auto",
        retry_policy: RetryPolicy | None = None,
        decode_process: bool | str = False,
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
        if not isinstance(prefetch_factor, int) or prefetch_factor < 1:
            raise ConfigError(
                f"prefetch_factor={prefetch_factor!r} leaves nothing to deliver: give a whole number of at least 1."
            )
        self.dataset = dataset
        self.worker_config = dataset.worker_config
        self._tree: SavableDataset[T] = cut_tree(dataset)
        self._prefetch = prefetch_factor
        self._cache_pool = check_cache_pool(cache_pool)
        self._cache_share = self._cache_pool
        self._start_method = check_start_method(start_method)
        self._retry_policy = _check_retry_policy(retry_policy)
        self._decode_process = wants_decode_process(decode_process, self._tree)
        forks = self._decode_process and self._start_method == "fork"
        self._pins = wants_pinning(pin_memory, before_fork=forks)
        self._metrics = Metrics()
        self._watchdog = Watchdog(
            watchdog_timeout_seconds,
            watchdog_initial_timeout_seconds,
            fail_on_timeout=fail_on_timeout,
            metrics=self._metrics,
        )
        self._failures_told = 0
        self._clock = TrainerClock()
        self._ranges = _Ranges()
        self._delivery: Delivery | None = None
        self._end: weakref.finalize[..., Any] | None = None
        self._state: State | None = None
        self._begun = False
        self._epoch = self._given = 0
        self._pid = os.getpid()
        self._turn = threading.RLock()

    # --- iteration -------------------------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator[T]:
        refuse_resharding(self.worker_config)
        # Not kept: a loader that held its iterators could not end its workers when the last user lets it go.
        return LoaderIterator(self)

    def __next__(self) -> T:
        return self._next(self._epoch)

    def __getitem__(self, index: object) -> NoReturn:
        raise refuse_indexing(self)

    def __len__(self) -> int:
        return self.dataset.len_rank()

    def _next(self, epoch: int) -> T:
        """Returns the next element of an epoch, by its number among those that this loader began."""
        self._check_process()
        started = self._clock.start()
        before: State | None = None
        taken = False
        try:
            # Threads of the user's that share a loader take turns; a signal handler inside a wait may ask as well.
            with self._turn, self._ranges.named("energon_dali.next"):
                if epoch != self._epoch:  # another iterator has come to its end
                    raise StopIteration
                delivery = self._delivery or self._open()
                occupancy = delivery.occupancy
                before = delivery.state()
                try:
                    taken = True
                    element = delivery.next()
                except StopIteration:
                    self._epoch, self._given = self._epoch + 1, 0
                    self._note_closed(delivery)
                    self._sum_up_failures()
                    raise
                self._note_closed(delivery)
                self._given += 1
                self._clock.stop(started, occupancy)
            # Nothing may come between here and the trainer: Ctrl-C up to this line takes the element back.
            return element  # type: ignore[no-any-return]
        except StopIteration:
            raise
        except BaseException:
            self.close()
            if taken:
                self._state = before
            raise

    def _note_closed(self, delivery: Delivery) -> None:
        """Notes the position where a signal handler or another thread closed during the wait: what came counts."""
        if self._delivery is not delivery:
            self._state = delivery.state()

    def _check_process(self) -> None:
        """Refuses to take batches in a forked copy: it would take those of the loader that it is a copy of."""
        if self._delivery is not None and os.getpid() != self._pid:
            raise ConfigError(
                f"This loader runs in process {self._pid}, of which this process ({os.getpid()}) is a forked copy; its "
                "workers serve that one alone. Build a loader here, or fork before the first batch is taken."
            )

    def _open(self) -> Delivery:
        """Starts workers and threads, at the beginning or at the last delivered state."""
        self._begun = True
        self._pid = os.getpid()
        if self._cache_pool is not None and has_workers(self._tree):
            # Hooks may run in the rank's process as well.
            self._cache_share = self._cache_pool.shared_by(self.worker_config.num_workers + 1)
        setup = DeliverySetup(
            dataset=self._tree,
            metrics=self._metrics,
            watchdog=self._watchdog,
            state=self._state,
            prefetch_factor=self._prefetch,
            start_method=self._start_method,
            cache_pool=self._cache_share,
            pins=self._pins,
            retry_policy=self._retry_policy,
            decode_process=self._decode_process,
        )
        with interrupts_deferred():  # what runs already and is not known here would never be ended
            self._delivery = delivery = open_delivery(setup)
            self._end = close_when_collected(self, delivery)
        return delivery

    def close(self) -> None:
        """Ends workers and threads; may be called again. A later iteration continues behind the last batch."""
        delivery, self._delivery = self._delivery, None
        if delivery is None:
            return
        end, self._end = self._end, None  # another thread may open the next meanwhile
        self._state = delivery.state()
        self._watchdog.show_workers = None
        if end is not None and end.detach() is not None:
            forget(delivery)
            delivery.close()
        if self._cache_share is not None and self._cache_share is not self._cache_pool:
            self._cache_share.close()
        self._sum_up_failures()

    def _sum_up_failures(self) -> None:
        """Logs how many samples failed in which way, where more did than were printed."""
        kinds = self._metrics.failure_kinds()
        total = sum(kinds.values())
        if total == self._failures_told or max(kinds.values()) == 1:
            return
        self._failures_told = total
        rows = [f"{count:,} x {kind}" for kind, count in sorted(kinds.items(), key=lambda row: -row[1])]
        LOGGER.error("%s samples were dropped so far because of failures:\n%s", f"{total:,}", "\n".join(rows))

    def __enter__(self) -> BasicDataLoader[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- single samples --------------------------------------------------------------------------------------------

    def can_restore_sample(self) -> bool:
        """Returns whether `restore_sample` works: whether every hook is marked stateless."""
        return self._tree.can_restore_sample()

    def restore_sample(self, restore_key: tuple[Any, ...]) -> T:
        """Returns the element of a `__restore_key__`, made anew in this process.

        Raises:
            StateError: The key is not of this dataset, or a hook is not stateless.
        """
        self._tree.assert_can_restore()
        retries = RetryScope(self._retry_policy, self._metrics.count, outlasts_stores=False)
        with pool_context(self._cache_pool), retry_scope(retries):
            return self._tree.restore_sample(restore_key)

    def config(self) -> dict[str, Any]:
        """Returns what this loader does, as plain values."""
        return {
            "type": type(self).__name__,
            "num_workers": self.worker_config.num_workers,
            "prefetch_factor": self._prefetch,
            "decode_process": self._decode_process,
            "dataset": self.dataset.config(),
        }

    def stats(self) -> LoaderStatistics:
        """Returns what happened so far: how long the trainer waited, time per stage, routes, bytes and failures."""
        return self._clock.statistics(self._metrics.snapshot())

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Asked for by copy, deepcopy and pickle, which would else fail somewhere inside with a lock or a process.
        raise ConfigError(
            f"A {type(self).__name__} cannot be copied or pickled: it owns processes and a position. Copy its dataset "
            "and build another loader; to continue at its position restore its state_dict() there."
        )

    def __repr__(self) -> str:
        config = self.worker_config
        return (
            f"{type(self).__name__}({self.dataset!r}, rank={config.rank}, world_size={config.world_size}, "
            f"num_workers={config.num_workers}, prefetch_factor={self._prefetch})"
        )

    def __str__(self) -> str:
        return f"{type(self).__name__}(num_workers={self.worker_config.num_workers})\n{self._tree}"


def _check_retry_policy(policy: object) -> RetryPolicy:
    """Returns the policy, the default one for None.

    Raises:
        ConfigError: It is not a RetryPolicy.
    """
    if policy is None:
        return RetryPolicy()
    if isinstance(policy, RetryPolicy):
        return policy
    raise ConfigError(
        f"retry_policy={policy!r} is not a RetryPolicy. Give RetryPolicy(attempts=..., request_seconds=..., "
        "store_seconds=...), or None for its defaults."
    )


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
        # Trainers that know the length do not ask for the end: it is that of the iterator before, and not of this one.
        end_is_untold = self._epoch is None and self._loader._given > 0
        if self._epoch is None:
            self._epoch = self._loader._epoch
        while True:
            try:
                return self._loader._next(self._epoch)
            except StopIteration:
                self.exhausted = not end_is_untold
                if self.exhausted:
                    raise
            self._epoch, end_is_untold = self._loader._epoch, False

    def __len__(self) -> int:
        return len(self._loader)


class _Ranges:
    """NVTX ranges where nvtx is installed, else nothing."""

    def __init__(self) -> None:
        self._annotate: Any = None
        if importlib.util.find_spec("nvtx") is not None:
            import nvtx

            self._annotate = nvtx.annotate

    def named(self, name: str) -> contextlib.AbstractContextManager[Any]:
        if self._annotate is None:
            return contextlib.nullcontext()
        return cast("contextlib.AbstractContextManager[Any]", self._annotate(name, domain="energon_dali"))


@explain_call
def get_loader(
    dataset: SavableDataset[T],
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    watchdog_timeout_seconds: float | None = 60,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
    start_method: str = "spawn",
    pin_memory: bool | str = "auto",
    retry_policy: RetryPolicy | None = None,
    decode_process: bool | str = False,
) -> BasicDataLoader[T]:
    """Returns a loader without state saving; its arguments are those of `BasicDataLoader`.

    Raises:
        ConfigError: An argument cannot work.
        DeviceError: pin_memory=True without CUDA.
    """
    return BasicDataLoader(
        dataset,
        worker_config=worker_config,
        prefetch_factor=prefetch_factor,
        cache_pool=cache_pool,
        watchdog_timeout_seconds=watchdog_timeout_seconds,
        watchdog_initial_timeout_seconds=watchdog_initial_timeout_seconds,
        fail_on_timeout=fail_on_timeout,
        start_method=start_method,
        pin_memory=pin_memory,
        retry_policy=retry_policy,
        decode_process=decode_process,
    )
