"""Energon's loader of one dataset returns a factory, which builds what `get_val_dataset` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import energon_dali.compat
from energon_dali import get_val_dataset
from energon_dali.compat.structs import DatasetSubset
from energon_dali.errors import ConfigError
from tests.datasets.oracle import config
from tests.loader.dataset_folder import prepare, write_shards

assert energon_dali.compat.install


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    samples = {f"k{number:02d}": {"txt": f"text {number}".encode()} for number in range(8)}
    return prepare(write_shards(tmp_path / "texts", samples, 2), {"text": "txt"}, "TextSample")


def keys(dataset: Any) -> list[str]:
    return [sample.__key__ for sample in dataset]


def test_get_dataset_returns_a_factory_of_the_part(folder: Path) -> None:
    from megatron.energon import BaseCoreDatasetFactory, DatasetLoader, load_dataset  # type: ignore[attr-defined]

    loader = load_dataset(folder, subflavors={"a": 1, "b": 1})
    assert isinstance(loader, DatasetLoader)
    factory = loader.get_dataset(training=False, split_part="val", worker_config=config(), subflavors={"b": 2})
    assert isinstance(factory, BaseCoreDatasetFactory)
    assert (len(factory), factory.subflavors, factory.split_part) == (8, {"a": 1, "b": 2}, "val")
    built = list(factory.build())
    assert [sample.text for sample in built] == [f"text {number}" for number in range(8)]
    assert keys(built) == keys(get_val_dataset(folder, worker_config=config()))
    half = loader.get_dataset(
        training=False, split_part="val", worker_config=config(), subset=DatasetSubset(range=(0.0, 0.5))
    )
    assert keys(half.build()) == [f"k{number:02d}" for number in range(4)]


def test_the_loader_s_own_part_and_multiplier_count(folder: Path) -> None:
    from megatron.energon import DatasetLoader

    loader = DatasetLoader(path=folder, split_part="train", shuffle_over_epochs_multiplier=2)
    factory = loader.get_dataset(training=True, split_part="val", worker_config=config(), shuffle_over_epochs=3)
    assert (factory.split_part, factory.training, factory.shuffle_over_epochs) == ("train", True, 6)


def test_a_missing_part_is_an_error(folder: Path) -> None:
    from megatron.energon import DatasetLoader

    with pytest.raises(ConfigError, match="was given no split_part, and the loader has none"):
        DatasetLoader(path=folder).get_dataset(training=False, worker_config=config())
