"""Gives the elements of several datasets, one dataset after the other."""

from __future__ import annotations

from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.mixing.combined import CombinedDataset, CombinedIterator
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.shards.documents.state_entries import count_of, list_of
from energon_dali.worker_config import WorkerConfig


class ConcatDataset(CombinedDataset):
    """Gives in each stream all elements of the first dataset, then all of the second, and so on; then the epoch ends.

    A dataset that never ends leaves no turn to those behind it.

    Args:
        *datasets: At least one, with the same worker configuration.
        worker_config: Left out, that of the datasets.

    Raises:
        ConfigError: There is no dataset, or their worker configurations differ.
    """

    @explain_call
    def __init__(self, *datasets: SavableDataset[Any], worker_config: WorkerConfig | None = None) -> None:
        super().__init__(datasets, worker_config=worker_config)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _ConcatIterator(self, context)


class _ConcatIterator(CombinedIterator):
    def __init__(self, dataset: CombinedDataset, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._current = 0

    def __next__(self) -> Any:
        while self._current < len(self._members):
            try:
                return self._take(self._current)
            except StopIteration:
                self._current += 1
        self._current = 0
        raise StopIteration

    def state_dict(self) -> State:
        return {"current": self._current, "members": self._member_states()}

    def load_state_dict(self, state: State) -> None:
        current = count_of(state, "current", len(self._members))
        self._load_member_states(list_of(state, "members"))
        self._current = current
