"""Cookers: functions that make a Sample of a crude sample, selected by the subflavors of its dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from energon_dali.calls import explain_call, refuse_async
from energon_dali.errors import ConfigError
from energon_dali.samples.base import BASE_FIELDS, SourceInfo

T_sample = TypeVar("T_sample")
F = TypeVar("F", bound=Callable[..., Any])


@explain_call
@dataclass(frozen=True)
class Cooker(Generic[T_sample]):
    """A function that makes a sample of a crude sample, and the datasets that it applies to."""

    cook: Callable[..., T_sample]
    """Called as cook(sample, **auxiliary stores); mark it @stateless to make samples restorable."""
    has_subflavors: Mapping[str, Any] | None = None
    """Subflavors that a dataset must have for this cooker; None matches every dataset."""

    def __post_init__(self) -> None:
        refuse_async(self.cook)

    def is_match(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Returns whether this cooker applies to datasets with these subflavors."""
        if self.has_subflavors is None:
            return True
        known = subflavors or {}
        return all(name in known and known[name] == value for name, value in self.has_subflavors.items())

    @property
    def need_primary(self) -> bool:
        """Whether the function asks for `primary`, random access to its own dataset."""
        return bool(getattr(self.cook, "__cook_need_primary__", False))

    @property
    def need_cache(self) -> bool:
        """Whether the function asks for `cache`, the pool that prefetches files."""
        return bool(getattr(self.cook, "__cook_need_cache__", False))


@overload
def cooker(fn: F) -> F: ...


@overload
def cooker(fn: None = None, *, need_cache: bool = False, need_primary: bool = False) -> Callable[[F], F]: ...


def cooker(fn: F | None = None, *, need_cache: bool = False, need_primary: bool = False) -> F | Callable[[F], F]:
    """Marks a cook function that takes more arguments; use as `@cooker` or `@cooker(need_cache=True)`.

    Args:
        fn: The function.
        need_cache: Call it with `cache=...`, the pool that prefetches files.
        need_primary: Call it with `primary=...`, random access to the crude sample's own dataset.
    """

    def mark(function: F) -> F:
        marked: Any = function
        marked.__cook_need_cache__ = need_cache
        marked.__cook_need_primary__ = need_primary
        return marked  # type: ignore[no-any-return]

    return mark if fn is None else mark(fn)


def get_cooker_need_cache(fn: Callable[..., Any]) -> bool:
    """Returns whether a cook function takes `cache`."""
    return bool(getattr(fn, "__cook_need_cache__", False))


def get_cooker_need_primary(fn: Callable[..., Any]) -> bool:
    """Returns whether a cook function takes `primary`."""
    return bool(getattr(fn, "__cook_need_primary__", False))


def choose_cooker(
    cookers: Sequence[Cooker[Any]], subflavors: Mapping[str, Any] | None, dataset: str = ""
) -> Cooker[Any]:
    """Returns the first cooker that matches a dataset.

    Args:
        cookers: Cookers of the task encoder, in order.
        subflavors: Subflavors of the dataset.
        dataset: Path of the dataset, for the message.

    Raises:
        ConfigError: None matches, or the cookers are not a list of cookers.
    """
    known: Any = cookers
    if not isinstance(known, (list, tuple)) or not all(isinstance(candidate, Cooker) for candidate in known):
        raise ConfigError(
            f"cookers={cookers!r} is invalid: give a list of Cooker objects, such as cookers = [Cooker(function)]."
        )
    for candidate in cookers:
        if candidate.is_match(subflavors):
            return candidate
    wanted = "; ".join(str(dict(candidate.has_subflavors or {})) for candidate in cookers) or "none at all"
    raise ConfigError(
        f"The dataset {dataset or '(unnamed)'} yields crude samples with the subflavors {dict(subflavors or {})}, "
        f"and no cooker matches them; the task encoder's cookers need: {wanted}. Add Cooker(function, "
        "has_subflavors=...) to `cookers`, or one without has_subflavors, which matches every dataset; or override "
        "cook_crude_sample(self, sample), which needs no cooker."
    )


def basic_sample_keys(
    crude_sample: Mapping[str, Any], additional_source_info: Sequence[SourceInfo] = ()
) -> dict[str, Any]:
    """Returns the base fields of a crude sample, as keyword arguments for the sample that is made of it.

    Args:
        crude_sample: The crude sample.
        additional_source_info: Further sources, such as those of auxiliary files.
    """
    base = {name: crude_sample[name] for name in BASE_FIELDS if name in crude_sample}
    if additional_source_info:
        base["__sources__"] = (*(base.get("__sources__") or ()), *additional_source_info)
    return base
