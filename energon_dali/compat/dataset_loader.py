"""Energon's loader of one dataset, which gives its factory as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energon_dali.compat.documents import get_dataset_from_config
from energon_dali.compat.epath import EPath
from energon_dali.compat.factories import BaseCoreDatasetFactory
from energon_dali.errors import ConfigError
from energon_dali.metadataset import loader
from energon_dali.metadataset.context import combine_shuffle_over_epochs
from energon_dali.worker_config import WorkerConfig


class DatasetLoader(loader.DatasetLoader):
    """A single dataset; arguments as in `energon_dali.DatasetLoader`."""

    def get_dataset(
        self,
        *,
        training: bool,
        split_part: str | None = None,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs: int | None = 1,
        split_config: str | None = None,
        dataset_config: str | None = None,
        **kwargs: Any,
    ) -> BaseCoreDatasetFactory[Any]:
        """Returns the factory of the dataset. Its `dataset.yaml` may import and call any class: trust it first.

        Args:
            training: Whether samples are shuffled.
            split_part: Such as "train", where the loader itself has none.
            worker_config: The job.
            subflavors: Put into every sample; they override those of the loader.
            shuffle_over_epochs: Combined with the loader's shuffle_over_epochs_multiplier.
            split_config: Name of the split file; None is that of the loader.
            dataset_config: Name of dataset.yaml; None is that of the loader.
            **kwargs: Further arguments of the factory, such as subset.

        Raises:
            ConfigError: There is no split part, or the path is not a dataset.
            DatasetFormatError: `dataset.yaml` is malformed.
            StorageError: A file cannot be read.
        """
        part = self.split_part or split_part
        if part is None:
            raise ConfigError(
                f"get_dataset of {self!r} was given no split_part, and the loader has none. Give one, such as "
                'split_part="train".'
            )
        return get_dataset_from_config(
            EPath(self.path.url),
            dataset_config=dataset_config or self.dataset_config,
            split_config=split_config or self.split_config,
            split_part=part,
            training=training,
            subflavors={**self.subflavors, **(subflavors or {})},
            worker_config=worker_config,
            shuffle_over_epochs=combine_shuffle_over_epochs(shuffle_over_epochs, self.shuffle_over_epochs_multiplier),
            **kwargs,
        )


def load_dataset(path: Any, **kwargs: Any) -> loader.DatasetLoaderInterface:
    """Returns what `energon_dali.load_dataset` returns; the loader of a folder or a .jsonl file has `get_dataset`.

    Args:
        path: As there.
        **kwargs: As there.

    Raises:
        DatasetFormatError: A metadataset is malformed.
        ConfigError: The path is invalid, or arguments were given that a metadataset does not take.
        StorageError: A file cannot be read.
    """
    found = loader.load_dataset(path, **kwargs)
    return DatasetLoader(path=path, **kwargs) if isinstance(found, loader.DatasetLoader) else found
