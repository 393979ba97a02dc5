"""What all front ends share, of images, videos and audio: the processors they are for, and their fields as values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from typing_extensions import Self

from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class ProcessorFamily(ABC):
    """Base of front ends: frozen dataclasses, each for the processors of one family of models."""

    dtype: Any
    """Type of the values, as a name."""

    family: ClassVar[str]
    """Name of the family, for messages and `config`."""
    processors: ClassVar[tuple[str, ...]]
    """Classes of transformers that it stands for, without the suffixes of their backends."""
    around: ClassVar[tuple[str, ...]] = ()
    """Classes of processors around them, of models whose text differs: the family is for these alone. Empty: for all
    that no other family is for."""
    model_keys: ClassVar[tuple[str, ...]]
    """Keys of `collate` that the model's forward takes."""
    unused_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of a configuration that the processors do not read, whatever their values."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        """Returns the front end for a processor's configuration; takes every value that changes the result.

        Raises:
            ConfigError: A value is not supported.
        """

    def batches_with(self, other: Any) -> bool:
        """Returns whether a batch may hold inputs of this front end and of another."""
        return bool(self == other)

    def with_fields(self, **fields: Any) -> Self:
        """Returns a copy with some fields changed.

        Raises:
            ConfigError: There is no such field, or its value is invalid.
        """
        try:
            return replace(self, **fields)  # type: ignore[type-var]
        except TypeError as error:
            names = ", ".join(field.name for field in dataclass_fields(self))  # type: ignore[arg-type]
            raise ConfigError(f"{type(self).__name__} has no such field: {error}. Its fields are {names}.") from error

    def config(self) -> dict[str, Any]:
        """Returns family and fields as plain values."""
        return {"family": self.family, **asdict(self)}  # type: ignore[call-overload]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


def check_text(text: object) -> None:
    """Refuses anything but a str as the text of `expand_text`.

    Raises:
        ConfigError: It is something else, such as the ids of tokens.
    """
    if not isinstance(text, str):
        raise ConfigError(f"text={text!r} is invalid: give a str, in which the placeholders are not expanded yet.")


def checked_layouts(layouts: Iterable[T], kind: type[T]) -> list[T]:
    """Returns the layouts that `expand_text` was given, as a list.

    Args:
        layouts: Of the media of a text.
        kind: Class of each.

    Raises:
        ConfigError: They are no list of layouts.
    """
    given: object = layouts
    found = list(layouts) if isinstance(given, Iterable) else None
    if found is None or not all(isinstance(one, kind) for one in found):
        raise ConfigError(
            f"layouts={given if found is None else found!r} is invalid: give a list with the {kind.__name__} of each "
            "placeholder, such as [handle.layout for handle in handles]."
        )
    return found


def expand_placeholders(text: str, token: str, replacements: Sequence[str], noun: str) -> str:
    """Returns a text with each placeholder replaced.

    Args:
        text: With one placeholder for each replacement.
        token: The placeholder.
        replacements: In the order of the text.
        noun: What they stand for, in the plural, for the message.

    Raises:
        ConfigError: The text has more or fewer placeholders.
    """
    pieces = text.split(token)
    if len(pieces) != len(replacements) + 1:
        raise ConfigError(
            f"The text has {len(pieces) - 1} {token!r}, and there are {len(replacements)} {noun}. Write one for each."
        )
    return "".join(piece + following for piece, following in zip(pieces, [*replacements, ""], strict=True))
