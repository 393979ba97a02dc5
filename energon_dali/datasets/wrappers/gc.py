"""Runs Python's garbage collection after every few elements, in worker processes."""

from __future__ import annotations

import gc
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.arguments import check_count
from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.stream import StreamContext, StreamIterator, WrapperIterator
from energon_dali.worker_config import WorkerConfig


class GcDataset(PassThroughDataset[Any]):
    """Calls `gc.collect()` after every `every_n_iter` elements of a stream, if a worker process runs it.

    In the trainer's process it does nothing by default: a collection walks over all objects of the trainer and stops
    it meanwhile. Loaders do not need this dataset: workers freeze the objects that live as long as they do, and Python
    collects the rest. It helps with hooks that make many reference cycles around large objects.

    Args:
        dataset: The dataset below.
        every_n_iter: Elements between two collections, at least 1.
        freeze: Call `gc.freeze()` before the first element, so that collections skip the objects that exist by then.
        in_trainer: Collect even if no worker process runs this dataset. Each collection stops the trainer.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: every_n_iter is less than 1.
    """

    holds_elements = False
    keeps_steps = True
    shown_in_config = False

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        every_n_iter: int = 10,
        freeze: bool = True,
        in_trainer: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.every_n_iter = check_count("every_n_iter", every_n_iter, "it counts elements")
        self.freeze = freeze
        self.in_trainer = in_trainer

    def describe(self) -> str:
        return f"GcDataset(every_n_iter={self.every_n_iter})"

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        inner = self.dataset.open(context)
        return _GcIterator(self, inner) if context.in_worker or self.in_trainer else inner


class _GcIterator(WrapperIterator[Any]):
    """Its state is that of the inner iterator, because other layouts run without it."""

    def __init__(self, dataset: GcDataset, inner: StreamIterator[Any]) -> None:
        super().__init__(inner)
        self._every = dataset.every_n_iter
        self._freeze = dataset.freeze
        self._given = 0

    def __next__(self) -> Any:
        if self._freeze:
            gc.freeze()
            self._freeze = False
        elif self._given and self._given % self._every == 0:
            gc.collect()
        element = next(self._inner)
        self._given += 1
        return element
