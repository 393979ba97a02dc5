"""A failure of a stage is counted if a sample caused it, and ends the run if the device did."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from energon_dali.datasets.hooks import FailurePolicy, is_device_error
from energon_dali.error_handlers import log_exception
from energon_dali.errors import DecodeError, DeviceFailedError, FatalSampleError


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's class."""


class AcceleratorError(RuntimeError):
    """Has the name of torch's class."""


DEVICE_ERRORS = [
    OutOfMemoryError("no memory"),
    AcceleratorError("lost"),
    DeviceFailedError("DALI failed on gpu 0"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
]


class WithoutTextError(Exception):
    def __str__(self) -> str:
        raise AttributeError("what the text is made of")


def ignore(*_: Any) -> None:
    return None


def take_from_nothing(*_: Any) -> None:
    next(iter(()))


def policy_of(failures: list[Any], tolerance: int = 3, handler: Callable[..., None] = ignore) -> FailurePolicy:
    metrics = SimpleNamespace(
        count=lambda name: None, fail=failures.append, note_dropped=lambda: None, has_room_for=lambda kind: True
    )
    config: Any = SimpleNamespace(global_error_handler=handler)
    context: Any = SimpleNamespace(metrics=metrics)
    return FailurePolicy("encode_sample", tolerance, context, config)


@pytest.mark.parametrize("error", DEVICE_ERRORS, ids=lambda error: type(error).__name__)
def test_a_device_error_is_raised_unchanged_and_blames_no_sample(error: Exception) -> None:
    failures: list[Any] = []
    assert is_device_error(error)
    with pytest.raises(type(error)) as raised:
        policy_of(failures).on_failure(error, {"__key__": "a"})
    assert raised.value is error
    assert not failures


@pytest.mark.parametrize(
    "error", [ValueError("CUDA error"), RuntimeError("shape mismatch"), DecodeError("truncated"), WithoutTextError()]
)
def test_errors_of_samples_are_counted_until_there_are_too_many(error: Exception) -> None:
    failures: list[Any] = []
    policy = policy_of(failures)
    assert not is_device_error(error)
    policy.on_failure(error, {"__key__": "a"})
    policy.on_failure(error, {"__key__": "b"})
    policy.on_success()
    policy.on_failure(error, {"__key__": "c"})
    policy.on_failure(error, {"__key__": "d"})
    with pytest.raises(FatalSampleError, match="failed 3 times in a row"):
        policy.on_failure(error, {"__key__": "e"})
    assert [failure.key for failure in failures] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(("error", "lines"), [(DecodeError("truncated"), 100), (ValueError("bad"), 1)])
def test_each_damaged_file_is_logged_until_there_are_too_many(
    error: Exception, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = itertools.count(1)
    policy = policy_of([], tolerance=0, handler=log_exception)
    policy.on_success()
    policy._context.metrics.fail = lambda _: next(numbers)  # type: ignore[method-assign, assignment]
    for _ in range(150):
        policy.on_failure(error, {"__key__": "a"})
    assert len(caplog.records) == lines


def test_a_handler_that_raises_stop_iteration_does_not_silently_end_the_epoch() -> None:
    with pytest.raises(FatalSampleError, match="global_error_handler raised StopIteration for the sample 'a'"):
        policy_of([], handler=take_from_nothing).on_failure(ValueError("bad"), {"__key__": "a"})
