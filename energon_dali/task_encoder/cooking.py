"""Cookers, which make samples of crude samples: how they are chosen, and the stores of files that they receive."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload
from zlib import crc32

from energon_dali.cache import DecodeFileStore, FileStore, PrimaryFileStore, active_pool
from energon_dali.cache.file_store import FileStoreDecoder, StagingDecoder
from energon_dali.calls import explain_call, refuse_async
from energon_dali.errors import ConfigError, FatalSampleError
from energon_dali.samples.base import BASE_FIELDS, CrudeSample, SourceInfo

T_sample = TypeVar("T_sample")
PRIMARY = "primary"
CACHE = "cache"

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


class Auxiliaries:
    """Calls a cooker with the stores of its dataset; picklable.

    Args:
        cooker: The cooker that was selected for the dataset.
        cook: Called as cook(sample, aux=...) with the stores, and with `primary` and `cache` if the cooker asks.
        stores: Undecoded stores by name.
        decoder: Decodes files of the stores; None keeps bytes.

    Raises:
        ConfigError: The cooker asks for `primary`, and there is no such store; or a store has the name of the cache.
    """

    def __init__(
        self,
        cooker: Cooker[Any],
        cook: Callable[..., Any],
        stores: Mapping[str, FileStore[Any]],
        decoder: FileStoreDecoder | StagingDecoder | None,
    ) -> None:
        if cooker.need_cache and CACHE in stores:
            raise ConfigError(
                f"An auxiliary store is named {CACHE!r}, and the cooker {name_of(cooker)} asks for the cache pool "
                "under that name. Give the store another name."
            )
        if cooker.need_primary and PRIMARY not in stores:
            raise ConfigError(
                f"The cooker {name_of(cooker)} asks for `primary`, and its dataset has no random access by name. Use a "
                "cooker without need_primary, or name a store `primary` among the auxiliary ones."
            )
        self.cooker = cooker
        self.cook = cook
        self.stores = {
            name: store
            if decoder is None or isinstance(store, DecodeFileStore)
            else DecodeFileStore(store, decoder=decoder, name=name)
            for name, store in stores.items()
        }

    def check_arguments(self, dataset: str) -> None:
        """Raises an error if the cooker's function cannot be called with its stores.

        A function without a known signature passes.

        Args:
            dataset: Path of the dataset, for the message.

        Raises:
            ConfigError: The function does not take a store, or needs an argument that is not a store.
        """
        names = [*self.stores, *([CACHE] if self.cooker.need_cache else [])]
        try:
            # The signature of the wrapper: the wrapped function may take arguments that the wrapper adds.
            signature = inspect.signature(self.cooker.cook, follow_wrapped=False)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(None, **dict.fromkeys(names))
        except TypeError as error:
            given = ", ".join(["sample", *(f"{name}=..." for name in names)])
            raise ConfigError(
                f"The cooker {name_of(self.cooker)}{signature} cannot be called with ({given}), which is what the "
                f"dataset {dataset or '(unnamed)'} has for it: {error}. Give its arguments the names that the "
                "auxiliary stores have under `aux` of the dataset, add the missing store there, or let it take "
                "**stores. `primary` and `cache` are passed only to functions that ask for them: "
                "@cooker(need_primary=True)."
            ) from error

    @property
    def is_generator(self) -> bool:
        """Whether the cooker may make any number of samples of one crude sample."""
        cook = getattr(self.cook, "function", self.cook)
        return inspect.isgeneratorfunction(cook) or inspect.isgeneratorfunction(self.cooker.cook)

    def of_sample(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keyword arguments of the cooker for one sample."""
        seed = seed_of(sample)
        arguments: dict[str, Any] = {}
        for name, store in self.stores.items():
            if self.cooker.need_primary and name == PRIMARY:
                key = str(sample["__key__"])
                inner = store.for_sample(seed, key) if isinstance(store, DecodeFileStore) else store
                arguments[name] = PrimaryFileStore(inner, key)
            else:
                arguments[name] = store.for_sample(seed) if isinstance(store, DecodeFileStore) else store
        if self.cooker.need_cache:
            arguments[CACHE] = active_pool()
        return arguments


def seed_of(sample: Mapping[str, Any]) -> int:
    """Returns the seed of a crude sample: that of its parts, if it comes from a source."""
    if isinstance(sample, CrudeSample) and sample.seed is not None:
        return sample.seed
    return crc32(str(sample.get("__key__", "")).encode("utf-8", "surrogatepass"))


def cook_one(auxiliaries: Auxiliaries, sample: CrudeSample) -> Any:
    """Returns the sample that a cooker makes of a crude sample."""
    return _made(auxiliaries, auxiliaries.cook(sample, aux=auxiliaries.of_sample(sample)))


def cook_each(auxiliaries: Auxiliaries, sample: CrudeSample) -> Iterator[Any]:
    """Yields the samples that a cooker that is a generator function makes of a crude sample."""
    made = auxiliaries.cook(sample, aux=auxiliaries.of_sample(sample))
    for result in made if inspect.isgenerator(made) else (made,):
        yield _made(auxiliaries, result)


def _made(auxiliaries: Auxiliaries, result: Any) -> Any:
    """Returns the result of a cooker.

    Raises:
        FatalSampleError: It is None.
    """
    if result is None:
        raise FatalSampleError(
            f"The cooker {name_of(auxiliaries.cooker)} returned None. It must return the sample that it makes: check "
            "that every path through it ends with a return statement. To drop a sample, raise SkipSample() in it."
        )
    return result


def name_of(cooker: Cooker[Any]) -> str:
    """Returns the name of a cooker's function, for messages."""
    return str(getattr(cooker.cook, "__qualname__", cooker.cook))
