"""Torch's loaders around ours: what works, and a clear error for what would not. tests/integrations has the others."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from energon_dali import MapDataset, SavableDataset, get_loader, get_savable_loader
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


@pytest.mark.parametrize("savable", [True, False])
def test_a_torch_loader_around_a_loader_or_a_dataset_says_what_to_do(savable: bool) -> None:
    dataset: SavableDataset[Any] = MapDataset(tree(place()), tuple)
    loader = (get_savable_loader if savable else get_loader)(dataset)
    for given, name in ((dataset, "MapDataset"), (loader, type(loader).__name__)):
        with pytest.raises(ConfigError, match=f"A {name} yields its elements in the order of its plan.*get_loader"):
            next(iter(DataLoader(given)))  # type: ignore[arg-type]


def test_next_takes_the_elements_of_a_loader_one_by_one() -> None:
    loader = get_loader(tree(place()))
    first = next(loader)
    rest = list(loader)
    assert [first, *rest] == list(get_loader(tree(place())))
    assert next(loader)[1] == 1, "the next epoch"
