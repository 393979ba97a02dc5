"""Where the tests of this folder run.

Tests that take the fixture `where` run on the GPU, or on the CPU if there is none. Such a dry run shows that the test
itself works; it says nothing about GPUs. Dry runs that take seconds (marker `costly_dry_run`) need GPU_DRY_RUN=1. Tests
without `where` need a GPU and are skipped without one. FAIL_WITHOUT_CUDA=1 makes a missing GPU a failure.
GPU_OBSERVATIONS names a JSON file for what the tests observe.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from energon_dali.decode.dali import close_engines
from tests.gpu.observations import Observations
from tests.gpu.where import Where

_HERE = Path(__file__).parent


@functools.cache
def _gpu_is_usable() -> bool:
    from energon_dali.decode.dali.runtime.device import has_dali, sees_gpu

    if not has_dali() or not sees_gpu():
        return False
    import torch

    return bool(torch.cuda.is_available())


def _wants_gpu() -> bool:
    return os.environ.get("FAIL_WITHOUT_CUDA") == "1" or _gpu_is_usable()


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker of this folder."""
    config.addinivalue_line("markers", "costly_dry_run: without a GPU, runs only with GPU_DRY_RUN=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks this folder's tests as gpu tests, and skips those that need a GPU if there is none."""
    for item in items:
        if _HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if _wants_gpu():
            continue
        if "where" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="no usable GPU; FAIL_WITHOUT_CUDA=1 makes this a failure"))
        elif item.get_closest_marker("costly_dry_run") and os.environ.get("GPU_DRY_RUN") != "1":
            item.add_marker(pytest.mark.skip(reason="no usable GPU; GPU_DRY_RUN=1 runs it on the CPU"))


@pytest.fixture(scope="session")
def where() -> Where:
    """The device of this test run."""
    return Where("gpu" if _wants_gpu() else "cpu")


@pytest.fixture
def warm_processes(where: Where, request: pytest.FixtureRequest) -> None:
    """Loaders' processes import nothing in a dry run. On a GPU they are what a user's are."""
    if where.kind == "cpu":
        request.getfixturevalue("warm_workers")


@pytest.fixture
def observe(where: Where, request: pytest.FixtureRequest) -> Observations:
    """Records what a test observes under its name."""
    return Observations(where.kind, request.node.name)


@pytest.fixture(autouse=True, scope="module")
def _engines_end_with_their_module() -> Iterator[None]:
    yield
    close_engines()
