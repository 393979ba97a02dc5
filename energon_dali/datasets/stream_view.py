"""One stream of a dataset, as a dataset that is iterated like Energon's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.shards.documents.state_entries import flag_of, plain, state_of


class StreamView(PassThroughDataset[Any]):
    """One stream of another dataset, with Energon's methods: what a worker's copy reads from.

    Args:
        dataset: The other dataset.
        context: The stream.
    """

    shown_in_config = False

    def __init__(self, dataset: SavableDataset[Any], context: StreamContext) -> None:
        super().__init__(dataset)
        self._context = context
        self.asked = False
        """Whether the state was asked for."""
        self.ended = False
        """Whether the epoch is over, while what reads from here still empties its buffers."""
        self.restored_at_end = False
        """Whether it was restored in that situation: the first iteration yields nothing."""
        self._iterator: StreamIterator[Any] | None = None

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return self.dataset.open(context)

    def len_worker(self, worker_idx: int | None = None) -> int:
        return self.dataset.len_stream(self._context.stream)

    def len_rank(self) -> int:
        return self.dataset.len_rank()

    def worker_has_samples(self) -> bool:
        return self.dataset.len_stream(self._context.stream) > 0

    def _open_once(self) -> StreamIterator[Any]:
        if self._iterator is None:
            self._iterator = self.dataset.open(self._context)
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

    def describe(self) -> str:
        return self.dataset.describe()

    def __str__(self) -> str:
        return str(self.dataset)

    def __deepcopy__(self, memo: dict[int, Any]) -> SavableDataset[Any]:
        return self
