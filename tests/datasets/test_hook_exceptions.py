"""Exceptions of every kind in every hook: counted, skipped, fatal with the name of the hook, or raised unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

import pytest
import torch

from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.errors import (
    DecodeError,
    FatalSampleError,
    FileMissingError,
    SampleException,
    SkipSample,
    StoreUnavailableError,
)
from energon_dali.task_encoder.context import context_depth
from tests.datasets.failing_stages import HOOKS, TOTAL, Check


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__("has a lock")
        self.lock = Lock()


class WithoutTextError(RuntimeError):
    def __str__(self) -> str:
        raise AttributeError("what the text is made of")

    __repr__ = __str__


@dataclass(frozen=True)
class FrozenError(Exception):
    reason: str


class OwnBaseError(BaseException):
    pass


COUNTED = {
    "ValueError": ValueError("bad"),
    "OSError": OSError(5, "the disk"),
    "EOFError": EOFError(),
    "ConnectionResetError": ConnectionResetError("gone"),
    "StopIteration": StopIteration("none"),
    "DecodeError": DecodeError("truncated", "jpeg"),
    "FileMissingError": FileMissingError("no such file"),
    "SampleException": SampleException("bad"),
    "UnpicklableError": UnpicklableError(),
    "WithoutTextError": WithoutTextError(),
    "FrozenError": FrozenError("bad"),
}
FATAL = {
    "StopAsyncIteration": StopAsyncIteration(),
    "MemoryError": MemoryError(),
    "RecursionError": RecursionError("too deep"),
    "NameError": NameError("name 'x' is not defined"),
    "ImportError": ImportError("no module"),
}
RAISED = {
    "OutOfMemoryError": torch.cuda.OutOfMemoryError("CUDA out of memory"),
    "CUDA error": RuntimeError("CUDA error: device-side assert triggered"),
    "FatalSampleError": FatalSampleError("the hook says so"),
    "StoreUnavailableError": StoreUnavailableError("no answer"),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "OwnBaseError": OwnBaseError("own"),
}


def third(number: int) -> bool:
    return number == 2


def run(stage: str, error: BaseException) -> tuple[int, dict[str, int], list[Any]]:
    """Returns (elements of an epoch, counts, failures) where the third call of a hook raises."""
    live: Any = RankIterator(HOOKS[stage](Check(third, error.with_traceback(None))))
    delivered = len(list(live))
    snapshot = live.metrics.snapshot()
    return delivered, snapshot["counts"], snapshot["failures"]


@pytest.mark.parametrize("kind", COUNTED)
@pytest.mark.parametrize("stage", HOOKS)
def test_the_failure_of_a_sample_is_counted_and_its_neighbours_stay(stage: str, kind: str) -> None:
    delivered, counts, failures = run(stage, COUNTED[kind])
    assert delivered == TOTAL - 1
    assert counts["samples.failed"] == 1
    assert "samples.skipped" not in counts
    (failure,) = failures
    assert failure["key"] == "sample2"
    assert failure["reason"]
    assert not failure["reason"].endswith(": ")


@pytest.mark.parametrize("stage", HOOKS)
def test_a_skipped_sample_is_no_failure(stage: str) -> None:
    delivered, counts, failures = run(stage, SkipSample())
    assert (delivered, counts["samples.skipped"], failures) == (TOTAL - 1, 1, [])
    assert "samples.failed" not in counts


@pytest.mark.parametrize("kind", FATAL)
@pytest.mark.parametrize("stage", HOOKS)
def test_an_error_that_would_repeat_ends_the_run_and_names_the_hook(stage: str, kind: str) -> None:
    hook = stage if "_" in stage or stage == "batch" else ""
    with pytest.raises(FatalSampleError, match=rf"{hook}\S* raised {type(FATAL[kind]).__name__}[.:] ?\w*") as raised:
        run(stage, FATAL[kind])
    assert raised.value.__cause__ is FATAL[kind]


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("stage", HOOKS)
def test_what_no_sample_can_cause_is_raised_unchanged(stage: str, kind: str) -> None:
    with pytest.raises(type(RAISED[kind])) as raised:
        run(stage, RAISED[kind])
    assert raised.value is RAISED[kind]
    assert context_depth() == (0, 0)
