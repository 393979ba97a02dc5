"""The sample: a dataclass that knows its key, the way to make it again, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from typing_extensions import Self, dataclass_transform

from energon_dali.errors import ConfigError
from energon_dali.samples.transfer import pin

T = TypeVar("T")

BASE_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
"""The fields that every sample and every batch has."""


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """Returns the class as a dataclass with slots and keyword-only fields, as all samples are."""
    return dataclass(slots=True, kw_only=True)(cls)


# Not frozen: Lightning goes through batches and refuses frozen dataclasses where it trains in bf16-true or 64-true.
@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class SourceInfo:
    """Where a part of a sample was read."""

    dataset_path: str
    """Path or URL of the dataset."""
    index: str | int
    """Number of the sample in its whole dataset, over all shards and split parts; or its name in an auxiliary store."""
    shard_name: str
    """Shard inside the dataset; the file's name for an auxiliary store."""
    file_names: tuple[str, ...]
    """Files inside the shard."""

    def __reduce__(self) -> tuple[Any, ...]:
        # One travels with every sample: as plain arguments it takes a third of the time that a dataclass's fields do.
        return _make_source, (self.dataset_path, self.index, self.shard_name, self.file_names)


def _make_source(dataset_path: str, index: str | int, shard_name: str, file_names: tuple[str, ...]) -> SourceInfo:
    return SourceInfo(dataset_path=dataset_path, index=index, shard_name=shard_name, file_names=file_names)


@edataclass
class Sample:
    """The fields of every sample; kinds of samples derive from it and add theirs."""

    __key__: str
    """Name of the sample, unique in its dataset."""
    __restore_key__: tuple[Any, ...]
    """The way to make this very element again, for `restore_sample`."""
    __subflavors__: dict[str, Any] | None = None
    """What the configuration says about its dataset; one dict shared by all samples of the dataset."""
    __sources__: tuple[SourceInfo, ...] | None = None
    """Where its data was read."""

    @classmethod
    def derive_from(cls, base_sample: Sample, **fields_: Any) -> Self:
        """Returns a sample of this class with the base fields of another, and new fields.

        Args:
            base_sample: Gives `__key__`, `__restore_key__`, `__subflavors__` and `__sources__`, where not given anew.
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
        """Returns the sample that several datasets make together.

        Args:
            *samples: One per dataset, the primary one first; None where a dataset has no match. Key and subflavors
                are the primary's, the sources of all are put together, and of equal fields the last one counts.

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

    def pin_memory(self) -> Self:
        """Returns the sample with its CPU tensors in pinned memory (copies); itself where there is no CUDA device."""
        return pin(self)


class CrudeSample(dict[str, Any]):
    """A sample as a dict of its parts, to be made into a Sample by a cooker.

    Besides the parts it holds `__key__`, `__shard__`, `__restore_key__`, `__subflavors__` and `__sources__`.
    """

    seed: int | None = None
    """Seed of its random operations, a function of (seed, sample, epoch); None where no source gave it one."""


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
            f"{cls.__name__} cannot be made: missing fields {missing}, unknown fields {unknown}. It has the fields "
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
            f"{kind.__name__}.extend was given a {type(src).__name__}, which is no base class of it. Use "
            f"{kind.__name__}.derive_from(...), which takes the base fields only."
        )
    return construct(kind, {**{field.name: getattr(src, field.name) for field in fields(src)}, **fields_})
