"""How `dataset.yaml` makes samples of parts, with classes and functions instead of their names.

Besides, the loaders of special samples: those that a class of the program makes, and joined ones.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, Protocol

from energon_dali.datasets.load_sample import SampleLoader, part_seed
from energon_dali.datasets.metrics import Metrics
from energon_dali.decode.interface import Placement
from energon_dali.decode.media_decoder import part_context
from energon_dali.errors import ConfigError, DatasetFormatError, SkipSample
from energon_dali.metadataset.join.joined_reader import JoinedRaw
from energon_dali.samples.base import BASE_FIELDS, CrudeSample, Key, Sample, SourceInfo, set_restore_key
from energon_dali.samples.kinds import sample_kind
from energon_dali.shards import RawSample, WebdatasetFolder, resolve_part_filter, resolve_sample_loader
from energon_dali.shards.meta.dataset_config import (
    CRUDE,
    ORDER_KEYS,
    SAMPLE_TYPES,
    own_class,
    own_factory,
    subflavors_of,
)
from energon_dali.shards.meta.sample_loader import check_code_allowed


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


def instantiate(data: Any, where: str, default_type: Any = None) -> Any:
    """Returns what plain values of a trusted document describe.

    A mapping with `__class__` or `__function__` becomes what is made of its other values, or the class or function
    itself if there are none.

    Args:
        data: The values.
        where: The document, for the message.
        default_type: Made of the outermost mapping if it names no class; None keeps the mapping.

    Raises:
        DatasetFormatError: A class or function cannot be imported.
    """
    if isinstance(data, list):
        return [instantiate(item, where) for item in data]
    if not isinstance(data, Mapping):
        return data
    named = data.get("__class__") or data.get("__function__")
    kind = default_type
    if named is not None:
        module = data.get("__module__", "megatron.energon")
        try:
            kind = getattr(importlib.import_module(module), named)
        except (ImportError, AttributeError) as error:
            raise DatasetFormatError(
                f"{where} names {module}.{named}, which cannot be imported ({error}). Install or correct it."
            ) from error
    own = {key: value for key, value in data.items() if key not in ("__module__", "__class__", "__function__")}
    values = {key: instantiate(value, where) for key, value in own.items()}
    if kind is None:
        return values
    return kind(**values) if default_type is not None or values else kind


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

    def prepare_workers(self) -> None:
        for load in self.loaders:
            load.prepare_workers()

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


_NO_SAMPLES = (
    f"cannot make samples: it does not take {', '.join(BASE_FIELDS)} as arguments. Give a class that derives from "
    "energon_dali.Sample, such as CaptioningSample, or CrudeSample, which keeps all parts as a dict."
)


@dataclass(frozen=True)
class SampleRecipe:
    """How the samples of one dataset are made of their parts."""

    sample_type: type[Any]
    """Class of the samples; CrudeSample keeps all parts as a dict."""
    field_map: Mapping[str, str] | None = None
    """Parts by field name."""
    sample_loader: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Returns the fields of a sample, given its decoded parts."""
    part_filter: Callable[[str], bool] | None = None
    """Selects the parts that the sample loader or cooker needs; None takes those of the field map, or all."""
    subflavors: dict[str, Any] = field(default_factory=dict)
    """Put into every sample."""
    factory: type[SampleFactory] | None = None
    """A class of the program that makes the samples instead."""
    factory_options: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments in dataset.yaml."""
    order: Mapping[str, Any] = field(default_factory=dict)
    """What dataset.yaml says about the order of the samples: names and values of `ORDER_KEYS`."""


def read_recipe(
    folder: WebdatasetFolder, sample_type: type[Any] | None = None, field_map: Mapping[str, str] | None = None
) -> SampleRecipe:
    """Returns how a dataset makes its samples.

    Args:
        folder: The dataset.
        sample_type: Overrides the class of dataset.yaml.
        field_map: Overrides the field map (or sample loader) of dataset.yaml.

    Raises:
        ConfigError: `sample_type` cannot be the class of samples, or the samples have no fields for `field_map`.
        DatasetFormatError: dataset.yaml is missing or malformed.
        UntrustedCodeError: It names or contains code that the user did not allow.
    """
    if sample_type is not None and not _takes_base_fields(sample_type):
        raise ConfigError(f"sample_type={sample_type!r} {_NO_SAMPLES}")
    if sample_type is not None and field_map is not None:
        check_fields(sample_type, field_map, "field_map=")
        config = folder.unchecked_config()
        subflavors = subflavors_of(config, f"dataset.yaml of {folder.path}")
        return SampleRecipe(sample_type, field_map, subflavors=subflavors, order=_order_of(config))
    config = folder.dataset_config
    order = _order_of(config)
    factory = own_factory(config)
    if field_map is not None and factory in (None, CRUDE):
        reason = "makes crude samples" if factory else f"names the class {config['__class__']}, which makes the samples"
        raise ConfigError(
            f"field_map={dict(field_map)!r} does not fit: dataset.yaml of {folder.path} {reason}. Leave it out, and "
            "write field_map in dataset.yaml of the datasets that need it; or also give sample_type=."
        )
    if sample_type is None and factory is None:
        kind = import_factory(config, folder.path)
        own = {name: value for name, value in config.items() if name not in ("__module__", "__class__")}
        for name in ("sample_loader", "part_filter"):  # those of Energon run them without asking
            reference = own.get(name)
            if isinstance(reference, str) and not folder.allow_code:
                reference = reference if ":" in reference else f"{reference}:{name}"
                check_code_allowed(folder.root, reference, allow_code=False)
        own = instantiate(own, f"dataset.yaml of {folder.path}")
        return SampleRecipe(kind.__sample_type__, factory=kind, factory_options=own, order=order)
    subflavors = dict(config.get("subflavors") or {})
    if factory == CRUDE and sample_type is None:
        return SampleRecipe(CrudeSample, part_filter=resolve_part_filter(folder), subflavors=subflavors, order=order)
    chosen = sample_type or _sample_class(config, folder)
    if field_map is not None or "field_map" in config:
        if field_map is None:
            check_fields(chosen, config["field_map"], f"field_map in dataset.yaml of {folder.path}")
        else:
            check_fields(chosen, field_map, "field_map=")
        return SampleRecipe(chosen, field_map or config["field_map"], subflavors=subflavors, order=order)
    functions = resolve_sample_loader(folder)
    if functions is None:
        raise DatasetFormatError(
            f"dataset.yaml of {folder.path} has neither a field_map nor a sample_loader for {chosen.__name__}. Add a "
            "field_map, or pass field_map={field: part}."
        )
    return SampleRecipe(
        chosen, sample_loader=functions[0], part_filter=functions[1], subflavors=subflavors, order=order
    )


def _order_of(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in sorted(ORDER_KEYS & config.keys())}


def check_fields(sample_type: type[Any], field_map: Mapping[str, str], where: str) -> None:
    """Checks that a field map has the fields of a dataclass; any other class takes what it is given.

    Args:
        sample_type: The class.
        field_map: Parts by field name.
        where: Where it was given, for the message.

    Raises:
        DatasetFormatError: It has fields that the dataclass lacks, or lacks fields that it needs.
    """
    if not is_dataclass(sample_type):
        return
    known = [item for item in fields(sample_type) if item.init]
    needed = {item.name for item in known if item.default is MISSING and item.default_factory is MISSING}
    unknown = sorted(field_map.keys() - {item.name for item in known})
    missing = sorted(needed - field_map.keys() - set(BASE_FIELDS))
    if unknown or missing:
        wrong = [f"has the unknown fields {unknown}"] * bool(unknown) + [f"lacks {missing}"] * bool(missing)
        raise DatasetFormatError(
            f"{where} does not fit {sample_type.__name__}: it {' and '.join(wrong)}. "
            f"The fields are {sorted({item.name for item in known} - set(BASE_FIELDS))}; correct the map, or "
            "choose another sample type."
        )


def _sample_class(config: Mapping[str, Any], folder: WebdatasetFolder) -> type[Any]:
    """Returns the class that `sample_type` names: ours of that name, or any other if the user allows imports."""
    kind = config["sample_type"]
    name = kind["__class__"]
    own = sample_kind(name) if own_class(kind, SAMPLE_TYPES) else None
    if own is not None:
        return own
    # dataset.yaml was checked when it was read: other names reach this line only with allow_imports=True.
    try:
        found = getattr(importlib.import_module(kind["__module__"]), name)
    except (ImportError, AttributeError, KeyError) as error:
        raise DatasetFormatError(
            f"dataset.yaml of {folder.path} names the sample type {kind.get('__module__')}.{name}, which cannot be "
            f"imported ({error}). Install or correct it, or pass sample_type=."
        ) from error
    if not _takes_base_fields(found):
        raise DatasetFormatError(
            f"dataset.yaml of {folder.path} names the sample type {kind['__module__']}.{name}, which {_NO_SAMPLES}"
        )
    return found  # type: ignore[no-any-return]


def _takes_base_fields(kind: Any) -> bool:
    """Returns whether a class can be called with the fields that every sample has, as keywords."""
    base = dict.fromkeys(BASE_FIELDS)
    try:
        inspect.signature(kind).bind_partial(**base)
    except TypeError:
        return False
    except ValueError:  # a class in C without a signature, such as int or dict
        try:
            kind(**base)
        except TypeError:
            return False
    return True
