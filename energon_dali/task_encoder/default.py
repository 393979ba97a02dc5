"""Task encoders to start from: one that only defines types, and one that wraps another to change some of its hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_origin

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.samples.base import construct
from energon_dali.task_encoder.encoder import (
    HOOKS,
    MEASURE_HOOK,
    T_batch,
    T_encoded_sample,
    T_raw_batch,
    T_sample,
    TaskEncoder,
)
from energon_dali.task_encoder.stateless import stateless

_HOOKS = (*HOOKS, MEASURE_HOOK)
_ATTRIBUTES = ("cookers", "decoder", "measure_version", "__default_failure_tolerance__")
"""Attributes of an encoder that an AugmentTaskEncoder takes over."""


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Maps samples and batches to given types, field by field, by name.

    Args:
        encoded_sample_type: Type that `encode_sample` returns: a dataclass, a NamedTuple or dict; None keeps samples as
            they are. Ignored if a subclass overrides `preencode_sample` instead of `encode_sample`.
        raw_batch_type: Type that `batch` returns; None is the type of the samples.
        batch_type: Type that `encode_batch` returns; None keeps raw batches as they are.

    Raises:
        ConfigError: A type is not a class with fields.
    """

    @explain_call
    def __init__(
        self,
        *,
        encoded_sample_type: type[T_encoded_sample] | None = None,
        raw_batch_type: type[T_raw_batch] | None = None,
        batch_type: type[T_batch] | None = None,
    ) -> None:
        given: dict[str, Any] = {
            "encoded_sample_type": encoded_sample_type,
            "raw_batch_type": raw_batch_type,
            "batch_type": batch_type,
        }
        given = {name: get_origin(target) or target for name, target in given.items()}  # dict for dict[str, Tensor]
        for name, target in given.items():
            if target is not None and not _has_fields(target):
                known = getattr(target, "__name__", repr(target))
                raise ConfigError(f"{name}: {known} has no fields. Give a dataclass, a NamedTuple, or dict.")
        self._types: dict[str, type[Any] | None] = {
            "encode_sample": given["encoded_sample_type"],
            "batch": given["raw_batch_type"],
            "encode_batch": given["batch_type"],
        }

    @stateless
    def encode_sample(self, sample: T_sample) -> T_encoded_sample:
        """Returns the sample as `encoded_sample_type`.

        Raises:
            ConfigError: The type needs a field that the sample does not have.
        """
        return convert(sample, self._type("encode_sample"))  # type: ignore[no-any-return]

    @stateless
    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        """Returns a batch as `raw_batch_type`, made by `_batch`: by default each field by `generic_batch`.

        Raises:
            ConfigError: The type needs a field that the samples do not have.
        """
        result_type: Any = self._type("batch") or type(samples[0])
        return self._batch(samples, result_type)  # type: ignore[no-any-return]

    @stateless
    def encode_batch(self, batch: T_raw_batch) -> T_batch:
        """Returns the batch as `batch_type`.

        Raises:
            ConfigError: The type needs a field that the batch does not have.
        """
        return convert(batch, self._type("encode_batch"))  # type: ignore[no-any-return]

    def overrides(self, hook: str) -> bool:
        """Returns whether this encoder does anything in a hook: the hooks of this class do nothing without a type."""
        own = getattr(DefaultTaskEncoder, hook)
        if hook in self.__dict__ or getattr(type(self), hook) is not own or own is getattr(TaskEncoder, hook):
            return super().overrides(hook)
        if self._type(hook) is None:
            return False
        # As in Energon, an overridden preencode_sample takes the place of an encode_sample that only converts.
        return hook != "encode_sample" or not self.overrides("preencode_sample")

    def _type(self, hook: str) -> type[Any] | None:
        # The __init__ of a subclass may not call that of this class.
        types: dict[str, type[Any] | None] = getattr(self, "_types", {})
        return types.get(hook)


def _has_fields(target: object) -> bool:
    return isinstance(target, type) and (is_dataclass(target) or issubclass(target, dict) or hasattr(target, "_fields"))


