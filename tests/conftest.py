"""Setup of all tests: hypothesis runs the same on every machine, and tests do not affect each other."""

from __future__ import annotations

import gc
import multiprocessing.spawn
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from energon_dali.loader.processes.fork_server import find_fork_server
from energon_dali.task_encoder.context import context_depth, leave_contexts
from tests.part import WHOLE, WHOLE_PROFILE, Part
from tests.shared_result import folder_of_run
from tests.warm_python import started_python

# No deadline: on a busy machine, single examples are slow. A fixed seed makes all runs of a commit equal.
# `make test-faults` chooses "whole", with which long property tests try all their examples; see `long_property`.
for profile in ("house", WHOLE_PROFILE):
    settings.register_profile(
        profile, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=False
    )
settings.load_profile("house")

# While test modules are imported, the collector finds next to nothing. It is enabled again before the first test.
gc.disable()


def pytest_collection_finish() -> None:
    """Leaves what was imported out of all collections, which take most of a second each if they walk it."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or extension modules would report at the end of the process that their objects leak


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", type=Part.parse, default=WHOLE, help="such as 1/4: every fourth test from the first one on"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Makes pytest-xdist's processes forks of the warm Python: each would import for ten seconds otherwise."""
    if os.path.exists("/dev/nvidiactl"):
        return  # CUDA does not work in a fork of a process that has initialized it
    warm = ExitStack()
    config.add_cleanup(warm.close)
    executable = warm.enter_context(started_python(folder_of_run(config._tmp_path_factory)))
    for spec in specs:
        spec.python = executable


@pytest.hookimpl(trylast=True)  # after tests were selected by marks and names
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = config.getoption("--part").of(items)
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An executable that runs programs as Python does, in forks of a process that has imported Lightning and DALI."""
    with started_python(folder_of_run(tmp_path_factory)) as executable:
        yield executable


@pytest.fixture
def warm_workers(warm_python: str) -> Iterator[None]:
    """Loaders' workers are spawned by `warm_python`: each imports torch otherwise, which takes three seconds of CPU."""
    before = multiprocessing.spawn.get_executable()
    multiprocessing.spawn.set_executable(warm_python)
    yield
    multiprocessing.spawn.set_executable(before)


@pytest.fixture(scope="session")
def warm_fork_server(warm_python: str) -> None:
    """Starts the fork server, which stays for the life of the process; its copies find torch imported."""
    before = multiprocessing.spawn.get_executable()
    multiprocessing.spawn.set_executable(warm_python)
    assert find_fork_server(may_use_device=True) is not None
    multiprocessing.spawn.set_executable(before)


@pytest.fixture
def warm_programs(warm_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of this package that it starts itself are run by `warm_python`."""
    monkeypatch.setattr(sys, "executable", warm_python)


@pytest.fixture(autouse=True)
def _outside_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests set ranks by arguments; those in the environment of the test run do not count."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _outside_of_hooks() -> Iterator[None]:
    """Notices a test after which this thread still counts as being in a hook."""
    yield
    depth = context_depth()
    leave_contexts((0, 0))
    assert depth == (0, 0), "a hook's context was left behind"


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Collects garbage after each module, so that its warnings appear in that module and not in the next.

    What is left then is mostly modules that were imported meanwhile. Later collections, of which some tests make many,
    leave it out: they would take longer from module to module.
    """
    yield
    gc.collect()
    gc.freeze()
