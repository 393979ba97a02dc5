"""The batch: what a task encoder makes of several samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from energon_dali.errors import ConfigError
from energon_dali.samples.base import BASE_FIELDS, SourceInfo, construct, edataclass, extended
from energon_dali.samples.transfer import move, pin

if TYPE_CHECKING:
    import torch


@edataclass
class Batch:
    """The fields of every batch; batches derive from it and add theirs."""

    __key__: list[str]
    """Keys of the samples."""
    __restore_key__: tuple[Any, ...]
    """The way to make this very batch again, for `restore_sample`."""
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
        """Returns a batch whose fields are lists of the samples' fields of the same name.

        Args:
            samples: Samples (dataclasses or dicts) of one kind.
            **overrides: Fields that are given as they are, such as `image=batch_stack([s.image for s in samples])`.

        Raises:
            ConfigError: A field is neither given, nor a field of the samples, nor has a default.
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

    def pin_memory(self) -> Self:
        """Returns the batch with its CPU tensors in pinned memory (copies); itself where there is no CUDA device."""
        return pin(self)

    def to_device(self, device: torch.device | str | int, *, non_blocking: bool = True) -> Self:
        """Returns the batch with its tensors on a device; tensors that are there already are shared.

        Args:
            device: Where to.
            non_blocking: Copy from pinned memory on the current CUDA stream, without waiting for it.
        """
        return move(self, device, non_blocking)


def has_field(sample: Any, name: str) -> bool:
    """Returns whether a sample, dataclass or dict, has a field."""
    return name in sample if isinstance(sample, Mapping) else hasattr(sample, name)


def get_field(sample: Any, name: str) -> Any:
    """Returns a field of a sample, dataclass or dict."""
    return sample[name] if isinstance(sample, Mapping) else getattr(sample, name)


def join_sources(samples: Sequence[Any]) -> tuple[SourceInfo, ...] | None:
    """Returns the sources of all samples, one after the other; None if there are none."""
    known = [get_field(sample, "__sources__") for sample in samples if has_field(sample, "__sources__")]
    joined = tuple([source for sources in known for source in sources or ()])
    return joined or None
