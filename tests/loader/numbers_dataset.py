"""A small dataset for these tests: numbered elements per stream, delivered as real ones are."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

from energon_dali.datasets.base import SavableDataset, WrapperDataset
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.datasets.worker_border import WorkerBorder
from energon_dali.worker_config import WorkerConfig

LENGTHS = [5, 3, 0, 7]


@dataclass(frozen=True, slots=True)
class Mishap:
    """A failure at one element of one stream."""

    stream: int
    place: int
    kind: str
    """"raise", "raise-odd", "exit", "kill", "hang", "segfault", "unpicklable"."""


class OddError(Exception):
    """Cannot be unpickled: its constructor needs two arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"odd {one} {two}")


class NumbersDataset(SavableDataset[Any]):
    """Yields `make(stream, epoch, place)` for every position of a stream."""

    def __init__(
        self,
        lengths: list[int],
        worker_config: WorkerConfig,
        make: Any = None,
        mishap: Mishap | None = None,
        seconds: float = 0.0,
    ) -> None:
        super().__init__(worker_config=worker_config)
        self.lengths = lengths
        self.make = make or (lambda stream, epoch, place: (stream, epoch, place))
        self.mishap = mishap
        self.seconds = seconds

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return ()

    def len_stream(self, stream: int) -> int:
        return self.lengths[stream]

    def config(self) -> dict[str, Any]:
        return {"type": "NumbersDataset", "lengths": self.lengths}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _Numbers(self, context)


class _Numbers(StreamIterator[Any]):
    def __init__(self, dataset: NumbersDataset, context: StreamContext) -> None:
        self.dataset = dataset
        self.stream = context.stream
        self.metrics = context.metrics
        self.epoch = self.place = 0

    def __next__(self) -> Any:
        if self.place == self.dataset.lengths[self.stream]:
            self.epoch, self.place = self.epoch + 1, 0
            raise StopIteration
        mishap = self.dataset.mishap
        if mishap is not None and (mishap.stream, mishap.place) == (self.stream, self.place):
            happen(mishap.kind)
        if self.dataset.seconds:
            time.sleep(self.dataset.seconds)
        element = self.dataset.make(self.stream, self.epoch, self.place)
        if mishap is not None and mishap.kind == "unpicklable" and self.place == mishap.place:
            element = (x for x in range(3))
        self.place += 1
        self.metrics.count("made")
        return element

    def state_dict(self) -> State:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: State) -> None:
        self.epoch, self.place = state["epoch"], state["place"]


def happen(kind: str) -> None:
    if kind == "raise":
        raise ValueError("the hook did not like it")
    if kind == "raise-odd":
        raise OddError(1, 2)
    if kind == "exit":
        os._exit(7)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang":
        time.sleep(1000)


class RankWorkDataset(WrapperDataset[Any]):
    """A stage that the rank runs: marks every element."""

    runs_in_rank = True

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _Marked(self.dataset.open(context))


class _Marked(StreamIterator[Any]):
    def __init__(self, inner: StreamIterator[Any]) -> None:
        self.inner = inner

    def __next__(self) -> Any:
        return (*next(self.inner), threading.current_thread().name)

    def state_dict(self) -> State:
        return self.inner.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.inner.load_state_dict(state)

    def close(self) -> None:
        self.inner.close()


def tree(config: WorkerConfig, *, rank_work: bool = False, block_size: int = 2, **options: Any) -> SavableDataset[Any]:
    numbers = NumbersDataset(options.pop("lengths", LENGTHS), config, **options)
    delivered = WorkerBorder(numbers, block_size=block_size)
    return RankWorkDataset(delivered) if rank_work else delivered
