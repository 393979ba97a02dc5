"""Energon's factories of crude and of joined datasets, and its older ones, which have a sample type each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from energon_dali.assembly.factory_join import FactoryColumn, open_factory_join
from energon_dali.assembly.opened_source import open_source
from energon_dali.cache import FileStore, JsonlFileStore
from energon_dali.compat.constants import warn_deprecated
from energon_dali.compat.epath import EPath
from energon_dali.compat.factories import BaseWebdatasetFactory, DefaultDecoderWebdatasetFactory, OwnDatasetFactory
from energon_dali.compat.preparation import JsonlPreparator
from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.samples import kinds
from energon_dali.samples.base import CrudeSample, Sample
from energon_dali.shards import WebdatasetFolder
from energon_dali.shards.jsonl import JsonlFile
from energon_dali.shards.meta.dataset_config import TYPED_FACTORIES


def _every_part(name: str) -> bool:
    return True


def _same(parts: dict[str, Any]) -> dict[str, Any]:
    return parts


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[CrudeSample]):
    """A folder of shards whose samples stay dicts of parts, for a cooker of the task encoder.

    Args:
        path: The folder.
        subflavors: Put into every sample.
        part_filter: Which parts are read: a function, a list of names, or FILE.py:FUNCTION; all by default.
        **kwargs: Arguments of DefaultDecoderWebdatasetFactory.

    Raises:
        ConfigError: A sample_loader is given.
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: EPath,
        *,
        subflavors: dict[str, Any] | None = None,
        part_filter: str | Sequence[str] | Callable[[str], bool] = _every_part,
        **kwargs: Any,
    ) -> None:
        if "sample_loader" in kwargs:
            raise ConfigError("A CrudeWebdataset takes no sample_loader: its samples are cooked by the task encoder.")
        super().__init__(path, subflavors=subflavors, sample_loader=_same, part_filter=part_filter, **kwargs)

    def load_sample(self, raw_data: dict[str, Any]) -> CrudeSample:
        """Returns the decoded parts and the base fields."""
        return CrudeSample({**self.decode(raw_data), "__subflavors__": self.subflavors})


class _TypedWebdataset(DefaultDecoderWebdatasetFactory[Any]):
    def __init__(self, path: EPath, **kwargs: Any) -> None:
        warn_deprecated(
            f"{type(self).__name__} is deprecated. In {path}/.nv-meta/dataset.yaml, replace __module__ and __class__ "
            f"by `sample_type: {{__module__: megatron.energon, __class__: {self.__sample_type__.__name__}}}`.",
            stacklevel=3,
        )
        super().__init__(path, **kwargs)


for _name, _sample_type in TYPED_FACTORIES.items():
    globals()[_name] = type(
        _name,
        (_TypedWebdataset,),
        {
            "__module__": __name__,
            "__doc__": f"Makes samples of {_sample_type}; deprecated.",
            "__sample_type__": getattr(kinds, _sample_type),
        },
    )


class CrudeJsonlDatasetFactory(OwnDatasetFactory[CrudeSample], JsonlPreparator):
    """A JSONL file: each line is a crude sample with the part `json`.

    Args:
        path: The file.
        part_filter: Has no effect: a line has one part.
        **kwargs: Arguments of OwnDatasetFactory: training, worker_config, shuffle_over_epochs and others. Energon's
            other arguments, such as `decoder`, do not concern lines of JSON and have no effect.

    Raises:
        DatasetError: The file cannot be read.
    """

    __sample_type__ = CrudeSample

    def __init__(self, path: EPath, *, part_filter: Callable[[str], bool] | None = None, **kwargs: Any) -> None:
        self.path = EPath(path)
        self.paths = [self.path]
        self.part_filter = part_filter
        known = inspect.signature(OwnDatasetFactory).parameters
        super().__init__(**{name: value for name, value in kwargs.items() if name in known})
        self._num_samples = JsonlFile(self.path.storage_path).num_samples

    def __len__(self) -> int:
        return self._num_samples

    def build(self, worker_rotation_offset: int = 0) -> Any:
        return self._opened(open_source(self._reference(self.path, "train"), 0, self._options("train"), repeat=False))

    def as_file_store(self) -> FileStore[Any]:
        return JsonlFileStore(self.path.storage_path.url)


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """A JSONL file whose samples have subflavors.

    Args:
        path: The file.
        subflavors: Put into every sample.
        **kwargs: Arguments of CrudeJsonlDatasetFactory.
    """

    def __init__(self, path: EPath, *, subflavors: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.subflavors = dict(subflavors or {})
        super().__init__(path, **kwargs)


class JoinedWebdatasetFactory(OwnDatasetFactory[Any]):
    """Several datasets, joined by a join index, which `energon-dali prepare` makes of a metadataset with `join`.

    Args:
        inner_datasets: Factories of the datasets, the primary one first: a list, or a mapping from the names of the
            joiner's arguments.
        join_index: The file of the join index.
        joiner: Makes one sample of one of each dataset, None where there is no match: a function, or a class derived
            from Sample, whose `from_joined` does so.
        **order: Arguments of OwnDatasetFactory: training, worker_config, shuffle_over_epochs and others.

    Raises:
        ConfigError: There is no factory among the datasets, or one is not a factory of a folder, or the joiner cannot
            be called.
        DatasetFormatError: There is no such join index.
    """

    def __init__(
        self,
        inner_datasets: Sequence[BaseWebdatasetFactory[Any]] | Mapping[str, BaseWebdatasetFactory[Any]],
        *,
        join_index: EPath,
        joiner: type[Sample] | Callable[..., Any],
        **order: Any,
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
        super().__init__(**order)

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
