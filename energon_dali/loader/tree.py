"""Where a tree of datasets is cut between workers and rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.worker_border import WorkerBorder


def cut_tree(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
    """Returns a tree whose parts that need not run in the rank run in workers, each below a numbered worker border.

    What uses the device runs in the rank (`runs_in_rank`), and so does everything above it; so do the ends of the
    rank's epochs. The largest parts without any of that run in workers: a blend of datasets whose decoders work in the
    workers is drawn there, a blend of others in the rank, above several borders.

    Args:
        dataset: The outermost dataset; it is left as it is.
    """
    return _cut(dataset, itertools.count(), outermost=True)


def _cut(dataset: SavableDataset[Any], numbers: Iterator[int], *, outermost: bool = False) -> SavableDataset[Any]:
    if isinstance(dataset, WorkerBorder):
        return dataset.numbered(_strip(dataset.dataset), next(numbers))
    ends_epochs = outermost and dataset.rank_limit() is not None
    if not ends_epochs and not _needs_rank(dataset):
        return WorkerBorder(_strip(dataset), block_size=1, number=next(numbers))
    return dataset.with_children(*(_cut(child, numbers) for child in dataset.children))


def _needs_rank(dataset: SavableDataset[Any]) -> bool:
    """Returns whether a dataset, or one above the borders inside it, has to run in the rank."""
    if isinstance(dataset, WorkerBorder):
        return dataset.runs_in_rank
    return dataset.runs_in_rank or any(_needs_rank(child) for child in dataset.children)


def _strip(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
    """Returns a tree without borders, for a worker."""
    if isinstance(dataset, WorkerBorder):
        return _strip(dataset.dataset)
    return dataset.with_children(*(_strip(child) for child in dataset.children))


def rank_has_work(dataset: SavableDataset[Any]) -> bool:
    """Returns whether the rank does more with the elements of workers than pass them to the trainer."""
    if isinstance(dataset, WorkerBorder):
        return dataset.decoder is not None
    return dataset.rank_limit() is None or rank_has_work(dataset.children[0])
