"""A task encoder that wraps another one, to change some of its hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.task_encoder.encoder import HOOKS, T_batch, T_encoded_sample, T_raw_batch, T_sample, TaskEncoder

_ATTRIBUTES = ("cookers", "decoder", "__default_failure_tolerance__")


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
        for name in (*HOOKS, *_ATTRIBUTES):
            if not self._defines(name):
                setattr(self, name, getattr(task_encoder, name))

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
        return {name: value for name, value in self.__dict__.items() if name not in HOOKS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in HOOKS:
            if not self._defines(name):
                setattr(self, name, getattr(self.task_encoder, name))


def _inner_hook(name: str) -> Callable[..., Any]:
    """Returns a method that returns the result of the inner encoder's hook, for `super()` in a subclass."""

    def hook(self: AugmentTaskEncoder[Any, Any, Any, Any], *args: Any, **options: Any) -> Any:
        return getattr(self.task_encoder, name)(*args, **options)

    hook.__name__, hook.__qualname__ = name, f"{AugmentTaskEncoder.__qualname__}.{name}"
    return hook


for _name in HOOKS:
    setattr(AugmentTaskEncoder, _name, _inner_hook(_name))
