"""The device decides which backend an operation runs on; it is logged once."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch
from energon_dali.kernels import backend
from energon_dali.kernels.backend import backend_for


def test_the_backend_is_chosen_by_device_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="energon_dali.kernels.backend"):
        assert backend_for("an_operation_of_this_test", torch.device("cpu")) == "reference"
        assert backend_for("an_operation_of_this_test", torch.device("cpu")) == "reference"
    assert caplog.messages == ["an_operation_of_this_test on cpu runs on the reference backend"]


@pytest.fixture
def forgetful() -> Iterator[None]:
    caches = (backend.why_no_triton, backend_for)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def made_up_triton(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    def get_current_device() -> int:
        if error is not None:
            raise error
        return 0

    runtime = ModuleType("triton.runtime")
    runtime.driver = SimpleNamespace(active=SimpleNamespace(get_current_device=get_current_device))  # type: ignore[attr-defined]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)


@pytest.mark.usefixtures("forgetful")
def test_a_triton_that_cannot_run_is_warned_of_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made_up_triton(monkeypatch, RuntimeError("Failed to find C compiler."))
    assert [backend_for(name, torch.device("cuda", 0)) for name in ("one", "other")] == ["reference"] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "RuntimeError: Failed to find C compiler." in caplog.text


@pytest.mark.usefixtures("forgetful")
def test_a_triton_that_runs_is_taken_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_triton(monkeypatch, None)
    assert backend_for("one", torch.device("cuda", 0)) == "triton"
