"""What a rank runs of a tree of datasets, and what its workers run: where the tree is cut, and both parts at work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.base import SavableDataset, walk
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.worker_border import WorkerBorder, find_worker_borders
from energon_dali.datasets.wrappers.worker_decode import WorkerDecodeDataset
from energon_dali.loader.processes.fork_safety import fork_hazard
from energon_dali.loader.processes.fork_server import prepare_workers
from energon_dali.loader.processes.launch import resolve_start_method
from energon_dali.loader.workers.pool import WorkerPool

if TYPE_CHECKING:
    from energon_dali.datasets.metrics import Metrics
    from energon_dali.datasets.stream import State
    from energon_dali.decode.interface import Placement
    from energon_dali.loader.loader_options import LoaderOptions
    from energon_dali.loader.processes.launch import StartMethod
    from energon_dali.loader.processes.work_board import WorkBoard


class RankPipeline:
    """The iterator of a rank and its workers, which have been started.

    Args:
        dataset: The tree, cut by `cut_tree`.
        metrics: Takes counts and times.
        options: The loader's.
        state: Where to start; None is the beginning.
        on_pool: Called with the workers' pool before they start.
        board: Where the workers report what they work on, if this process is not the trainer's.

    Raises:
        WorkerError: What the workers need cannot be pickled.
        StateError: The state is of another dataset.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        metrics: Metrics,
        options: LoaderOptions,
        state: State | None,
        *,
        on_pool: Callable[[WorkerPool], None] | None = None,
        board: WorkBoard | None = None,
    ) -> None:
        self.pool: WorkerPool | None = None
        if has_workers(dataset):
            _look_up_for_workers(dataset)
            self.pool = WorkerPool(find_worker_borders(dataset), metrics, options, board)
            if on_pool is not None:
                on_pool(self.pool)
        starting = metrics.clock("start")
        outer = starting.begin()
        try:
            retries = options.read_scope(metrics.count)
            self.iterator: RankIterator[Any] = RankIterator(dataset, self.pool, metrics, retries)
            if self.pool is not None:
                self.pool.launch()
                _import_libraries(dataset, "rank")  # while the workers start
            if state is not None:
                self.iterator.load_state_dict(state)
        except BaseException:
            if self.pool is not None:
                self.pool.close()
            raise
        finally:
            starting.end(outer)

    def close(self) -> None:
        """Ends the workers and closes the iterator."""
        if self.pool is not None:
            self.pool.close()
        self.iterator.close()


def prepare_start(dataset: SavableDataset[Any], start_method: StartMethod) -> None:
    """Imports what each forked worker would otherwise import for itself when the first batch is wanted.

    So does the rank, unless its process may use a GPU, where libraries had better come after the fork. Where processes
    are spawned nothing is imported, because each of them imports what it needs. A fork server from which workers may
    have to start is started, in the background.

    Args:
        dataset: The tree, cut by `cut_tree`.
        start_method: How processes start.
    """
    if not has_workers(dataset):
        return
    if resolve_start_method(start_method, uses_device=False) == "fork":
        import_module("numpy.random")  # workers seed it
        _import_libraries(dataset, "worker")
        if fork_hazard(uses_device=True) is None:
            _import_libraries(dataset, "rank")
    if start_method == "auto":
        prepare_workers()


def _look_up_for_workers(dataset: SavableDataset[Any]) -> None:
    """Looks up what workers must not, such as what a GPU decodes; it travels to them with the tree."""
    for one in walk(dataset):
        if isinstance(one, SourceDataset):
            for source in one.sources:
                source.load.prepare_workers()
        elif isinstance(one, WorkerDecodeDataset):
            one.decoder.prepare_workers()


def _import_libraries(dataset: SavableDataset[Any], placement: Placement) -> None:
    """Imports what a process would otherwise import when it decodes its first sample.

    Args:
        dataset: The tree.
        placement: The process: a worker, or one that will be forked into workers; or the rank's.
    """
    for one in walk(dataset):
        if isinstance(one, SourceDataset):
            for source in one.sources:
                source.load.import_libraries(placement)


def cut_tree(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
    """Returns a tree whose parts that need not run in the rank run in workers, each below a numbered worker border.

    What uses the device runs in the rank (`runs_in_rank`), with everything above it, and so do the ends of the rank's
    epochs. The largest parts without any of that run in workers. A blend is drawn in the workers if the decoders of all
    its datasets work there; otherwise it is drawn in the rank, from several worker borders.

    Args:
        dataset: The outermost dataset; it is not changed.
    """
    return _cut(dataset, itertools.count(), outermost=True)


def _cut(dataset: SavableDataset[Any], numbers: Iterator[int], *, outermost: bool = False) -> SavableDataset[Any]:
    if isinstance(dataset, WorkerBorder):
        return dataset.numbered(_strip(dataset.dataset), next(numbers))
    ends_epochs = outermost and dataset.rank_limit is not None
    if not ends_epochs and not _needs_rank(dataset):
        return WorkerBorder(_strip(dataset), block_size=1, number=next(numbers))
    return dataset.with_children(*(_cut(child, numbers) for child in dataset.children))


def _needs_rank(dataset: SavableDataset[Any]) -> bool:
    """Returns whether a dataset, or one above the borders inside it, has to run in the rank."""
    if isinstance(dataset, WorkerBorder):
        return dataset.runs_in_rank
    return dataset.runs_in_rank or any(_needs_rank(child) for child in dataset.children)


def _strip(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
    """Returns a tree without worker borders, for a worker."""
    if isinstance(dataset, WorkerBorder):
        return _strip(dataset.dataset)
    return dataset.with_children(*(_strip(child) for child in dataset.children))


def has_workers(dataset: SavableDataset[Any]) -> bool:
    """Returns whether worker processes run a part of a tree."""
    return dataset.worker_config.num_workers > 0 and bool(find_worker_borders(dataset))


def rank_has_work(dataset: SavableDataset[Any]) -> bool:
    """Returns whether the rank decodes or runs hooks, or only passes on what workers deliver."""
    if isinstance(dataset, WorkerBorder):
        return dataset.decoder is not None
    return dataset.rank_limit is None or rank_has_work(dataset.children[0])
