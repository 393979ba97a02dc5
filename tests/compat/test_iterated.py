"""Users' datasets with Energon's methods alone: resume, lengths, and states of every allowed kind."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali import BatchDataset, MapDataset, SavableDataset, StateError, WorkerConfig, batch_list
from energon_dali.compat.iterated import from_plain, to_plain
from energon_dali.compat.states import WorkerRng
from energon_dali.compat.wrappers import BaseWrapperDataset
from energon_dali.datasets.stream import StreamContext, StreamIterator


class Numbers(SavableDataset[int]):
    """Yields stream * 100, stream * 100 + 1 and so on."""

    children = ()

    def len_stream(self, stream: int) -> int:
        return 7 + stream

    def open(self, context: StreamContext) -> StreamIterator[int]:
        return _Numbers(context.stream, self.len_stream(context.stream))


class _Numbers(StreamIterator[int]):
    def __init__(self, stream: int, count: int) -> None:
        self.stream, self.count, self.next = stream, count, 0

    def __next__(self) -> int:
        if self.next >= self.count:
            self.next = 0
            raise StopIteration
        self.next += 1
        return self.stream * 100 + self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class Pool(BaseWrapperDataset):
    """Yields each three elements backwards, and one that it draws twice."""

    _savable_fields = ("_pool", "_rng")

    def __init__(self, dataset: SavableDataset[Any], worker_config: WorkerConfig) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self._rng = WorkerRng(worker_config)
        self._pool: list[Any] = []

    def len_worker(self, worker_idx: int | None = None) -> int:
        return self.dataset.len_worker(worker_idx) + 1

    def config(self) -> dict[str, Any]:
        return {"type": "Pool", "dataset": self.dataset.config()}

    def __iter__(self) -> Iterator[Any]:
        while self._pool:
            yield self._pool.pop()
        for number in self.dataset:
            self._pool.append(number)
            if len(self._pool) == 3:
                yield self._pool[self._rng.randbelow(3)]
                while self._pool:
                    yield self._pool.pop()
        while self._pool:
            yield self._pool.pop()


class Forgetful(SavableDataset[Any]):
    """Saves nothing of its own; holds its dataset in an attribute."""

    def __init__(self, source: SavableDataset[Any]) -> None:
        super().__init__(source.worker_config)
        self.source = source

    def config(self) -> dict[str, Any]:
        return {}

    def __iter__(self) -> Iterator[Any]:
        for number in self.source:
            yield -number


def make(kind: str, streams: int) -> SavableDataset[Any]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=streams)
    dataset: SavableDataset[Any] = Numbers(config)
    if "pool" in kind:
        dataset = Pool(dataset, config)
    if "forgetful" in kind:
        dataset = Forgetful(dataset)
    if "map" in kind:
        dataset = MapDataset(dataset, abs)
    return BatchDataset(dataset, 2, batch_list) if "batch" in kind else dataset


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("kind", ["pool", "forgetful", "pool forgetful map batch"])
def test_resume_at_every_element(kind: str, streams: int) -> None:
    live = make(kind, streams)
    states, elements = [live.state_dict()], []
    for _ in range(2):  # two epochs
        for element in live:
            elements.append(element)
            states.append(live.state_dict())
    flat = [abs(number) for element in elements for number in (element if isinstance(element, list) else [element])]
    assert set(flat) == {stream * 100 + number for stream in range(streams) for number in range(7 + stream)}
    for position, state in enumerate(states):
        restored = make(kind, streams)
        restored.load_state_dict(json.loads(json.dumps(state)))
        rest = [*restored]
        while len(rest) < len(elements) - position:
            rest += [*restored]
        assert rest[: len(elements) - position] == elements[position:]


def test_lengths_and_children() -> None:
    pool = make("pool", 3)
    assert (pool.len_stream(1), len(pool)) == (9, 8 + 9 + 10)
    assert [type(child) for child in pool.children] == [Numbers]
    assert pool.worker_has_samples()
    assert "Pool\n  Numbers" in str(pool)
    twin = pool.with_children(Forgetful(pool.children[0]))
    assert [type(child) for child in twin.children] == [Forgetful]
    assert [type(child) for child in pool.children] == [Numbers]
    assert len(make("forgetful", 2)) == 7 + 8


def test_states_of_another_class_are_refused() -> None:
    with pytest.raises(StateError):
        make("pool", 1).load_state_dict(make("forgetful", 1).state_dict())


def test_values_of_states() -> None:
    values = {
        "numbers": [1, 2.5, True, None, math.pi],
        "tuple": (1, ("a", b"\0\xff")),
        "set": {1, 2},
        "keys": {1: "a", (2, 3): "b"},
        "kind": {"~kind": "tuple"},
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "scalar": np.float32(0.5),
        "tensor": torch.arange(4, dtype=torch.uint8),
    }
    back = from_plain(json.loads(json.dumps(to_plain(values, "Own"))))
    for name in ("numbers", "tuple", "set", "keys", "kind", "scalar"):
        assert back[name] == values[name]
        assert type(back[name]) is type(values[name])
    assert np.array_equal(back["array"], values["array"])
    assert back["array"].dtype == np.int16
    assert torch.equal(back["tensor"], values["tensor"])
    with pytest.raises(StateError, match=r"Own\.save_state\(\) returned a object"):
        to_plain({"a": object()}, "Own")
    for wrong in ({"~kind": "array", "dtype": "O", "shape": [1], "data": ""}, {"~kind": "x", "data": ""}):
        with pytest.raises(StateError, match="damaged"):
            from_plain(wrong)
