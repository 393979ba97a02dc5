"""Collects Python's garbage at fixed elements, in worker processes."""

from __future__ import annotations

import gc
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.arguments import check_count
from energon_dali.datasets.base import SavableDataset, WrapperDataset
from energon_dali.datasets.restore_key import Key
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.worker_config import WorkerConfig


class GcDataset(WrapperDataset[Any]):
    """Calls `gc.collect()` every `every_n_iter` elements of a stream, where a worker process runs it.

    In the trainer's process it does nothing unless asked: a collection there walks over all objects of the trainer, and
    stops it for that time. Loaders need no such dataset: workers freeze what lives for ever, and Python collects the
    rest. It is for hooks that make many reference cycles around large objects.

    Args:
        dataset: The dataset below.
        every_n_iter: Elements between two collections, at least 1.
        freeze: Call `gc.freeze()` before the first element, so that collections leave out what exists by then.
        in_trainer: Do so also where no worker process runs this dataset. Costs the trainer the time of a collection.
        worker_config: Left out, the inner dataset's.

    Raises:
        ConfigError: every_n_iter is less than 1.
    """

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

    def config(self) -> dict[str, Any]:
        return self.dataset.config()  # it changes no element

    def inner_config(self) -> dict[str, Any]:
        """Returns the config of the dataset below."""
        return self.dataset.inner_config()

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        inner = self.dataset.open(context)
        return _GcIterator(self, inner) if context.in_worker or self.in_trainer else inner

    def restore_sample(self, restore_key: Key) -> Any:
        return self.dataset.restore_sample(restore_key)


class _GcIterator(StreamIterator[Any]):
    """Its state is the inner one's: a layout that runs it elsewhere does without it."""

    def __init__(self, dataset: GcDataset, inner: StreamIterator[Any]) -> None:
        self._inner = inner
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

    def last_key(self, element: Any) -> Key:
        return self._inner.last_key(element)

    def state_dict(self) -> State:
        return self._inner.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._inner.load_state_dict(state)

    def close(self) -> None:
        self._inner.close()
