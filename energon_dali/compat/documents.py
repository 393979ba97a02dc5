"""Energon's small functions for documents: YAML, fields of parts, functions in files, `dataset.yaml`, shard names.

Energon's loader of one dataset is here as well, as it makes the factory that `dataset.yaml` describes.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from energon_dali.assembly.sample_loaders import instantiate
from energon_dali.compat.epath import EPath
from energon_dali.compat.factories import BaseCoreDatasetFactory, StandardWebdatasetFactory
from energon_dali.compat.other_factories import DefaultCrudeJsonlDatasetFactory
from energon_dali.compat.structs import EnergonDatasetType, get_dataset_type
from energon_dali.datasets.load_sample import parse_field_map
from energon_dali.errors import ConfigError, SampleException
from energon_dali.metadataset import loader
from energon_dali.metadataset.context import combine_shuffle_over_epochs
from energon_dali.samples.media_metadata import read_media_metadata
from energon_dali.shards.documents.braces import collapse_names
from energon_dali.shards.documents.yaml_text import parse_yaml
from energon_dali.shards.meta.document import META
from energon_dali.worker_config import WorkerConfig


class FieldAccessError(SampleException):
    """The sample has none of the paths of a field."""


def split_field_access(field_desc: str) -> list[list[str]]:
    """Returns the alternatives of a field: "jpg,json[a][0]" is [["jpg"], ["json", "a", "0"]].

    Raises:
        DatasetFormatError: It cannot be understood.
    """
    (alternatives,) = parse_field_map({"field": field_desc}).values()
    return [[access.part, *map(str, access.steps)] for access in alternatives]


def field_access(value: Any, field: list[list[str]]) -> Any:
    """Returns the value at the first path that exists.

    Args:
        value: Decoded parts by name.
        field: Alternatives, from `split_field_access`.

    Raises:
        FieldAccessError: No path exists.
    """
    for steps in field:
        found = value
        try:
            for step in steps:
                if isinstance(found, dict):
                    found = found[step]
                elif isinstance(found, list):
                    found = found[int(step)]
                else:
                    raise LookupError(step)
        except (LookupError, ValueError):
            continue
        return found
    raise FieldAccessError(f"None of {', '.join('.'.join(steps) for steps in field)} is in the sample.")


def load_yaml(stream: Any) -> Any:
    """Returns the content of a YAML document.

    Args:
        stream: Bytes, text, or an open file.

    Raises:
        DatasetFormatError: It is not valid, or exceeds the limits of documents.
    """
    content = stream.read() if hasattr(stream, "read") else stream
    return parse_yaml(content.encode() if isinstance(content, str) else bytes(content), "the document")


def load_yaml_json(path: str | os.PathLike[str] | EPath) -> Any:
    """Returns the content of a YAML or JSON file.

    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: It is not valid, or exceeds the limits of documents.
    """
    file = EPath(path)
    return parse_yaml(file.read_bytes(), file.url)


class ModuleLoader:
    """Runs Python files by their paths, each once."""

    def __init__(self) -> None:
        self._modules: dict[EPath, dict[str, Any]] = {}

    def __getitem__(self, path: str | os.PathLike[str] | EPath) -> dict[str, Any]:
        """Returns the names that a file defines."""
        file = EPath(path)
        if file not in self._modules:
            names: dict[str, Any] = {"__name__": file.name.removesuffix(".py"), "__file__": file.url}
            exec(compile(file.read_text(), file.url, "exec", dont_inherit=True), names)
            self._modules[file] = names
        return self._modules[file]

    def get_function(
        self,
        module_fn: str,
        default_fn_name: str | None = None,
        relative_path: str | os.PathLike[str] | EPath | None = None,
    ) -> Callable[..., Any]:
        """Returns a function of a file.

        Args:
            module_fn: FILE.py:FUNCTION, or FILE.py.
            default_fn_name: Name of the function where only the file is given.
            relative_path: Folder of the file; None is the current folder.

        Raises:
            ConfigError: No function is named, or the file has none of that name.
        """
        file, separator, name = module_fn.rpartition(":")
        if not separator:
            file, name = module_fn, default_fn_name or ""
        path = EPath(file) if relative_path is None else EPath(relative_path) / file
        function = self[path].get(name)
        if not callable(function):
            raise ConfigError(f"{path} has no function {name!r}. Name one as FILE.py:FUNCTION.")
        return function  # type: ignore[no-any-return]


def load_config(
    path: EPath | Mapping[str, Any],
    *,
    default_type: Any,
    default_kwargs: Mapping[str, Any] | None = None,
    parser: Any = None,
) -> Any:
    """Returns the object that a document describes. The document may import and call any class: trust it first.

    Args:
        path: The YAML file, or its content.
        default_type: Class of the object if the document names none.
        default_kwargs: Arguments that the document overrides.
        parser: Has no effect.

    Raises:
        DatasetFormatError: A class cannot be imported.
    """
    data, where = (path, "the document") if isinstance(path, Mapping) else (load_yaml_json(path), str(path))
    return instantiate({**(default_kwargs or {}), **data}, where, default_type)


def get_dataset_from_config(
    path: str | os.PathLike[str] | EPath,
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_part: str | None = None,
    training: bool = True,
    subflavors: Mapping[str, Any] | None = None,
    worker_config: Any,
    sample_type: type[Any] | None = None,
    **kwargs: Any,
) -> BaseCoreDatasetFactory[Any]:
    """Returns the factory of a dataset. Its `dataset.yaml` may import and call any class: trust it first.

    Args:
        path: The folder, or a JSONL file.
        dataset_config: Name of dataset.yaml.
        split_config: Name of the split file.
        split_part: Such as "train", the default.
        training: Whether samples are shuffled.
        subflavors: Override those of the dataset.
        worker_config: The job.
        sample_type: Class that its samples must have.
        **kwargs: Further arguments of the factory.

    Raises:
        ConfigError: The path is not a dataset, or its samples have another type.
    """
    folder = EPath(path)
    kind = get_dataset_type(folder)
    factory: BaseCoreDatasetFactory[Any]
    if kind is EnergonDatasetType.JSONL:
        factory = DefaultCrudeJsonlDatasetFactory(folder, training=training, worker_config=worker_config, **kwargs)
    elif kind is EnergonDatasetType.WEBDATASET:
        defaults = {
            "path": folder,
            "split_config": split_config,
            "split_part": split_part or "train",
            "training": training,
            "worker_config": worker_config,
            **kwargs,
        }
        factory = load_config(
            folder / META / (dataset_config or "dataset.yaml"),
            default_type=StandardWebdatasetFactory,
            default_kwargs=defaults,
        )
    else:
        raise ConfigError(
            f"{folder} is not a prepared dataset or a JSONL file. Run `energon-dali prepare "
            f"{shlex.quote(str(folder))}`."
        )
    factory.subflavors.update(subflavors or {})
    if sample_type is not None and not issubclass(factory.__sample_type__, sample_type):
        raise ConfigError(
            f"{folder} makes samples of type {factory.__sample_type__.__name__}, not {sample_type.__name__}."
        )
    return factory


def collapse(names: Sequence[str], keep_order: bool = True) -> list[str]:
    """Returns shard names with braces in place of runs of numbers, such as ["a_{000..099}.tar"].

    Args:
        names: The names.
        keep_order: Keep their order; False sorts them first.
    """
    return collapse_names(list(names) if keep_order else sorted(names))


def deserialize_media_metadata(metadata_type: Any, metadata_json: str) -> Any:
    """Returns the metadata of a row of the table of media.

    Args:
        metadata_type: "image" or "av", or a MediaMetadataType.
        metadata_json: The JSON of the row.

    Raises:
        DatasetFormatError: The row cannot be understood.
    """
    return read_media_metadata(str(getattr(metadata_type, "value", metadata_type)), metadata_json)


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
