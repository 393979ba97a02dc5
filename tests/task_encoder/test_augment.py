from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from energon_dali.errors import ConfigError
from energon_dali.task_encoder.cooking import Cooker
from energon_dali.task_encoder.default import AugmentTaskEncoder
from energon_dali.task_encoder.encoder import HOOKS, TaskEncoder, overridden
from energon_dali.task_encoder.stateless import is_stateless, stateless


def cook(sample: Any) -> Any:
    return sample


class Inner(TaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)
    decoder = None
    __default_failure_tolerance__ = 5

    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:  # type: ignore[override]
        yield sample
        yield sample + 1

    def encode_batch(self, batch: Any) -> Any:
        return batch * 2

    def batch_group_criterion(self, sample: Any) -> tuple[int, int | None]:
        return sample % 2, None


class Outer(AugmentTaskEncoder[Any, Any, Any, Any]):
    def encode_batch(self, batch: Any) -> Any:
        return super().encode_batch(batch) + 1


def test_everything_is_the_inner_encoders() -> None:
    augmented: AugmentTaskEncoder[Any, Any, Any, Any] = AugmentTaskEncoder(Inner())
    assert augmented.cookers == Inner.cookers
    assert augmented.decoder is None
    assert augmented.__default_failure_tolerance__ == 5
    assert [hook for hook in HOOKS if overridden(augmented, hook)] == [
        "encode_sample",
        "batch_group_criterion",
        "encode_batch",
    ]
    assert inspect.isgeneratorfunction(augmented.encode_sample)
    assert is_stateless(augmented.encode_sample)
    assert not is_stateless(augmented.encode_batch)
    assert augmented.batch_group_criterion(3) == (1, None)


def test_a_subclass_changes_a_hook() -> None:
    outer = Outer(Inner())
    assert outer.encode_batch(5) == 11
    assert list(outer.encode_sample(1)) == [1, 2]
    assert overridden(outer, "encode_batch")
    assert overridden(Outer(TaskEncoder()), "encode_batch")
    assert not overridden(Outer(TaskEncoder()), "encode_sample")


def test_super_reaches_every_hook_of_the_inner_encoder() -> None:
    class Metrics(TaskEncoder[Any, Any, Any, Any]):
        pass

    for name in HOOKS:
        setattr(Metrics, name, lambda self, *arguments, _name=name: (_name, arguments))
    outer = Outer(Metrics())
    for name in HOOKS:
        count = len(inspect.signature(getattr(AugmentTaskEncoder, name)).parameters) - 1
        arguments = tuple(range(count))
        assert getattr(super(Outer, outer), name)(*arguments) == (name, arguments)


def test_it_travels_with_one_inner_encoder() -> None:
    outer = Outer(Inner())
    for other in (copy.copy(outer), pickle.loads(pickle.dumps(outer))):
        assert other.encode_batch(5) == 11
        assert other.encode_sample.__self__ is other.task_encoder
        assert other._task_encoder is other.task_encoder
        assert list(other.encode_sample(1)) == [1, 2]


def test_the_inner_encoder_has_its_name_in_energon() -> None:
    class Written(AugmentTaskEncoder[Any, Any, Any, Any]):
        def encode_batch(self, batch: Any) -> Any:
            return self._task_encoder.encode_batch(batch) + 1

    inner = Inner()
    assert Written(inner)._task_encoder is inner
    assert Written(inner).encode_batch(5) == 11
    made = Written(inner)
    made._task_encoder = other = Inner()
    assert made.task_encoder is other


def test_a_subclass_may_bring_its_own_decoder() -> None:
    class WithDecoder(AugmentTaskEncoder[Any, Any, Any, Any]):
        decoder = TaskEncoder.decoder

    assert WithDecoder(Inner()).decoder is TaskEncoder.decoder


def test_it_wraps_an_instance() -> None:
    with pytest.raises(ConfigError, match="not its class"):
        AugmentTaskEncoder(TaskEncoder)  # type: ignore[arg-type]
