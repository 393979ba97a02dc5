"""Energon's loaders, which are torch `DataLoader`s by their class: programs ask `isinstance(loader, DataLoader)`."""

from __future__ import annotations

from typing import Any, TypeVar

from torch.utils.data import DataLoader

from energon_dali.datasets.base import SavableDataset
from energon_dali.loader import basic_loader, savable_loader

T = TypeVar("T")


class BasicDataLoader(basic_loader.BasicDataLoader[T], DataLoader[T]):  # type: ignore[misc, override]  # read-only
    """A loader without saved state. Nothing of `DataLoader` runs: iteration and attributes are those of the loader."""

    _is_accelerate_prepared = True  # Accelerate would make another loader of the dataset, without a position


class SavableDataLoader(savable_loader.SavableDataLoader[T], DataLoader[T]):  # type: ignore[misc, override]
    """A loader whose position can be saved. Nothing of `DataLoader` runs, as in `BasicDataLoader`."""

    _is_accelerate_prepared = True


def get_loader(dataset: SavableDataset[T], **options: Any) -> BasicDataLoader[T]:
    """Returns a loader without state saving.

    Args:
        dataset: What get_train_dataset or get_val_dataset returned.
        **options: As in `energon_dali.get_loader`.

    Raises:
        ConfigError: An argument is invalid.
        DeviceError: pin_memory=True without CUDA.
    """
    return BasicDataLoader(dataset, **options)


def get_savable_loader(dataset: SavableDataset[T], **options: Any) -> SavableDataLoader[T]:
    """Returns a loader whose state can be saved.

    Args:
        dataset: What get_train_dataset or get_val_dataset returned.
        **options: As in `energon_dali.get_savable_loader`.

    Raises:
        ConfigError: An argument is invalid.
        DeviceError: pin_memory=True without CUDA.
    """
    return SavableDataLoader(dataset, **options)
