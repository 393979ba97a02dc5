from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch

from energon_dali import ConfigError, StateError, UpperBoundLoader, WorkerConfig, get_savable_loader
from energon_dali.datasets.wrappers.epochize import EpochizeDataset
from tests.loader.numbers_dataset import tree


def config(workers: int = 0) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=2)


def loader(*, lengths: tuple[int, int] = (10, 10), workers: int = 0, make: Any = None) -> Any:
    return get_savable_loader(tree(config(workers), lengths=list(lengths), make=make), start_method="fork")


def test_the_first_batches_come_again_and_again_and_the_workers_are_gone() -> None:
    inner = loader(workers=2)
    first = list(islice(loader(), 3))
    with UpperBoundLoader(inner, num_batches=3) as bound:
        assert list(islice(bound, 8)) == [*first, *first, *first[:2]]
        assert inner._prefetcher is None
        statistics = bound.stats()
        assert statistics.batches == 8
        assert statistics.batches_per_second > 0
        assert len(bound) == 20  # the loader's


def test_an_epoch_has_the_length_that_was_asked_for() -> None:
    bound = UpperBoundLoader(loader(), num_batches=3, length=7)
    assert len(bound) == 7
    epochs = [list(bound) for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [7, 7]
    assert epochs[1][0] == epochs[0][1]  # the replay goes on where it was


def test_virtual_epochs_keep_their_length() -> None:
    dataset = EpochizeDataset(tree(config(), lengths=[10, 10]), length=4)
    bound = UpperBoundLoader(get_savable_loader(dataset), num_batches=3)
    assert len(list(bound)) == len(bound) == 4


def test_an_epoch_that_ends_early_gives_fewer_batches() -> None:
    bound = UpperBoundLoader(loader(lengths=(2, 1)), num_batches=16)
    assert list(islice(bound, 6)) == [*islice(loader(), 3)] * 2
    with pytest.raises(ConfigError, match="no batch to replay"):
        next(iter(UpperBoundLoader(loader(lengths=(0, 0)))))


def test_what_a_training_does_to_a_batch_does_not_stay() -> None:
    def make(stream: int, epoch: int, place: int) -> dict[str, Any]:
        return {"x": torch.full((2,), place)}

    bound = UpperBoundLoader(loader(make=make), num_batches=1)
    one, two = islice(bound, 2)
    tensor = one.pop("x")
    assert two["x"] is tensor  # no copy of the data


def test_it_has_no_state() -> None:
    bound = UpperBoundLoader(loader())
    for name in ("save_state_rank", "state_dict", "save_state_global"):
        with pytest.raises(StateError, match="Measure without checkpoints"):
            getattr(bound, name)()


@pytest.mark.parametrize("options", [{"num_batches": 0}, {"length": 0}])
def test_arguments_that_cannot_work(options: Any) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        UpperBoundLoader(loader(), **options)
    with pytest.raises(ConfigError, match="is not a loader"):
        UpperBoundLoader([1, 2, 3])
