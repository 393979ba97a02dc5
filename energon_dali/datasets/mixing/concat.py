"""Yields the elements of several datasets, one dataset after the other: of finished datasets, or of sources."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.mixing.mixture import MixtureDataset, MixtureIterator, numbered
from energon_dali.datasets.mixing.source_mixture import SourceMixture, rotated, source_of, with_source
from energon_dali.datasets.planned import Planned, joined
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError
from energon_dali.plan import OrderSpec
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


class ConcatSourceDataset(SourceMixture):
    """Yields, in every stream, its part of the first source, then that of the second, and so on; then the epoch ends.

    The remainders of the sources, which do not divide by the number of streams, go to the streams in turn, so that the
    streams of a validation over many small datasets have about the same length.

    Args:
        datasets: Sources with repeat=False, or a cook stage around one.
        names: For statistics and messages; None are the paths of the sources.
        worker_config: Default: that of the datasets.

    Raises:
        ConfigError: A dataset does not end, or the worker configurations differ.
    """

    key_name = "ConcatDataset"

    def __init__(
        self,
        datasets: Sequence[SavableDataset[Any]],
        *,
        names: Sequence[str] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        offset, shared = 0, []
        for dataset in datasets:
            source = source_of(dataset)
            if source is not None and source.repeat:
                raise ConfigError(
                    f"{source.name} repeats indefinitely, so nothing can follow it: build it with repeat=False."
                )
            shared.append(_with_offset(dataset, offset))
            offset += 0 if source is None else source.order.base.num_samples
        super().__init__(shared, names=names, worker_config=worker_config)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _ConcatIterator(self, context)


def _with_offset(dataset: SavableDataset[Any], offset: int) -> SavableDataset[Any]:
    """Returns a dataset whose source gives its remainder to the streams after those that have one already."""

    def change(source: SourceDataset) -> SourceDataset:
        if not isinstance(source.order, OrderSpec):
            return source
        twin = copy.copy(source)
        twin.order = rotated(source.order, offset)
        return twin

    return with_source(dataset, change)


class _ConcatIterator(MixtureIterator):
    """Takes the members in turn.

    Sources and finished datasets differ in how releases saved their states.
    """

    def __init__(self, dataset: MixtureDataset, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._of_sources = isinstance(dataset, SourceMixture)
        self._current = 0

    def __next__(self) -> Any:
        while self._current < len(self._datasets):
            try:
                return self._take(self._current)
            except StopIteration:
                self._current += 1
        self._current = 0
        raise StopIteration

    def skip(self, count: int) -> int:
        return self._pass(count, self._skip)

    def plan(self, count: int) -> Planned:
        parts = []

        def move(number: int, wanted: int) -> int:
            parts.append(self._plan(number, wanted))
            return len(parts[-1])

        self._pass(count, move)
        return joined(parts)

    def _pass(self, count: int, move: Callable[[int, int], int]) -> int:
        """Moves by elements, with a function that moves (a member, by its elements); returns by how many."""
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
        if self._of_sources:
            return {"leaf": self._current, "leaves": self._state_rows()}
        return {"current": self._current, "members": self._state_list()}

    def load_state_dict(self, state: State) -> None:
        current = count_of(state, "leaf" if self._of_sources else "current", len(self._datasets))
        if self._of_sources:
            self._load_states(list_of(state, "leaves"), "leaves")
        else:
            self._load_state_list(list_of(state, "members"), "members")
        self._current = current
