"""The values of a config as the types that parameters are annotated with."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from energon_dali.calls import describe_nearest
from energon_dali.errors import ConfigError, EnergonDaliError


def takes_module(target: Callable[..., Any], name: str) -> bool:
    """Returns whether a parameter of a target, or of the base class it passes its arguments to, is a module."""
    from torch import nn

    annotation = annotation_of(target, name)
    kinds = typing.get_args(annotation) or (annotation,)
    return any(isinstance(kind, type) and issubclass(kind, nn.Module) for kind in kinds)


def annotation_of(target: Callable[..., Any], name: str) -> Any:
    """Returns the type that a parameter is annotated with, `inspect.Parameter.empty` where there is none.

    A class that takes `**kwargs` passes them to its base classes, so their annotations count as well.
    """
    functions: list[Any] = [target]
    if isinstance(target, type):
        functions = [vars(base)["__init__"] for base in inspect.getmro(target) if "__init__" in vars(base)]
    for function in functions:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            break
        if name in parameters:
            return _evaluated(parameters[name].annotation, function)
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            break
    return inspect.Parameter.empty


def _evaluated(annotation: Any, function: Any) -> Any:
    """Returns an annotation as a type; one that cannot be evaluated, as a name for type checkers alone, is none."""
    if not isinstance(annotation, str):
        return annotation
    import torch

    names = {"torch": torch, "nn": torch.nn, "typing": typing, "collections": collections.abc}
    module = sys.modules.get(getattr(function, "__module__", ""))
    try:
        return eval(annotation, {**names, **vars(module)} if module else names)
    except Exception:
        return inspect.Parameter.empty


def as_annotated(place: str, target: Callable[..., Any], name: str, value: Any) -> Any:
    """Returns a mapping as the dataclass that the parameter is annotated with; anything else as it is.

    Raises:
        ConfigError: The mapping has a key that the dataclass does not have, the dataclass refuses a value, or a number
            is needed and the value is not one.
    """
    annotation = annotation_of(target, name)
    if not isinstance(value, Mapping):
        default = inspect.Parameter.empty
        with contextlib.suppress(TypeError, ValueError, KeyError):
            default = inspect.signature(target).parameters[name].default
        _check_value(place, annotation, default, value)
        return value
    kind = _dataclass_in(annotation)
    return value if kind is None else _make_dataclass(place, kind, value)


_UNIONS = (typing.Union, types.UnionType)
_NUMBERS = {bool: "true or false", int: "a whole number", float: "a number"}


def _check_value(place: str, annotation: Any, default: Any, value: Any) -> None:
    """Raises an error where a parameter takes numbers or mappings alone and the value is something else.

    Raises:
        ConfigError: The value is of another kind, or null where one is needed.
    """
    import torch

    members = typing.get_args(annotation) if typing.get_origin(annotation) in _UNIONS else (annotation,)
    optional = type(None) in members or default is None
    kinds = {kind for kind in members if kind not in (type(None), torch.Tensor)}
    if kinds and all(dataclasses.is_dataclass(kind) or typing.get_origin(kind) is dict for kind in kinds):
        if isinstance(value, (bool, int, float, str, list)):
            raise ConfigError(f"{place}={value} is invalid: it has keys, which are set as {place}.KEY=VALUE.")
        return
    if not kinds or not kinds <= _NUMBERS.keys():
        return
    accepted = {**dict.fromkeys(kinds, True), int: int in kinds or float in kinds}
    if (value is None and optional) or accepted.get(type(value)) or (isinstance(value, bool) and int in kinds):
        return
    allowed = " or ".join([*(text for kind, text in _NUMBERS.items() if kind in kinds), *["null"] * optional])
    shown = "null" if value is None else value
    raise ConfigError(f"{place}={shown} is invalid: give {allowed}.")


def _dataclass_in(annotation: Any) -> type | None:
    kinds = [annotation, *typing.get_args(annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)), None)


def _make_dataclass(place: str, kind: type, values: Mapping[str, Any]) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(
                f"{place}.{name} is not a field of {kind.__name__}. {describe_nearest(str(name), fields)}"
            )
        owner = next(base for base in kind.__mro__ if name in vars(base).get("__annotations__", {}))
        annotation = _evaluated(fields[name].type, owner)  # the module that names it may not be that of `kind`
        inner = _dataclass_in(annotation) if isinstance(value, Mapping) else None
        if inner is None:
            _check_value(f"{place}.{name}", annotation, fields[name].default, value)
        arguments[name] = value if inner is None else _make_dataclass(f"{place}.{name}", inner, value)
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, EnergonDaliError):
            raise
        raise ConfigError(f"{place} cannot make {kind.__name__}: {error}. Change a value under {place}.") from error
