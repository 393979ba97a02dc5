"""Functions and mixins of Energon about single samples: their keys, sources, text, memory and failures."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from typing_extensions import Self

from energon_dali.errors import ConfigError, FatalSampleError, SkipSample, StateError
from energon_dali.samples.base import SourceInfo
from energon_dali.samples.description import describe
from energon_dali.samples.transfer import map_tensors

T = TypeVar("T")


class PinMemoryMixin:
    """Gives a class `pin_memory`, which loaders call."""

    def _pin_memory(self, batch: T, device: torch.device | str | None = None) -> T:
        """Returns a nested value with its CPU tensors in page-locked memory.

        Args:
            batch: A tensor, or dicts, lists, tuples and dataclasses of tensors.
            device: Has no effect.
        """
        return map_tensors(batch, lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)

    def pin_memory(self) -> Self:
        """Returns the same with its CPU tensors in page-locked memory."""
        return self._pin_memory(self)


class ExtendableDataclassMixin:
    """Gives a dataclass `extend`."""

    @classmethod
    def extend(cls, src: Any, **kwargs: Any) -> Self:
        """Returns an object with the fields of one of a base class, and further fields.

        Args:
            src: The object of the base class.
            **kwargs: Fields that it lacks, or that replace its own.

        Raises:
            ConfigError: This is not a dataclass, or does not derive from the class of `src`.
        """
        if not hasattr(cls, "__dataclass_fields__") or not issubclass(cls, type(src)):
            raise ConfigError(f"{cls.__name__} must be a dataclass that derives from {type(src).__name__}.")
        values = {field.name: getattr(src, field.name) for field in dataclasses.fields(src) if field.init}
        return cls(**{**values, **kwargs})


def get_sample_restore_key(sample: Any) -> Any:
    """Returns the restore key of a sample, batch or dict; None if it has none."""
    if isinstance(sample, dict):
        return sample.get("__restore_key__")
    return getattr(sample, "__restore_key__", None)


def set_sample_restore_key(sample: T, *key: int | str, src: Any, fail_otherwise: bool = False) -> T:
    """Sets the restore key of a sample to (class name of `src`, *key), and returns the sample.

    Raises:
        ConfigError: The sample has no restore key, and `fail_otherwise` is True.
    """
    return _with_key(sample, (type(src).__name__, *key), fail_otherwise)


def add_sample_restore_key(sample: T, *key: int | str, src: Any, fail_otherwise: bool = False) -> T:
    """Puts (class name of `src`, *key) in front of the restore key of a sample, and returns the sample.

    Raises:
        ConfigError: The sample has no restore key, and `fail_otherwise` is True.
    """
    return _with_key(sample, (type(src).__name__, *key, *(get_sample_restore_key(sample) or ())), fail_otherwise)


def _with_key(sample: T, key: tuple[Any, ...], fail_otherwise: bool) -> T:
    if isinstance(sample, dict) and "__restore_key__" in sample:
        sample["__restore_key__"] = key
    elif not isinstance(sample, dict) and hasattr(sample, "__restore_key__"):
        object.__setattr__(sample, "__restore_key__", key)  # frozen dataclasses as well
    elif fail_otherwise:
        raise ConfigError(f"A {type(sample).__name__} has no __restore_key__. Return a Sample, Batch or crude dict.")
    return sample


def add_source_info(sample: Any, *source_infos: SourceInfo) -> Any:
    """Adds sources to a sample, and returns it."""
    if isinstance(sample, dict):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), *source_infos)
    elif hasattr(sample, "__sources__"):
        object.__setattr__(sample, "__sources__", (*(sample.__sources__ or ()), *source_infos))
    return sample


def get_source_info(sample: Any) -> list[SourceInfo] | None:
    """Returns the sources of a sample, or of a list of samples; None if there are none."""
    found: list[SourceInfo] = []
    for one in sample if isinstance(sample, list) else [sample]:
        sources = one.get("__sources__") if isinstance(one, dict) else getattr(one, "__sources__", None)
        found += sources or ()
    return found or None


def default_get_batch_keys(batch: Any) -> list[str] | None:
    """Returns the keys of the samples of a batch, None if it has none."""
    if isinstance(batch, list):
        batch = batch[0]
    for name in ("__key__", "__keys__", "keys"):
        found = batch.get(name) if isinstance(batch, dict) else None if name == "keys" else getattr(batch, name, None)
        if isinstance(found, list) and all(isinstance(key, str) for key in found):
            return found
    return None


def format_sample_compact(sample: Any, depth: int = 3, max_items: int = 10, max_str_len: int = 50) -> str:
    """Returns a sample as a short text: shapes instead of data.

    Args:
        sample: Anything.
        depth: Has no effect: the depth is bounded.
        max_items: Has no effect: the number of items is bounded.
        max_str_len: Has no effect: the length of texts is bounded.
    """
    return " ".join(describe(sample).split())


def format_sample_detailed(sample: Any, **options: Any) -> str:
    """Returns a sample as a text of several lines: shapes instead of data.

    Args:
        sample: Anything.
        **options: Energon's limits, which have no effect: the text is bounded.
    """
    return describe(sample)


def legacy_handler(handler: Callable[..., None]) -> Callable[[Exception, Any, Any], None]:
    """Returns an error handler with three arguments, also for an older one with two."""
    if len(inspect.signature(handler).parameters) >= 3:
        return handler
    return lambda exception, sample, sources: handler(exception, sample)


Handler = Callable[[Exception, Any, Any], None]

SYSTEM_EXCEPTIONS = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
    FatalSampleError,
)
"""Errors that the next sample would meet too; a NameError is also an UnboundLocalError."""


@dataclasses.dataclass(eq=False)
class ErrorContext:
    """Counts consecutive failures of an operation.

    Args:
        name: What is done, for messages.
        handler: Called with (exception, sample, sources) for every failure; None calls nothing.
        tolerance: Consecutive failures after which the run ends; 0 is unlimited.
    """

    name: str
    handler: Handler | None
    tolerance: int = 100
    _failures: int = dataclasses.field(default=0, init=False)

    def reset(self) -> None:
        """Counts from 0 again."""
        self._failures = 0

    @contextmanager
    def handle_errors(self, sample: Any) -> Iterator[None]:
        """Catches and counts errors in the block; success resets the count. SkipSample is silent.

        Args:
            sample: What is worked on, for messages.

        Raises:
            FatalSampleError: The tolerance is used up, or the error would repeat for every sample.
        """
        try:
            yield
            self._failures = 0
        except SkipSample:
            return
        except SYSTEM_EXCEPTIONS as error:
            raise FatalSampleError.from_sample(
                sample, f"{self.name} failed with {type(error).__name__}: {error}. It would fail for every sample."
            ) from error
        except Exception as error:
            if self.handler is not None:
                self.handler(error, sample, get_source_info(sample))
            self._failures += 1
            if 0 < self.tolerance <= self._failures:
                raise FatalSampleError.from_sample(
                    sample, f"{self.name} failed {self._failures} times in a row: correct the code or the data."
                ) from error

    def __repr__(self) -> str:
        return f"ErrorContext(name={self.name!r}, tolerance={self.tolerance}, count={self._failures})"


@contextmanager
def handle_restore_errors(error_handler: Handler, sample: Any) -> Iterator[None]:
    """Passes errors in the block, in which a sample is made again, to a handler.

    Args:
        error_handler: Called with (exception, sample, sources).
        sample: The sample.

    Raises:
        FatalSampleError: The error would repeat for every sample.
    """
    try:
        yield
    except SYSTEM_EXCEPTIONS as error:
        raise FatalSampleError.from_sample(sample, str(error)) from error
    except SkipSample as error:
        skipped = StateError("A hook raised SkipSample when a sample was made again, but not the first time.")
        skipped.__cause__ = error
        error_handler(skipped, sample, get_source_info(sample))
    except Exception as error:
        error_handler(error, sample, get_source_info(sample))
