"""One stream of a dataset, as a dataset that is iterated like Energon's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.shards.documents.state_entries import flag_of, plain, state_of


class StreamView(SavableDataset[Any]):
    """One stream of another dataset, with Energon's methods: what a worker's copy reads from.

    Args:
        dataset: The other dataset.
        context: The stream.
    """

    def __init__(self, dataset: SavableDataset[Any], context: StreamContext) -> None:
        super().__init__(dataset.worker_config)
        self._dataset = dataset
        self._context = context
        self.asked = False
        """Whether the state was asked for."""
        self.ended = False
        """Whether the epoch is over, while what reads from here still empties its buffers."""
        self.restored_at_end = False
        """Whether it was restored in that situation: the first iteration yields nothing."""
        self._iterator: StreamIterator[Any] | None = None

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return self._dataset.open(context)

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return self._dataset.children

    def len_stream(self, stream: int) -> int:
        return self._dataset.len_stream(stream)

    def len_worker(self, worker_idx: int | None = None) -> int:
        return self._dataset.len_stream(self._context.stream)

    def len_rank(self) -> int:
        return self._dataset.len_rank()

    def worker_has_samples(self) -> bool:
        return self._dataset.len_stream(self._context.stream) > 0

    def _open_once(self) -> StreamIterator[Any]:
        if self._iterator is None:
            self._iterator = self._dataset.open(self._context)
        return self._iterator

    def __iter__(self) -> Iterator[Any]:
        iterator = self._open_once()
        if self.restored_at_end:
            self.restored_at_end = False
            return
        self.ended = False
        while True:
            try:
                element = next(iterator)
            except StopIteration:
                self.ended = True
                return
            yield element

    def save_state(self) -> State:
        self.asked = True
        return {"ended": self.ended, "state": plain(self._open_once().state_dict())}

    def restore_state(self, state: State) -> None:
        self.close()
        self.ended = self.restored_at_end = flag_of(state, "ended")
        self._open_once().load_state_dict(state_of(state, "state"))

    def reset_state_own(self) -> None:
        """Starts again at the beginning."""
        self.close()

    def reset_state_deep(self) -> None:
        """Starts again at the beginning."""
        self.close()

    def close(self) -> None:
        """Lets the stream go."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def config(self) -> dict[str, Any]:
        return self._dataset.config()

    def can_restore_sample(self) -> bool:
        return self._dataset.can_restore_sample()

    def restore_sample(self, restore_key: tuple[Any, ...]) -> Any:
        return self._dataset.restore_sample(restore_key)

    def describe(self) -> str:
        return self._dataset.describe()

    def __deepcopy__(self, memo: dict[int, Any]) -> SavableDataset[Any]:
        return self
