"""Energon's dataset factories, to derive from: classes that `dataset.yaml` names and that make samples of parts.

`get_train_dataset` makes an instance of the class that `dataset.yaml` names, and calls its `load_sample` for every raw
sample. The order of samples, and the processes that read them, are the same as without a factory.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from energon_dali.assembly.builder import SourceFactory
from energon_dali.assembly.opened_source import open_source
from energon_dali.assembly.options import DatasetOptions
from energon_dali.assembly.sample_loaders import check_fields
from energon_dali.cache import FileStore, WebdatasetFileStore
from energon_dali.compat.epath import EPath
from energon_dali.compat.preparation import WebdatasetPreparator
from energon_dali.compat.structs import DatasetSubset, ShardInfo, WebdatasetMeta
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.source import SourceDataset
from energon_dali.decode import Decoder, SampleDecoder
from energon_dali.decode.media_decoder import decode_parts
from energon_dali.errors import ConfigError
from energon_dali.metadataset.reference import SourceReference
from energon_dali.samples.base import Sample
from energon_dali.shards import PartList
from energon_dali.shards.meta.sample_loader import load_function
from energon_dali.worker_config import WorkerConfig

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset
    from energon_dali.datasets.row_sources import Source

T_sample = TypeVar("T_sample", covariant=True)
PartFilter = Callable[[str], bool]
DEFAULT_DECODER = SampleDecoder()
"""Decoder of a factory that is given none."""

_OLD_DECODER_OPTIONS = ("image_decode", "av_decode", "video_decode_audio", "guess_content")


class BaseCoreDatasetFactory(ABC, Generic[T_sample]):
    """What opens one dataset."""

    __sample_type__: type[T_sample] = None  # type: ignore[assignment]
    """Class of its samples."""
    paths: list[EPath]
    """Its folder or file."""
    subflavors: dict[str, Any]
    """Put into every sample."""

    @abstractmethod
    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[Any]:
        """Returns the dataset of loaded samples.

        Args:
            worker_rotation_offset: Has no effect: remainders are spread over the datasets of a tree in any case.
        """

    @abstractmethod
    def as_file_store(self) -> FileStore[Any]:
        """Returns the parts of its samples as a store of files."""

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of samples, over all ranks."""


BaseCoreDatasetFactory.register(SourceFactory)  # what build hooks of task encoders receive


class OwnDatasetFactory(BaseCoreDatasetFactory[T_sample]):
    """What the factories of this package have in common: their rows are put into order alike.

    Args:
        training: Whether the samples are shuffled and repeated.
        worker_config: The job.
        shuffle_over_epochs: Number of epochs whose slices are shuffled together; -1 draws with replacement; None keeps
            file order.
        parallel_shard_iters: Slices that are read in turn; None chooses.
        max_samples_per_sequence: Most samples that are read in file order; None is a whole shard.
        subset: Part of the samples.
    """

    path: EPath

    def __init__(
        self,
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: DatasetSubset | None = None,
    ) -> None:
        self.training = training
        self.worker_config = worker_config
        self.shuffle_over_epochs = shuffle_over_epochs
        self.parallel_shard_iters = parallel_shard_iters
        self.max_samples_per_sequence = max_samples_per_sequence
        self.subset = subset
        if not hasattr(self, "subflavors"):
            self.subflavors = {}

    def _options(self, split_part: str) -> DatasetOptions:
        return DatasetOptions.of_call(
            None,
            self.worker_config,
            {"parallel_shard_iters": self.parallel_shard_iters},
            split_part=split_part,
            training=self.training,
            max_samples_per_sequence=self.max_samples_per_sequence,
        )

    def _reference(self, path: EPath, split_part: str) -> SourceReference:
        return SourceReference(
            path.storage_path.url,
            split_part,
            dict(self.subflavors),
            shuffle_over_epochs_multiplier=self.shuffle_over_epochs,
            subset=None if self.subset is None else self.subset.to_subset(),
        )

    def _opened(self, source: Source) -> SavableDataset[Any]:
        return SourceDataset(source.plan, [source], worker_config=self.worker_config)

    def config(self) -> dict[str, Any]:
        """Returns what the factory does, as plain values."""
        return {
            "type": type(self).__qualname__,
            "training": self.training,
            **self._own_config(),
            "shuffle_over_epochs": self.shuffle_over_epochs,
            "parallel_shard_iters": self.parallel_shard_iters,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "subset": None if self.subset is None else self.subset.config(),
        }

    def _own_config(self) -> dict[str, Any]:
        return {"_path": str(self.path)}


