"""Finds methods of a task encoder whose names look like misspelt hooks: nothing would ever call them."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from energon_dali.task_encoder.default import AugmentTaskEncoder, DefaultTaskEncoder
from energon_dali.task_encoder.encoder import HOOKS, TaskEncoder

_OWN = (TaskEncoder, DefaultTaskEncoder, AugmentTaskEncoder)
_NEAR = 0.88
"""Least similarity, from 0 to 1. Below it are names such as encode_image, batch_images and decode_sample."""


def find_misspelt_hooks(encoder: TaskEncoder[Any, Any, Any, Any]) -> dict[str, str]:
    """Returns the hook that was probably meant, by name of the method.

    A helper method is not taken for a hook: another method refers to it, or the hook with the similar name is there.

    Args:
        encoder: The task encoder.
    """
    classes = [kind for kind in type(encoder).__mro__ if not any(issubclass(own, kind) for own in _OWN)]
    methods = {name: value for kind in reversed(classes) for name, value in vars(kind).items()}
    assigned = () if isinstance(encoder, AugmentTaskEncoder) else vars(encoder)  # that one assigns all hooks
    missing = [hook for hook in HOOKS if hook not in methods and hook not in assigned]
    meant = {
        name: hook
        for name, value in methods.items()
        if not name.startswith("_") and _is_method(value) and not hasattr(TaskEncoder, name)
        for hook in missing
        if _is_near(name, hook)
    }
    if not meant:
        return {}
    used = {name for value in methods.values() for name in _names_in(value)}
    cookers = {getattr(cooker.cook, "__name__", "") for cooker in encoder.cookers}
    return {name: hook for name, hook in meant.items() if name not in used and name not in cookers}


def _is_method(value: Any) -> bool:
    return isinstance(value, (staticmethod, classmethod)) or (callable(value) and not isinstance(value, type))


def _is_near(name: str, hook: str) -> bool:
    one, other = (text.replace("_", "").casefold() for text in (name, hook))
    if one[0] != other[0]:  # decode_sample, patch
        return False
    # A swap of two letters in a short name leaves little that is equal.
    return sorted(one) == sorted(other) or difflib.SequenceMatcher(None, one, other).ratio() >= _NEAR


def _names_in(value: Any) -> Iterator[str]:
    """Yields the names and texts that a method, or what it decorates, refers to."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    while isinstance(value, functools.partial):
        value = value.func
    code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
    waiting = [code] if code is not None else []
    while waiting:
        found: CodeType = waiting.pop()
        yield from found.co_names
        for constant in found.co_consts:
            if isinstance(constant, CodeType):
                waiting.append(constant)
            elif isinstance(constant, str):
                yield constant
