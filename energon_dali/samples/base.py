"""Samples and batches: dataclasses with their keys, how to recreate them, and where their data was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from typing_extensions import Self, dataclass_transform

from energon_dali.errors import ConfigError, UntrustedCodeError
from energon_dali.samples.description import describe
from energon_dali.samples.transfer import attributes_of, move, pin

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Key = tuple[Any, ...]
"""The `__restore_key__` of an element: how to make it again."""

BASE_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
"""The fields that every sample and every batch has."""


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """Makes a class a dataclass with keyword-only fields, like all samples. It keeps a `repr` that its base class has.

    Instances take further attributes, which travel with them from hook to hook and between processes. Functions that
    make a new object of the fields leave them out: `dataclasses.replace`, `derive_from`, `extend`, and batching.
    """
    return dataclass(kw_only=True, repr=cls.__repr__ is object.__repr__)(cls)


# Not frozen: Lightning walks through batches, and rejects frozen dataclasses with precision bf16-true or 64-true.
@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class SourceInfo:
    """Where a part of a sample was read."""

    dataset_path: str
    """Path or URL of the dataset."""
    index: str | int
    """Index of the sample in its whole dataset, over all shards and split parts; or its name in an auxiliary store."""
    shard_name: str
    """Shard within the dataset; for an auxiliary store, the name of the file."""
    file_names: tuple[str, ...]
    """Files within the shard."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Every sample carries one: pickled as plain arguments it takes a third of the time of dataclass fields.
        return _make_source, (self.dataset_path, self.index, self.shard_name, self.file_names)


def _make_source(dataset_path: str, index: str | int, shard_name: str, file_names: tuple[str, ...]) -> SourceInfo:
    return SourceInfo(dataset_path=dataset_path, index=index, shard_name=shard_name, file_names=file_names)


@edataclass
class Sample:
    """Base class of samples, with the fields that every sample has."""

    __key__: str
    """Name of the sample, unique in its dataset."""
    __restore_key__: tuple[Any, ...]
    """Identifies this sample, so that `restore_sample` can recreate it."""
    __subflavors__: dict[str, Any] | None = None
    """Subflavors from the configuration of its dataset; one dict that all its samples share."""
    __sources__: tuple[SourceInfo, ...] | None = None
    """Where its data was read."""

    @classmethod
    def derive_from(cls, base_sample: Sample, **fields_: Any) -> Self:
        """Returns a sample of this class with the base fields of another, and new fields.

        Args:
            base_sample: Source of `__key__`, `__restore_key__`, `__subflavors__` and `__sources__`, unless given.
            **fields_: All other fields.

        Raises:
            ConfigError: A field is missing or unknown.
        """
        return construct(cls, {**{name: getattr(base_sample, name) for name in BASE_FIELDS}, **fields_})

    @classmethod
    def extend(cls, src: Sample, **fields_: Any) -> Self:
        """Returns a sample of this class with all fields of a sample of this or a base class, and new fields.

        Raises:
            ConfigError: `src` is of another kind, or a field is missing or unknown.
        """
        return extended(cls, src, fields_)

    @classmethod
    def from_joined(cls, *samples: Sample | None) -> Self:
        """Returns the sample that samples of several datasets make together.

        Args:
            *samples: One per dataset, the primary one first; None for a dataset without a match. Key and subflavors
                are those of the primary, the sources are concatenated, and of equal fields the last one is kept.

        Raises:
            ConfigError: There is no primary sample, or a field is missing or unknown.
        """
        if not samples or samples[0] is None:
            raise ConfigError("from_joined needs the primary dataset's sample as its first argument, and got none.")
        joined: dict[str, Any] = {}
        sources: tuple[SourceInfo, ...] = ()
        for sample in samples:
            if sample is not None:
                joined.update({f.name: getattr(sample, f.name) for f in fields(sample) if f.name not in BASE_FIELDS})
                sources += sample.__sources__ or ()
        return cls.derive_from(samples[0], __sources__=sources or None, **joined)

    def __repr__(self) -> str:
        return describe(self)

    def _repr_html_(self) -> str:
        from energon_dali.samples.cards import sample_card

        return sample_card(self, attributes_of(self))

    def pin_memory(self) -> Self:
        """Returns the sample with its CPU tensors copied to pinned memory; itself if there is no CUDA device."""
        return pin(self)


