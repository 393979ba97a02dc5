"""Energon's factory of joined datasets, for programs that make one themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from energon_dali.assembly.factory_join import FactoryColumn, open_factory_join
from energon_dali.cache import FileStore
from energon_dali.compat.epath import EPath
from energon_dali.compat.factories import BaseWebdatasetFactory, OwnDatasetFactory
from energon_dali.compat.structs import DatasetSubset
from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.samples.base import Sample
from energon_dali.shards import WebdatasetFolder
from energon_dali.worker_config import WorkerConfig


class JoinedWebdatasetFactory(OwnDatasetFactory[Any]):
    """Several datasets, joined by a join index, which `energon-dali prepare` makes of a metadataset with `join`.

    Args:
        inner_datasets: Factories of the datasets, the primary one first: a list, or a mapping from the names of the
            joiner's arguments.
        training: Whether the samples are shuffled.
        worker_config: The job.
        shuffle_over_epochs: See BaseWebdatasetFactory.
        parallel_shard_iters: See BaseWebdatasetFactory.
        max_samples_per_sequence: See BaseWebdatasetFactory.
        subset: Part of the joined samples.
        join_index: The file of the join index.
        joiner: Makes one sample of one of each dataset, None where there is no match: a function, or a class derived
            from Sample, whose `from_joined` does so.

    Raises:
        ConfigError: There is no factory among the datasets, or one is not a factory of a folder, or the joiner cannot
            be called.
        DatasetFormatError: There is no such join index.
    """

    def __init__(
        self,
        inner_datasets: Sequence[BaseWebdatasetFactory[Any]] | Mapping[str, BaseWebdatasetFactory[Any]],
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: DatasetSubset | None = None,
        join_index: EPath,
        joiner: type[Sample] | Callable[..., Any],
    ) -> None:
        self.inner_dataset_keys: list[str] | None = None
        if isinstance(inner_datasets, Mapping):
            self.inner_dataset_keys = [str(name) for name in inner_datasets]
            self.inner_datasets = list(inner_datasets.values())
        else:
            self.inner_datasets = list(inner_datasets)
        if not self.inner_datasets or not all(isinstance(one, BaseWebdatasetFactory) for one in self.inner_datasets):
            raise ConfigError(
                f"inner_datasets={inner_datasets!r} is invalid: give at least one factory of a folder of shards, and "
                "nothing else, such as StandardWebdatasetFactory(path, ...)."
            )
        if not callable(joiner):
            raise ConfigError(f"joiner={joiner!r} is invalid: give a function, or a class derived from Sample.")
        self._sample_joiner: Callable[..., Any] = joiner
        if isinstance(joiner, type) and issubclass(joiner, Sample):
            self._sample_joiner = joiner.from_joined
        self.__sample_type__ = joiner  # type: ignore[assignment]
        self.join_index = EPath(join_index)
        if not self.join_index.is_file():
            raise DatasetFormatError(
                f"The join index {self.join_index} does not exist. Run `energon-dali prepare` on the metadataset with "
                "the join; do so again if its datasets changed."
            )
        self._keep(training, worker_config, shuffle_over_epochs, parallel_shard_iters, max_samples_per_sequence, subset)

    @property
    def paths(self) -> list[EPath]:  # type: ignore[override]
        """The folders of the datasets."""
        return [inner.path for inner in self.inner_datasets]

    @property
    def shards(self) -> list[tuple[Any, ...]]:
        """The shards of the datasets, side by side."""
        return list(zip(*(inner.shards for inner in self.inner_datasets), strict=False))

    def __len__(self) -> int:
        return len(self.inner_datasets[0])

    def build(self, worker_rotation_offset: int = 0) -> Any:
        split_part = self.inner_datasets[0].split_part
        columns = [
            FactoryColumn(
                inner,
                WebdatasetFolder(inner.path.storage_path, split_config=inner.split_config),
                inner.split_part_files,
            )
            for inner in self.inner_datasets
        ]
        reference, options = self._reference(self.join_index, split_part), self._options(split_part)
        return self._opened(
            open_factory_join(columns, self._sample_joiner, self.inner_dataset_keys, reference, options)
        )

    def as_file_store(self) -> FileStore[Any]:
        raise NotImplementedError("A join is not a store of files. Use the factories in inner_datasets.")

    def _own_config(self) -> dict[str, Any]:
        return {"joined_datasets": [inner.config() for inner in self.inner_datasets]}

    def __str__(self) -> str:
        return f"{type(self).__name__}(paths={self.paths})"
