"""The part of a loader that a rank runs: its iterator over the tree, fed by worker processes if there are any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.worker_border import find_worker_borders
from energon_dali.loader.workers.pool import WorkerPool
from energon_dali.shards.storage.retry import RetryScope

if TYPE_CHECKING:
    from energon_dali.cache import CachePool
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.datasets.stream import State
    from energon_dali.shards import RetryPolicy


def has_workers(dataset: SavableDataset[Any]) -> bool:
    """Returns whether worker processes run a part of a tree."""
    return dataset.worker_config.num_workers > 0 and bool(find_worker_borders(dataset))


class RankPart:
    """The iterator of a rank and its workers, which have been started.

    Args:
        dataset: The tree, with its cut.
        metrics: Takes counts and times.
        state: Where to begin; None is the beginning.
        prefetch_factor: Blocks per stream that workers make ahead.
        start_method: How workers start.
        cache_pool: What hooks see as `TaskEncoder.cache`, here and in the workers.
        retry_policy: How reading is repeated after errors, here and in the workers.
        on_pool: Called with the workers' pool before they start.

    Raises:
        WorkerError: What the workers need cannot be pickled.
        StateError: The state is not one of this dataset.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        metrics: Metrics,
        *,
        state: State | None,
        prefetch_factor: int,
        start_method: str,
        cache_pool: CachePool | None,
        retry_policy: RetryPolicy,
        on_pool: Callable[[WorkerPool], None] | None = None,
    ) -> None:
        self.pool: WorkerPool | None = None
        if has_workers(dataset):
            self.pool = WorkerPool(
                find_worker_borders(dataset),
                metrics,
                prefetch_factor=prefetch_factor,
                start_method=start_method,
                cache_pool=cache_pool,
                retry_policy=retry_policy,
            )
            if on_pool is not None:
                on_pool(self.pool)
        try:
            retries = RetryScope(retry_policy, metrics.count)
            self.iterator: RankIterator[Any] = RankIterator(dataset, self.pool, metrics, cache_pool, retries)
            if self.pool is not None:
                self.pool.launch()
            if state is not None:
                self.iterator.load_state_dict(state)
        except BaseException:
            if self.pool is not None:
                self.pool.close()
            raise

    def close(self) -> None:
        """Ends the workers and closes the iterator."""
        if self.pool is not None:
            self.pool.close()
        self.iterator.close()
