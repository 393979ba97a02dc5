"""Loaders of special samples: those that a class of the program makes, which `dataset.yaml` names, and joined ones."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from energon_dali.datasets.load_sample import SampleLoader, part_seed
from energon_dali.datasets.metrics import Metrics
from energon_dali.decode.interface import Placement
from energon_dali.decode.media_decoder import part_context
from energon_dali.errors import DatasetFormatError, SkipSample
from energon_dali.metadataset.join.joined_reader import JoinedRaw
from energon_dali.samples import CrudeSample, Sample, SourceInfo
from energon_dali.samples.base import Key, set_restore_key
from energon_dali.shards import RawSample


class SampleFactory(Protocol):
    """Makes samples of one folder."""

    __sample_type__: type[Any]
    """Class of the samples."""
    part_filter: Callable[[str], bool] | None
    """Selects the parts that are read; None takes all."""
    subflavors: dict[str, Any]
    """Put into every sample."""

    @classmethod
    def open_folder(cls, path: str, options: Mapping[str, Any]) -> SampleFactory:
        """Returns a factory for a folder.

        Args:
            path: Path or URL of the folder.
            options: What Energon gives to a factory: split_part, training, worker_config, decoder and so on.
        """

    def load_sample(self, raw_data: dict[str, Any], /) -> Any:
        """Returns the sample of a raw sample: the content of each part by name, with base fields."""

    def sample_filter(self, key: str, /) -> bool:
        """Returns whether a sample is loaded."""


def import_factory(config: Mapping[str, Any], path: str) -> type[SampleFactory]:
    """Returns the class that a trusted `dataset.yaml` names.

    Args:
        config: Its content.
        path: The folder, for messages.

    Raises:
        DatasetFormatError: The class cannot be imported, or is not a factory.
    """
    module, name = str(config.get("__module__", "megatron.energon")), str(config["__class__"])
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DatasetFormatError(
            f"dataset.yaml of {path} names the class {module}.{name}, which cannot be imported ({error}). Install or "
            "correct it. If it imports megatron.energon, make `import energon_dali.compat` the first line of the "
            "program."
        ) from error
    if not isinstance(found, type) or not hasattr(found, "open_folder") or not hasattr(found, "load_sample"):
        raise DatasetFormatError(
            f"dataset.yaml of {path} names {module}.{name}, which does not derive from a factory such as "
            "megatron.energon.DefaultDecoderWebdatasetFactory. Derive it, or use sample_type and field_map."
        )
    return found


class FactoryLoader(SampleLoader):
    """Makes the samples of one dataset by a factory.

    Args:
        factory: Makes them.
        dataset_path: For `__sources__` and messages.
        seed: The job's seed.
        source_number: Number of this dataset in the job.
    """

    def __init__(self, factory: SampleFactory, *, dataset_path: str, seed: int, source_number: int) -> None:
        super().__init__(
            decoder=None,
            sample_type=factory.__sample_type__,
            subflavors=factory.subflavors,
            dataset_path=dataset_path,
            seed=seed,
            source_number=source_number,
        )
        self.factory = factory

    def __call__(self, raw: RawSample, seed: int, restore_key: Key = ()) -> Any:
        if not self.factory.sample_filter(raw.key):
            raise SkipSample
        source = SourceInfo(
            dataset_path=self.dataset_path,
            index=raw.index,
            shard_name=raw.shard,
            file_names=tuple([f"{raw.key}.{name}" for name in raw.parts]),
        )
        parts = {
            "__key__": raw.key,
            "__shard__": raw.shard,
            "__restore_key__": ("Webdataset", raw.index),
            "__sources__": (source,),
            **{name: bytes(content) for name, content in raw.parts.items()},
        }
        with part_context(partial(part_seed, seed), source):
            sample = self.factory.load_sample(parts)
        if isinstance(sample, CrudeSample):
            sample.seed = seed
        return set_restore_key(sample, restore_key) if restore_key else sample


class JoinedSampleLoader(SampleLoader):
    """Makes the samples of a join: first the sample of each dataset, then one sample of all.

    Args:
        loaders: One per dataset, the primary one first.
        joiner: Makes one sample of theirs; receives None for a dataset without a match.
        names: Names of the joiner's arguments; None passes the samples by position.
        subflavors: Subflavors of the join, by which stages are chosen.
        seed: The job's seed.
        source_number: Number of the join among the sources of the job.
    """

    def __init__(
        self,
        loaders: Sequence[SampleLoader],
        joiner: Callable[..., Any],
        names: Sequence[str] | None,
        *,
        subflavors: dict[str, Any] | None = None,
        seed: int = 0,
        source_number: int = 0,
    ) -> None:
        # A joiner returns a finished sample, never a crude one.
        super().__init__(
            decoder=None,
            sample_type=Sample,
            subflavors=subflavors,
            dataset_path=loaders[0].dataset_path,
            seed=seed,
            source_number=source_number,
        )
        self.loaders = tuple(loaders)
        self.joiner = joiner
        self.names = None if names is None else tuple(names)

    def counting(self, metrics: Metrics) -> SampleLoader:
        twin = copy.copy(self)
        twin.loaders = tuple(load.counting(metrics) for load in self.loaders)
        return twin

    def import_libraries(self, placement: Placement) -> None:
        for load in self.loaders:
            load.import_libraries(placement)

    def __call__(self, raw: RawSample, seed: int, restore_key: Key = ()) -> Any:
        """Returns the sample.

        Args:
            raw: The samples of a row of the join index.
            seed: Seed of its random operations, as `seeds` returns it.
            restore_key: Becomes its `__restore_key__`.

        Raises:
            DecodeError: A part cannot be decoded; the message names the part.
            DatasetFormatError: A field's part is missing.
            Exception: Whatever the joiner raises.
        """
        assert isinstance(raw, JoinedRaw), "a JoinedReader gives them"
        samples: list[Any] = []
        for number, (load, part) in enumerate(zip(self.loaders, raw.columns, strict=True)):
            # Parts of the same name in two datasets get different random operations.
            own_seed = part_seed(seed, f"join/{number}") if number else seed
            samples.append(None if part is None else load(part, own_seed))
        if self.names is None:
            joined = self.joiner(*samples)
        else:
            joined = self.joiner(**dict(zip(self.names, samples, strict=True)))
        return set_restore_key(joined, restore_key) if restore_key else joined
