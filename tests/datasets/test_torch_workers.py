"""Datasets in the worker processes of torch's loaders: each sample once, exact resume, and errors for what repeats."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from torch.utils.data import ChainDataset, IterableDataset
from torch.utils.data._utils import worker as torch_worker_module
from torchdata.stateful_dataloader import StatefulDataLoader

from energon_dali import (
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    SampleDecoder,
    SavableDataset,
    WorkerConfig,
    get_loader,
)
from energon_dali.datasets.base import _POSITION
from energon_dali.datasets.worker_border import WorkerBorder
from energon_dali.decode.interface import Placement
from energon_dali.errors import ConfigError
from tests.loader.numbers_dataset import LENGTHS, NumbersDataset

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=2, num_streams=4)
WORKERS = {0: (0, 2), 1: (1, 3)}
"""Streams of each worker."""


@pytest.fixture
def as_worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that makes this process a worker of a torch DataLoader, as far as it can be asked for."""

    def become(number: int, count: int = 2) -> None:
        info = torch_worker_module.WorkerInfo(id=number, num_workers=count, seed=0, dataset=None)
        monkeypatch.setattr(torch_worker_module, "_worker_info", info)

    return become


def element(stream: int, epoch: int, place: int) -> tuple[int, int, int]:
    return stream, epoch, place


class RankDecoder(SampleDecoder):
    """A decoder of the process that trains, such as a DaliDecoder."""

    @property
    def placement(self) -> Placement:
        return "rank"


def numbers() -> SavableDataset[Any]:
    return NumbersDataset(LENGTHS, CONFIG, element)


def whole() -> list[Any]:
    return list(numbers())


def test_a_dataset_is_a_torch_iterable_dataset() -> None:
    assert isinstance(numbers(), IterableDataset)
    chained = list(numbers() + numbers())
    assert isinstance(numbers() + numbers(), ChainDataset)
    assert chained == [*whole(), *whole()]


@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_iterates_its_own_streams_in_the_order_of_the_rank(as_worker: Any, number: int) -> None:
    expected = [element for element in whole() if element[0] in WORKERS[number]]
    as_worker(number)
    assert sorted(numbers()) == sorted(expected)


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_workers_is_an_error(as_worker: Any, count: int) -> None:
    as_worker(0, count)
    with pytest.raises(ConfigError, match=f"process 0 of {count} of a torch DataLoader.*among 2: some would be lost"):
        next(iter(numbers()))


def test_a_loader_in_a_worker_is_an_error(as_worker: Any) -> None:
    loader = get_loader(numbers())
    as_worker(1)
    with pytest.raises(ConfigError, match=r"would yield all batches of this rank.*give the dataset"):
        iter(loader)


@pytest.mark.parametrize("length", [0, 1, 2, 5, 7])
def test_the_workers_of_a_rank_share_its_limit(as_worker: Any, length: int) -> None:
    found = []
    for number in WORKERS:
        as_worker(number)
        dataset = LimitDataset(numbers(), length)
        found.append(list(dataset))
        assert list(dataset) == found[-1], "the next epoch starts from the beginning"
    assert [len(one) for one in found] == [length - length // 2, length // 2]
    assert len({*found[0], *found[1]}) == length


def _worker_loop(dataset: SavableDataset[Any], persistent_workers: bool) -> list[Any]:
    """Has the name and the local variable of the function that torch's workers run."""
    return list(dataset)


def test_virtual_epochs_need_workers_that_outlive_them(as_worker: Any) -> None:
    as_worker(0)
    with pytest.raises(ConfigError, match=r"EpochizeDataset with virtual epochs.*persistent_workers=True"):
        _worker_loop(EpochizeDataset(numbers(), 4), persistent_workers=False)
    kept = EpochizeDataset(numbers(), 4)
    assert [_worker_loop(kept, persistent_workers=True) for _ in range(2)] == [
        [(0, 0, 0), (0, 0, 1)],
        [(0, 0, 2), (0, 0, 3)],
    ]


def test_a_decoder_of_the_training_process_is_refused(as_worker: Any) -> None:
    as_worker(0)
    with pytest.raises(ConfigError, match=r"A RankDecoder decodes in the process that trains.*get_savable_loader"):
        next(iter(FilterDataset(WorkerBorder(numbers(), RankDecoder(), block_size=2), filter_fn=bool)))


def test_a_position_of_the_parent_is_taken_over(as_worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = whole()[5:]
    begun = numbers()
    before = iter(begun)
    for _ in range(5):
        next(before)
    assert _POSITION not in pickle.loads(pickle.dumps(begun)).__dict__, "only a torch DataLoader sends the position"
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "__name__", "torch.utils.data.dataloader")
        sent = pickle.dumps(begun)
    forked, spawned = [], []
    for number in WORKERS:
        as_worker(number)
        spawned += list(pickle.loads(sent))
        copy = numbers()  # what a forked worker finds
        copy.__dict__["_live_iteration"] = begun._live_iteration  # type: ignore[attr-defined]
        forked += list(copy)
    assert sorted(spawned) == sorted(forked) == sorted(rest)


def in_workers(dataset: SavableDataset[Any]) -> Any:
    """Returns torchdata's loader over two worker processes."""
    return StatefulDataLoader(dataset, batch_size=None, num_workers=2, collate_fn=tuple)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 on torch 2.13
def test_each_sample_once_and_exact_resume() -> None:
    elements = list(in_workers(numbers()))
    assert sorted(elements) == sorted(whole())
    loader = in_workers(numbers())
    taken = iter(loader)
    head = [next(taken) for _ in range(6)]
    again = in_workers(numbers())
    again.load_state_dict(loader.state_dict())
    assert [*head, *again] == elements
