"""Writes which samples each element holds to the debug log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from energon_dali.calls import explain_call
from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.debug_log import DebugLog, keys_of
from energon_dali.datasets.stream import State, StreamContext, StreamIterator, WrapperIterator
from energon_dali.shards.documents.state_entries import count_of, state_of
from energon_dali.worker_config import WorkerConfig


class LogSampleDataset(PassThroughDataset[Any]):
    """Writes a line to the debug log for every element, if `WorkerConfig.worker_log_level` is at least 1.

    It runs in the rank's process, so the log has the order in which the rank takes the elements.

    Args:
        dataset: The dataset below.
        mode: "train" or "val", written into each line.
        worker_config: Default: that of the dataset below. Its `worker_debug_path` names the file.
        get_keys_fn: Returns the keys of an element, or None if it has none. Default: its `__key__`.
    """

    runs_in_rank = True

    keeps_steps = True

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        mode: Literal["train", "val"],
        worker_config: WorkerConfig | None = None,
        get_keys_fn: Callable[[Any], Any] = keys_of,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.mode = mode
        self.get_keys_fn = get_keys_fn

    def describe(self) -> str:
        return f"LogSampleDataset(mode={self.mode})"

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _LogIterator(self, context)


class _LogIterator(WrapperIterator[Any]):
    def __init__(self, dataset: LogSampleDataset, context: StreamContext) -> None:
        super().__init__(dataset.dataset.open(context))
        self._dataset = dataset
        self._stream = context.stream
        self._given = 0
        self._log = DebugLog(dataset.worker_config) if dataset.worker_config.should_log(1) else None

    def __next__(self) -> Any:
        element = next(self._inner)
        if self._log is not None:
            keys = self._dataset.get_keys_fn(element)
            self._log.element(self._stream, self._given, keys, mode=self._dataset.mode, event="logged")
        self._given += 1
        return element

    def state_dict(self) -> State:
        return {"given": self._given, "inner": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._given = count_of(state, "given")
        self._inner.load_state_dict(state_of(state))