class CrudeSample(dict[str, Any]):
    """A sample as a dict of its parts, which a cooker makes a Sample.

    In addition to the parts it holds `__key__`, `__shard__`, `__restore_key__`, `__subflavors__` and `__sources__`.
    """

    seed: int | None = None
    """Seed of its random operations, a function of (seed, sample, epoch); None if no source set it."""
    refused: tuple[str, ...] = ()
    """Pickled parts, which are left out because the user did not allow code."""

    def __repr__(self) -> str:
        return f"CrudeSample({describe(dict(self))})"

    def _repr_html_(self) -> str:
        from energon_dali.samples.cards import sample_card

        return sample_card(self, self)

    def __missing__(self, name: str) -> NoReturn:
        """Called where a part is looked up that is not there."""
        if name in self.refused:
            raise UntrustedCodeError(
                f"The part {name!r} of sample {self.get('__key__')!r} is a Python pickle, which runs whatever code its "
                "writer put in when it is read. If you trust the writer, pass allow_code=True to "
                "get_train_dataset or get_val_dataset."
            )
        raise KeyError(name)


@edataclass
class Batch:
    """Base class of batches, with the fields that every batch has."""

    __key__: list[str]
    """Keys of the samples."""
    __restore_key__: tuple[Any, ...]
    """Identifies this batch, so that `restore_sample` can recreate it."""
    __subflavors__: list[dict[str, Any] | None] | None = None
    """Subflavors of each sample."""
    __sources__: tuple[SourceInfo, ...] | None = None
    """Where the data of all samples was read."""

    @classmethod
    def derive_from(cls, base_batch: Batch, **fields_: Any) -> Self:
        """Returns a batch of this class with the base fields of another, and new fields.

        Raises:
            ConfigError: A field is missing or unknown.
        """
        return construct(cls, {**{name: getattr(base_batch, name) for name in BASE_FIELDS}, **fields_})

    @classmethod
    def extend(cls, src: Batch, **fields_: Any) -> Self:
        """Returns a batch of this class with all fields of a batch of this or a base class, and new fields.

        Raises:
            ConfigError: `src` is of another kind, or a field is missing or unknown.
        """
        return extended(cls, src, fields_)

    @classmethod
    def from_samples(cls, samples: Sequence[Any], **overrides: Any) -> Self:
        """Returns a batch whose fields are lists of the fields of the samples with the same names.

        Args:
            samples: Samples (dataclasses or dicts) of one kind.
            **overrides: Fields that are used as given, such as `image=batch_stack([s.image for s in samples])`.

        Raises:
            ConfigError: A field is not given, is not a field of the samples, and has no default.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            name = field.name
            if name in overrides or not field.init:
                continue
            if name == "__sources__":
                values[name] = join_sources(samples)
            elif name == "__subflavors__" and not samples:
                values[name] = None
            elif all(has_field(sample, name) for sample in samples):
                column = [get_field(sample, name) for sample in samples]
                values[name] = tuple(column) if name == "__restore_key__" else column
            elif field.default is MISSING and field.default_factory is MISSING:
                raise ConfigError(
                    f"{cls.__name__} has the field {name!r}, which the samples ({type(samples[0]).__name__}) have not. "
                    f"Give it as {cls.__name__}.from_samples(samples, {name}=...), or give the field a default."
                )
        return construct(cls, {**values, **overrides})

    def __repr__(self) -> str:
        return describe(self)

    def _repr_html_(self) -> str:
        from energon_dali.samples.cards import sample_card

        return sample_card(self, attributes_of(self))

    def pin_memory(self) -> Self:
        """Returns the batch with its CPU tensors copied to pinned memory; itself if there is no CUDA device."""
        return pin(self)

    def to_device(self, device: torch.device | str | int, *, non_blocking: bool = True) -> Self:
        """Returns the batch with its tensors on a device; tensors that are already there are not copied.

        Args:
            device: Device to move to.
            non_blocking: Copy from pinned memory on the current CUDA stream without synchronizing.
        """
        return move(self, device, non_blocking)


# Remembered by type: DALI makes every check against an abstract class, such as Mapping, a call of several microseconds.
@lru_cache(maxsize=1024)
def _is_mapping(kind: Any) -> bool:
    return issubclass(kind, Mapping)


def has_field(sample: Any, name: str) -> bool:
    """Returns whether a sample (dataclass or dict) has a field."""
    return name in sample if _is_mapping(sample.__class__) else hasattr(sample, name)


def get_field(sample: Any, name: str) -> Any:
    """Returns a field of a sample (dataclass or dict)."""
    return sample[name] if _is_mapping(sample.__class__) else getattr(sample, name)


def get_restore_key(element: Any) -> Key:
    """Returns the key of a sample, batch or crude dict; () if it has none."""
    if isinstance(element, dict):
        return element.get("__restore_key__", ())  # type: ignore[no-any-return]
    return getattr(element, "__restore_key__", ())


def set_restore_key(element: Any, key: Key) -> Any:
    """Sets the key of an element, if it has a field for one, and returns the element.

    A dict gets no new field, because user code that iterates over its values does not expect one.
    """
    if isinstance(element, dict):
        if "__restore_key__" in element:
            element["__restore_key__"] = key
    elif hasattr(element, "__restore_key__"):
        object.__setattr__(element, "__restore_key__", key)  # frozen dataclasses as well
    return element


def add_attribute(element: Any, name: str, value: Any) -> None:
    """Adds an attribute to a sample or batch that has none of the name, unless it is a dict, tuple or list."""
    if not isinstance(element, (dict, tuple, list)) and hasattr(element, "__dict__") and not hasattr(element, name):
        object.__setattr__(element, name, value)  # frozen dataclasses as well


def join_sources(samples: Sequence[Any]) -> tuple[SourceInfo, ...] | None:
    """Returns the sources of all samples, concatenated; None if there are none."""
    known = [get_field(sample, "__sources__") for sample in samples if has_field(sample, "__sources__")]
    joined = tuple([source for sources in known for source in sources or ()])
    return joined or None


def construct(cls: type[T], values: dict[str, Any]) -> T:
    """Returns cls(**values).

    Raises:
        ConfigError: A field is missing or unknown; the message names it.
    """
    try:
        return cls(**values)
    except TypeError as error:
        known = [f for f in fields(cls) if f.init]  # type: ignore[arg-type]
        given = {f.name for f in known}
        needed = {f.name for f in known if f.default is MISSING and f.default_factory is MISSING}
        missing, unknown = sorted(needed - values.keys()), sorted(values.keys() - given)
        if not missing and not unknown:
            raise
        raise ConfigError(
            f"{cls.__name__} cannot be created: missing fields {missing}, unknown fields {unknown}. It has the fields "
            f"{sorted(given)}; give the missing ones, and leave out or declare the unknown ones."
        ) from error


def extended(kind: type[T], src: Any, fields_: Mapping[str, Any]) -> T:
    """Returns an instance with all fields of an instance of the same or a base class, and new fields.

    Args:
        kind: A dataclass.
        src: Instance of it, or of a base class.
        fields_: New fields, by name.

    Raises:
        ConfigError: `src` is of another kind, or a field is missing or unknown.
    """
    if not issubclass(kind, type(src)):
        raise ConfigError(
            f"{kind.__name__}.extend was given a {type(src).__name__}, which is not a base class of it. Use "
            f"{kind.__name__}.derive_from(...), which takes the base fields only."
        )
    return construct(kind, {**{field.name: getattr(src, field.name) for field in fields(src)}, **fields_})
