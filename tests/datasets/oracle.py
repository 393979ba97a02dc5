"""The resume oracle: after a restore at any point, the elements are the same as without the interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.restore_key import expect_name
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.samples.base import Key
from energon_dali.worker_config import WorkerConfig


class Counting(SavableDataset[Any]):
    """Dicts with a number, per stream: stream s of S has the numbers s, s + S, s + 2 S, ... below `total`."""

    def __init__(self, total: int, worker_config: WorkerConfig, *, repeat: bool = False) -> None:
        super().__init__(worker_config=worker_config)
        self.total = total
        self.repeat = repeat
        self.made: list[int] = []
        """Every number that was made in this process, including those made for a restore."""

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return ()

    def len_stream(self, stream: int) -> int:
        return len(range(stream, self.total, self.worker_config.layout.num_streams))

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _CountingIterator(self, context)

    def make(self, number: int) -> dict[str, Any]:
        self.made.append(number)
        return {"__key__": f"sample{number}", "__restore_key__": ("Counting", number), "number": number}

    def restore_sample(self, restore_key: Key) -> Any:
        expect_name(restore_key, "Counting")
        return self.make(restore_key[1])


class _CountingIterator(StreamIterator[Any]):
    def __init__(self, dataset: Counting, context: StreamContext) -> None:
        self._dataset = dataset
        self._numbers = range(context.stream, dataset.total, dataset.worker_config.layout.num_streams)
        self._next = 0

    def __next__(self) -> Any:
        if self._next == len(self._numbers):
            self._next = 0
            if not self._dataset.repeat:
                raise StopIteration
        self._next += 1
        return self._dataset.make(self._numbers[self._next - 1])

    def state_dict(self) -> State:
        return {"next": self._next}

    def load_state_dict(self, state: State) -> None:
        self._next = state["next"]


def config(num_streams: int = 1, **kwargs: Any) -> WorkerConfig:
    """Returns the configuration of the only rank of a job, in this process."""
    return WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=num_streams, **kwargs)


def silent(error: Exception, sample: Any, sources: Any) -> None:
    """An error handler that does nothing."""


def take(dataset: SavableDataset[Any], count: int, epochs: int = 1) -> list[Any]:
    """Returns up to `count` elements, over several epochs."""
    live = RankIterator(dataset)
    return list(islice(over_epochs(live, epochs), count))


def over_epochs(live: Any, epochs: int) -> Iterator[Any]:
    """Yields the elements of several epochs, one epoch after the other."""
    for _ in range(epochs):
        yield from live


def check_resume(
    make: Callable[[], SavableDataset[Any]],
    *,
    count: int,
    epochs: int = 1,
    view: Callable[[Any], Any] = repr,
    made: Callable[[SavableDataset[Any]], list[int]] | None = None,
    every: int = 1,
) -> None:
    """Saves before every element, restores each state into a new dataset, compares the whole tail and the last state.

    Args:
        make: Makes a new dataset.
        count: Number of elements to compare.
        epochs: Number of epochs to iterate.
        view: Returns what is compared of an element.
        made: Returns the list of what a dataset has read, to check that restoring reads nothing.
        every: Restores every nth state only, and those next to the ends of epochs.
    """
    live = RankIterator(make())
    states, expected, epoch_of = [], [], []
    for epoch in range(epochs):
        while len(expected) < count:
            states.append(json.loads(json.dumps(live.state_dict())))
            epoch_of.append(epoch)
            try:
                expected.append(view(next(live)))
            except StopIteration:
                expected.append("end of epoch")
                break
    last_state = json.loads(json.dumps(live.state_dict()))
    assert len(expected) > 1, "the oracle saw nothing"
    for index, (state, epoch) in enumerate(zip(states, epoch_of, strict=True)):
        if index % every and "end of epoch" not in expected[index - 1 : index + 1]:
            continue
        dataset = make()
        restored: Any = RankIterator(dataset)
        restored.state_dict()  # reading the state before a restore must not change anything
        restored.load_state_dict(state)
        if made is not None:
            assert made(dataset) == [], f"restoring at {index} read samples before any was asked for"
        assert restored.state_dict() == state, f"the state at {index} changed on its way"
        tail: list[Any] = []
        for _ in range(epoch, epochs):
            while len(tail) < len(expected) - index:
                try:
                    tail.append(view(next(restored)))
                except StopIteration:
                    tail.append("end of epoch")
                    break
        assert tail == expected[index:], f"after a restore at {index}"
        assert json.loads(json.dumps(restored.state_dict())) == last_state, f"the last state after a restore at {index}"