def convert(value: Any, target: type[Any] | None) -> Any:
    """Returns a sample or batch as another type, with the fields of the same name.

    Args:
        value: A dataclass, dict or named tuple.
        target: A dataclass or NamedTuple, which takes the fields that it has; dict, which takes all; or None, which
            keeps the value.

    Raises:
        ConfigError: The target needs a field that the value does not have, or has no fields at all.
    """
    if target is None or type(value) is target:
        return value
    known = _fields_of_value(value)
    if is_dataclass(target):
        names = {field.name for field in fields(target) if field.init}
        return construct(target, {name: inner for name, inner in known.items() if name in names})
    if issubclass(target, dict):
        return target(known)
    if hasattr(target, "_fields"):
        missing = [name for name in target._fields if name not in known and name not in target._field_defaults]
        if missing:
            raise ConfigError(
                f"{target.__name__} needs the fields {missing}, which {type(value).__name__} ({sorted(known)}) does "
                "not have. Give them defaults, or override the hook."
            )
        return target(**{name: known[name] for name in target._fields if name in known})
    raise ConfigError(f"{target.__name__} has no fields. Give a dataclass, a NamedTuple, or dict.")


def _fields_of_value(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return dict(value._asdict())
    raise ConfigError(
        f"A {type(value).__name__} has no fields. Give a dataclass, dict or named tuple, or override the hook."
    )


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Behaves like another task encoder; override a hook, and call that of `self.task_encoder` inside.

    All hooks and attributes are the inner encoder's, unless the subclass defines them. A hook that neither defines
    needs no stage. Hooks of the inner encoder keep their marks (@stateless, tolerance) and may be generator functions.

    Args:
        task_encoder: The inner encoder.

    Raises:
        ConfigError: It is not a task encoder.
    """

    @explain_call
    def __init__(self, task_encoder: TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]) -> None:
        if not isinstance(task_encoder, TaskEncoder):
            raise ConfigError(
                f"{type(self).__name__} wraps {task_encoder!r}, which is not an instance of TaskEncoder. Give an "
                "instance of the inner encoder, not its class."
            )
        self.task_encoder = task_encoder
        # Bound hooks on the instance, not methods that call them: an inner generator function remains one.
        for name in (*_HOOKS, *_ATTRIBUTES):
            if not self._defines(name):
                setattr(self, name, getattr(task_encoder, name))

    @property
    def _task_encoder(self) -> TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]:
        """The inner encoder, by its name in Energon."""
        return self.task_encoder

    @_task_encoder.setter
    def _task_encoder(self, inner: TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]) -> None:
        self.task_encoder = inner

    def overrides(self, hook: str) -> bool:
        """Returns whether the subclass or the inner encoder does anything in a hook."""
        return self._defines(hook) or self.task_encoder.overrides(hook)

    def _defines(self, name: str) -> bool:
        """Returns whether a subclass of AugmentTaskEncoder defines a hook or attribute."""
        for cls in type(self).__mro__:
            if cls is AugmentTaskEncoder:
                return False
            if name in cls.__dict__:
                return True
        return False

    def __getstate__(self) -> dict[str, Any]:
        # Hooks are bound to the inner encoder again when unpickled, so that there is one inner encoder, not several.
        return {name: value for name, value in self.__dict__.items() if name not in _HOOKS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in _HOOKS:
            if not self._defines(name):
                setattr(self, name, getattr(self.task_encoder, name))


def _inner_hook(name: str) -> Callable[..., Any]:
    """Returns a method that returns the result of the inner encoder's hook, for `super()` in a subclass."""

    def hook(self: AugmentTaskEncoder[Any, Any, Any, Any], *args: Any, **options: Any) -> Any:
        return getattr(self.task_encoder, name)(*args, **options)

    hook.__name__, hook.__qualname__ = name, f"{AugmentTaskEncoder.__qualname__}.{name}"
    return hook


for _name in _HOOKS:
    setattr(AugmentTaskEncoder, _name, _inner_hook(_name))
