"""Many sources below one task encoder, one after the other."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.source import SourceDataset
from energon_dali.datasets.sources.leaves import LeavesDataset, LeavesIterator, source_of, with_source
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError
from energon_dali.plan import OrderSpec
from energon_dali.shards.documents.state_entries import count_of, list_of
from energon_dali.worker_config import WorkerConfig


class ConcatSourceDataset(LeavesDataset):
    """Gives, in every stream, its share of the first leaf, then that of the second, and so on; then the epoch ends.

    The remainders of the leaves, which do not divide by the number of streams, go to the streams in turn, so that the
    streams of a validation over many small datasets have about the same length.

    Args:
        leaves: Sources with repeat=False, or a cook stage around one.
        names: For statistics and messages; None are the paths of the leaves.
        worker_config: Left out, that of the leaves.

    Raises:
        ConfigError: A leaf has no end, or the worker configurations differ.
    """

    key_name = "ConcatDataset"

    def __init__(
        self,
        leaves: Sequence[SavableDataset[Any]],
        *,
        names: Sequence[str] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        offset, rotated = 0, []
        for leaf in leaves:
            source = source_of(leaf)
            if source is not None and source.repeat:
                raise ConfigError(f"{source.name} repeats for ever, so that nothing comes behind it: use repeat=False.")
            rotated.append(_rotated(leaf, offset))
            offset += 0 if source is None else source.order.base.num_samples
        super().__init__(rotated, names=names, worker_config=worker_config)

    def describe(self) -> str:
        return f"ConcatSourceDataset({len(self.leaves)} datasets)"

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _ConcatIterator(self, context)


def _rotated(leaf: SavableDataset[Any], offset: int) -> SavableDataset[Any]:
    def change(source: SourceDataset) -> SourceDataset:
        order = source.order
        if not isinstance(order, OrderSpec):
            return source
        twin = copy.copy(source)
        twin.order = dataclasses.replace(order, range_offset=(order.range_offset + offset) % order.num_streams)
        return twin

    return with_source(leaf, change)


class _ConcatIterator(LeavesIterator):
    mixes = False

    def __init__(self, dataset: ConcatSourceDataset, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._leaf = 0

    def __next__(self) -> Any:
        while self._leaf < len(self._leaves):
            try:
                return self._take(self._leaf)
            except StopIteration:
                self._leaf += 1
        self._leaf = 0
        raise StopIteration

    def state_dict(self) -> State:
        return {"leaf": self._leaf, "leaves": self._states.snapshot()}

    def load_state_dict(self, state: State) -> None:
        leaf = count_of(state, "leaf", len(self._leaves))
        self._load_leaf_states(list_of(state, "leaves"))
        self._leaf = leaf
