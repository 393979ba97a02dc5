"""Torch's loaders around ours: what works, and a clear error for what would not. tests/integrations has the others."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from energon_dali import MapDataset, get_loader, get_savable_loader
from energon_dali.errors import ConfigError
from energon_dali.worker_config import WorkerConfig
from tests.loader.numbers_dataset import tree


class Around(IterableDataset[Any]):
    """What programs place between a loader and a torch DataLoader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        yield from self.loader


def place(world: int = 1) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=world, num_workers=0, num_streams=4)


def test_a_wrapped_loader_of_a_single_rank_is_iterated() -> None:
    around = DataLoader(Around(get_loader(tree(place()))), batch_size=None)
    assert len(list(around)) == 15


@pytest.mark.parametrize("make", [get_savable_loader, get_loader])
def test_a_torch_loader_around_a_loader_says_what_to_do(make: Any) -> None:
    loader = make(MapDataset(tree(place()), tuple))
    with pytest.raises(ConfigError, match=f"A {type(loader).__name__} yields its elements in the order.*get_loader"):
        next(iter(DataLoader(loader)))


def test_elements_of_a_dataset_have_no_index() -> None:
    with pytest.raises(ConfigError, match=r"A dataset yields .* no index\. .*DataLoader\(dataset, batch_size=None\)"):
        tree(place())[0]


def test_a_dataset_is_iterated_by_a_torch_loader_as_by_itself() -> None:
    assert list(DataLoader(tree(place()), batch_size=None, collate_fn=tuple)) == list(tree(place()))


def test_next_takes_the_elements_of_a_loader_one_by_one() -> None:
    loader = get_loader(tree(place()))
    first = next(loader)
    rest = list(loader)
    assert [first, *rest] == list(get_loader(tree(place())))
    assert next(loader)[1] == 1, "the next epoch"
