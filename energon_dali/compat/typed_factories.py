"""Energon's factories of crude datasets, and its older ones, which have a sample type each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from energon_dali.build.options import DatasetOptions
from energon_dali.build.source import open_source
from energon_dali.cache import FileStore, JsonlFileStore
from energon_dali.compat.deprecation import warn_deprecated
from energon_dali.compat.epath import EPath
from energon_dali.compat.factories import BaseCoreDatasetFactory, DefaultDecoderWebdatasetFactory
from energon_dali.compat.preparation import JsonlPreparator
from energon_dali.compat.structs import DatasetSubset
from energon_dali.datasets.source import SourceDataset
from energon_dali.errors import ConfigError
from energon_dali.metadataset.reference import SourceReference
from energon_dali.samples import (
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)
from energon_dali.shards.jsonl import JsonlFile
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


class CaptioningWebdataset(_TypedWebdataset):
    """Makes samples of CaptioningSample; deprecated."""

    __sample_type__ = CaptioningSample


class ImageWebdataset(_TypedWebdataset):
    """Makes samples of ImageSample; deprecated."""

    __sample_type__ = ImageSample


class ImageClassificationWebdataset(_TypedWebdataset):
    """Makes samples of ImageClassificationSample; deprecated."""

    __sample_type__ = ImageClassificationSample


class InterleavedWebdataset(_TypedWebdataset):
    """Makes samples of InterleavedSample; deprecated."""

    __sample_type__ = InterleavedSample


class MultiChoiceVQAWebdataset(_TypedWebdataset):
    """Makes samples of MultiChoiceVQASample; deprecated."""

    __sample_type__ = MultiChoiceVQASample


class OCRWebdataset(_TypedWebdataset):
    """Makes samples of OCRSample; deprecated."""

    __sample_type__ = OCRSample


class SimilarityInterleavedWebdataset(_TypedWebdataset):
    """Makes samples of SimilarityInterleavedSample; deprecated."""

    __sample_type__ = SimilarityInterleavedSample


class TextWebdataset(_TypedWebdataset):
    """Makes samples of TextSample; deprecated."""

    __sample_type__ = TextSample


class VidQAWebdataset(_TypedWebdataset):
    """Makes samples of VidQASample; deprecated."""

    __sample_type__ = VidQASample


class VQAWebdataset(_TypedWebdataset):
    """Makes samples of VQASample; deprecated."""

    __sample_type__ = VQASample


class VQAOCRWebdataset(_TypedWebdataset):
    """Makes samples of VQAOCRSample; deprecated."""

    __sample_type__ = VQAOCRSample


class CrudeJsonlDatasetFactory(BaseCoreDatasetFactory[CrudeSample], JsonlPreparator):
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
        self.training = training
        self.worker_config = worker_config
        self.shuffle_over_epochs = shuffle_over_epochs
        self.parallel_shard_iters = parallel_shard_iters
        self.max_samples_per_sequence = max_samples_per_sequence
        self.subset = subset
        self.part_filter = part_filter
        if not hasattr(self, "subflavors"):
            self.subflavors = {}
        self._num_samples = JsonlFile(self.path.storage_path).num_samples

    def __len__(self) -> int:
        return self._num_samples

    def build(self, worker_rotation_offset: int = 0) -> Any:
        options = DatasetOptions.of_call(
            None,
            self.worker_config,
            {"parallel_shard_iters": self.parallel_shard_iters},
            split_part="train",
            training=self.training,
            max_samples_per_sequence=self.max_samples_per_sequence,
        )
        reference = SourceReference(
            self.path.storage_path.url,
            "train",
            dict(self.subflavors),
            shuffle_over_epochs_multiplier=self.shuffle_over_epochs,
            subset=None if self.subset is None else self.subset.to_subset(),
        )
        source = open_source(reference, 0, options, repeat=False)
        return SourceDataset(source.plan, [source], worker_config=self.worker_config)

    def as_file_store(self) -> FileStore[Any]:
        return JsonlFileStore(self.path.storage_path.url)

    def config(self) -> dict[str, Any]:
        """Returns what the factory does, as plain values."""
        return {
            "type": type(self).__qualname__,
            "training": self.training,
            "_path": str(self.path),
            "shuffle_over_epochs": self.shuffle_over_epochs,
            "parallel_shard_iters": self.parallel_shard_iters,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "subset": None if self.subset is None else self.subset.config(),
        }


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
