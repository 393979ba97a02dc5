"""Writes which element held which samples to the debug log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset, WrapperDataset
from energon_dali.datasets.debug_log import DebugLog, keys_of
from energon_dali.datasets.restore_key import Key
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.shards.documents.state_entries import count_of, state_of
from energon_dali.worker_config import WorkerConfig


class LogSampleDataset(WrapperDataset[Any]):
    """Writes a line to the debug log for every element, where `WorkerConfig.worker_log_level` is at least 1.

    It runs in the rank's process, so that the log has the order in which the rank takes the elements.

    Args:
        dataset: The dataset below.
        mode: "train" or "val", written into each line.
        worker_config: Left out, the inner dataset's. It names the file, see `worker_debug_path`.
        get_keys_fn: Gives the keys of an element, or None where it has none; default is its `__key__`.
    """

    runs_in_rank = True

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

    def restore_sample(self, restore_key: Key) -> Any:
        return self.dataset.restore_sample(restore_key)


class _LogIterator(StreamIterator[Any]):
    def __init__(self, dataset: LogSampleDataset, context: StreamContext) -> None:
        self._inner = dataset.dataset.open(context)
        self._dataset = dataset
        self._stream = context.stream
        self._given = 0
        self._log = DebugLog(dataset.worker_config) if dataset.worker_config.should_log(1) else None

    def __next__(self) -> Any:
        element = next(self._inner)
        if self._log is not None:
            keys = self._dataset.get_keys_fn(element)
            self._log.element(self._stream, self._given, keys, mode=self._dataset.mode)
        self._given += 1
        return element

    def last_key(self, element: Any) -> Key:
        return self._inner.last_key(element)

    def state_dict(self) -> State:
        return {"given": self._given, "inner": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._given = count_of(state, "given")
        self._inner.load_state_dict(state_of(state))

    def close(self) -> None:
        self._inner.close()
