"""Energon's factories of crude datasets, and its older ones, which have a sample type each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from energon_dali.assembly.opened_source import open_source
from energon_dali.cache import FileStore, JsonlFileStore
from energon_dali.compat.deprecation import warn_deprecated
from energon_dali.compat.epath import EPath
from energon_dali.compat.factories import DefaultDecoderWebdatasetFactory, OwnDatasetFactory
from energon_dali.compat.preparation import JsonlPreparator
from energon_dali.compat.structs import DatasetSubset
from energon_dali.errors import ConfigError
from energon_dali.samples.base import CrudeSample
from energon_dali.samples.kinds import sample_kind
from energon_dali.shards.jsonl import JsonlFile
from energon_dali.shards.meta.dataset_config import TYPED_FACTORIES
from energon_dali.worker_config import WorkerConfig


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
            "__sample_type__": sample_kind(_sample_type),
        },
    )


class CrudeJsonlDatasetFactory(OwnDatasetFactory[CrudeSample], JsonlPreparator):
    """A JSONL file: each line is a crude sample with the part `json`.

    Args:
        path: The file.
        training: Whether the samples are shuffled.
        worker_config: The job.
        shuffle_over_epochs: See BaseWebdatasetFactory.
        parallel_shard_iters: See BaseWebdatasetFactory.
        max_samples_per_sequence: See BaseWebdatasetFactory.
        subset: Part of the samples.
        part_filter: Has no effect: a line has one part.
        **kwargs: Energon's other arguments, such as `decoder`, which do not concern lines of JSON.

    Raises:
        DatasetError: The file cannot be read.
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: EPath,
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: DatasetSubset | None = None,
        part_filter: Callable[[str], bool] | None = None,
        **kwargs: Any,
    ) -> None:
        self.path = EPath(path)
        self.paths = [self.path]
        self.part_filter = part_filter
        self._keep(training, worker_config, shuffle_over_epochs, parallel_shard_iters, max_samples_per_sequence, subset)
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