class BaseWebdatasetFactory(OwnDatasetFactory[T_sample], WebdatasetPreparator):
    """A prepared folder of shards. A subclass has `__sample_type__`, and `load_sample` makes a sample of parts.

    Args:
        path: The folder.
        split_part: Such as "train".
        split_config: Name of the split file; None takes split.yaml or split.json.
        part_filter: Returns whether a part is read, by its name.
        **order: Arguments of OwnDatasetFactory: training, worker_config, shuffle_over_epochs and others.

    Raises:
        ConfigError: The class has no `__sample_type__`.
        DatasetError: The folder cannot be read, or has no such split part.
    """

    __sample_type__: type[T_sample]

    def __init__(
        self,
        path: EPath,
        *,
        split_part: str,
        split_config: str | None = None,
        part_filter: PartFilter | None = None,
        **order: Any,
    ) -> None:
        if self.__sample_type__ is None:
            raise ConfigError(f"{type(self).__qualname__} has no __sample_type__: set it to the class of its samples.")
        self.path = EPath(path)
        self.paths = [self.path]
        self.name = self.path.display_name
        self.split_part = split_part
        self.split_config = split_config
        self.part_filter = part_filter
        super().__init__(**order)

    @classmethod
    def open_folder(cls, path: str, options: Mapping[str, Any]) -> BaseWebdatasetFactory[T_sample]:
        """Returns a factory for a folder whose `dataset.yaml` names this class.

        Args:
            path: Path or URL of the folder.
            options: Keyword arguments of the class.
        """
        return cls(EPath(path), **options)

    @abstractmethod
    def load_sample(self, raw_data: dict[str, Any]) -> T_sample:
        """Returns the sample.

        Args:
            raw_data: Content of each part by name, with `__key__`, `__shard__`, `__restore_key__` and `__sources__`.
        """

    def sample_filter(self, key: str) -> bool:
        """Returns whether a sample is loaded, by its key. What the split excludes is never read."""
        return True

    @cached_property
    def _meta(self) -> WebdatasetMeta:
        return WebdatasetMeta.from_config(path=self.path, split_part=self.split_part, split_config=self.split_config)

    @property
    def shards(self) -> list[ShardInfo]:
        """The shards of the split part."""
        return self._meta.shards

    @property
    def sample_excludes(self) -> set[str]:
        """The samples that the split excludes, as SHARD/KEY."""
        return self._meta.sample_excludes

    @property
    def split_part_files(self) -> list[str]:
        """The shards of the split part by name, excluded ones too."""
        return self._meta.split_part_files

    def __len__(self) -> int:
        return sum(shard.count for shard in self.shards)

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[Any]:
        reference = dataclasses.replace(self._reference(self.path, self.split_part), split_config=self.split_config)
        return self._opened(open_source(reference, 0, self._options(self.split_part), repeat=False, factory=self))

    def as_file_store(self) -> FileStore[Any]:
        return WebdatasetFileStore(self.path.storage_path.url)

    def _own_config(self) -> dict[str, Any]:
        return {**super()._own_config(), "split_part": self.split_part}

    def __str__(self) -> str:
        return f"{type(self).__name__}(path={self.path})"


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_sample]):
    """Fills the fields of `__sample_type__` from parts, by a field map or by a function.

    Args:
        path: The folder.
        subflavors: Put into every sample.
        field_map: Part of each field, such as {"image": "jpg,png"}; or `sample_loader`.
        sample_loader: Function from the parts to the fields; or FILE.py:FUNCTION in `.nv-meta`.
        part_filter: Which parts the function needs: a function, a list of names, or FILE.py:FUNCTION.
        **kwargs: Arguments of BaseWebdatasetFactory.

    Raises:
        ConfigError: Both or neither of field_map and sample_loader are given, or a sample_loader without part_filter.
        DatasetFormatError: The field map does not fit the sample type.
        UntrustedCodeError: A function of the dataset is named, and the user did not allow it.
    """

    def __init__(
        self,
        path: EPath,
        *,
        subflavors: dict[str, Any] | None = None,
        field_map: dict[str, str] | None = None,
        sample_loader: str | Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        part_filter: str | Sequence[str] | PartFilter | None = None,
        **kwargs: Any,
    ) -> None:
        if (field_map is None) == (sample_loader is None):
            raise ConfigError(f"{type(self).__qualname__} needs either field_map or sample_loader, and not both.")
        if field_map is not None:
            check_fields(self.__sample_type__, field_map, "field_map")
            self._fields = SampleLoader(decoder=None, sample_type=self.__sample_type__, field_map=field_map)
            wanted: PartFilter | None = self._fields.part_filter()
            self._sample_loader: Callable[[dict[str, Any]], dict[str, Any]] = self._fields.take_fields
        else:
            if part_filter is None:
                raise ConfigError(f"{type(self).__qualname__} needs a part_filter with its sample_loader.")
            self._sample_loader = _function(path, sample_loader, "sample_loader")
            wanted = (
                _function(path, part_filter, "part_filter")
                if isinstance(part_filter, str) or callable(part_filter)
                else PartList(frozenset(part_filter))
            )
        self.subflavors = dict(subflavors or {})
        super().__init__(path, part_filter=wanted, **kwargs)

    def load_sample(self, raw_data: dict[str, Any]) -> T_sample:
        values = {
            "__key__": raw_data["__key__"],
            **self._sample_loader(raw_data),
            "__restore_key__": raw_data["__restore_key__"],
            "__subflavors__": self.subflavors,
            "__sources__": raw_data["__sources__"],
        }
        return self.__sample_type__(**values)

    def config(self) -> dict[str, Any]:
        loader = self._sample_loader
        name = f"{getattr(loader, '__module__', '')}.{getattr(loader, '__qualname__', type(loader).__qualname__)}"
        return {**super().config(), "subflavors": self.subflavors, "sample_loader": name}


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_sample]):
    """Decodes the parts before it fills the fields.

    A subclass may set `self._decoder` to any function from the parts by name to the decoded parts, such as
    webdataset's `Decoder`; it is called in the process that reads.

    Args:
        path: The folder.
        decoder: Decodes the parts; None leaves bytes. Datasets pass that of the task encoder.
        auto_decode: False leaves bytes, as in older versions of Energon.
        image_decode: Older versions' option; here it makes a SampleDecoder.
        av_decode: Likewise.
        video_decode_audio: Likewise.
        guess_content: Likewise.
        ignore_decoder_errors: Has no effect: samples that cannot be decoded are dropped.
        **kwargs: Arguments of DefaultGenericWebdatasetFactory.
    """

    def __init__(
        self,
        path: EPath,
        *,
        decoder: Any = DEFAULT_DECODER,
        auto_decode: bool = True,
        image_decode: Any = None,
        av_decode: Any = None,
        video_decode_audio: bool | None = None,
        guess_content: bool | None = None,
        ignore_decoder_errors: bool = False,
        **kwargs: Any,
    ) -> None:
        given = (image_decode, av_decode, video_decode_audio, guess_content)
        old = {name: value for name, value in zip(_OLD_DECODER_OPTIONS, given, strict=True) if value is not None}
        chosen = SampleDecoder(**old) if old else decoder
        self.auto_decode = auto_decode and chosen is not None
        self._decoder: Any = chosen if self.auto_decode else None
        options = chosen.config() if isinstance(chosen, Decoder) else DEFAULT_DECODER.config()
        for name in _OLD_DECODER_OPTIONS:
            setattr(self, name, options[name])
        super().__init__(path, **kwargs)

    def decode(self, raw_data: dict[str, Any]) -> dict[str, Any]:
        """Returns the parts decoded by the factory's decoder."""
        decoder = self._decoder
        if decoder is None:
            return raw_data
        return decode_parts(decoder, raw_data) if isinstance(decoder, Decoder) else dict(decoder(raw_data))

    def load_sample(self, raw_data: dict[str, Any]) -> T_sample:
        return super().load_sample(self.decode(raw_data))

    def config(self) -> dict[str, Any]:
        describe = getattr(self._decoder, "config", None)
        return {**super().config(), **(describe() if callable(describe) else {})}


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T_sample]):
    """Makes samples of a type that is given.

    Args:
        path: The folder.
        sample_type: Class of the samples.
        **kwargs: Arguments of DefaultDecoderWebdatasetFactory.

    Raises:
        ConfigError: The class does not derive from Sample.
    """

    def __init__(self, path: EPath, *, sample_type: type[T_sample], **kwargs: Any) -> None:
        if not issubclass(sample_type, Sample):
            raise ConfigError(f"sample_type={sample_type.__qualname__} does not derive from Sample.")
        self.__sample_type__ = sample_type
        super().__init__(path, **kwargs)


def _function(path: EPath, given: Any, name: str) -> Callable[..., Any]:
    """Returns a function that is given itself, or as FILE.py:FUNCTION in `.nv-meta`."""
    if callable(given):
        return given  # type: ignore[no-any-return]
    reference = given if ":" in given else f"{given}:{name}"
    # A program that makes a factory decides by itself. Where dataset.yaml names one, `read_recipe` has asked before.
    return load_function(EPath(path).storage_path, reference, allow_code=True)
