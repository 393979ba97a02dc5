"""Yields the elements of several datasets, one dataset after the other."""

from __future__ import annotations

from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.mixing.mixture_dataset import MixtureDataset, MixtureIterator, numbered
from energon_dali.datasets.stream import Move, State, StreamContext, StreamIterator
from energon_dali.shards.documents.state_entries import count_of, list_of
from energon_dali.worker_config import WorkerConfig


class ConcatDataset(MixtureDataset):
    """Yields in each stream all elements of the first dataset, then all of the second, and so on; then the epoch ends.

    A dataset that never ends keeps those after it from their turn.

    Args:
        *datasets: At least one, with the same worker configuration.
        worker_config: Default: that of the datasets.

    Raises:
        ConfigError: There is no dataset, or their worker configurations differ.
    """

    @explain_call
    def __init__(self, *datasets: SavableDataset[Any], worker_config: WorkerConfig | None = None) -> None:
        super().__init__(datasets, worker_config=worker_config)
        self.datasets = numbered(self.datasets)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _ConcatIterator(self, context)


class _ConcatIterator(MixtureIterator):
    """Takes the members in turn."""

    def __init__(self, dataset: ConcatDataset, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._current = 0

    def _pass(self, count: int, move: Move) -> int:
        moved = 0
        while moved < count:
            if self._current == len(self._datasets):
                self._current = 0
                break
            wanted = count - moved
            taken = move(self._current, wanted)
            moved += taken
            if taken < wanted:
                self._current += 1
        return moved

    def state_dict(self) -> State:
        return {"current": self._current, "members": self._member_states()}

    def load_state_dict(self, state: State) -> None:
        current = count_of(state, "current", len(self._datasets))
        self._load_member_states(list_of(state, "members"), "members")
        self._current = current
