"""A task encoder that wraps another one, to change some of its hooks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.samples.base import CrudeSample
from energon_dali.task_encoder.cooking import Cooker
from energon_dali.task_encoder.encoder import HOOKS, T_batch, T_encoded_sample, T_raw_batch, T_sample, TaskEncoder
from energon_dali.task_encoder.packing import PackSelection

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

    def cook_crude_sample(self, sample: CrudeSample, cooker: Cooker[T_sample], aux: Mapping[str, Any]) -> T_sample:
        """Returns the result of the inner encoder's hook, as do all hooks here, for `super()` in a subclass."""
        return self.task_encoder.cook_crude_sample(sample, cooker, aux)

    def preencode_sample(self, sample: T_sample) -> T_sample:
        return self.task_encoder.preencode_sample(sample)

    def encode_sample(self, sample: T_sample) -> T_encoded_sample:
        return self.task_encoder.encode_sample(sample)

    def select_samples_to_pack(
        self, samples: list[T_encoded_sample]
    ) -> list[list[T_encoded_sample]] | PackSelection[T_encoded_sample]:
        return self.task_encoder.select_samples_to_pack(samples)

    def postencode_sample(self, sample: T_sample) -> T_encoded_sample:
        return self.task_encoder.postencode_sample(sample)

    def pack_selected_samples(self, samples: list[T_encoded_sample]) -> T_encoded_sample:
        return self.task_encoder.pack_selected_samples(samples)

    def batch_group_criterion(self, sample: T_encoded_sample) -> tuple[Hashable, int | None]:
        return self.task_encoder.batch_group_criterion(sample)

    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        return self.task_encoder.batch(samples)

    def encode_batch(self, batch: T_raw_batch) -> T_batch:
        return self.task_encoder.encode_batch(batch)

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
