"""Results that take long and that tests in several processes need: one process makes them, the others wait for it."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Result = TypeVar("Result")


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """Returns the temporary folder that all processes of this test run have in common."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def shared_result(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Result]) -> tuple[Path, Result]:
    """Returns a folder and what `make` returned for it, in whichever process of this test run it was called.

    pytest-xdist hands the tests of a module to several processes, and each of them sets up the module's fixtures.

    Args:
        factory: pytest's fixture.
        name: Name of the folder, of which there is one in a test run.
        make: Fills the folder, which is empty; what it returns is pickled. It is called again if it failed.
    """
    base = folder_of_run(factory)
    folder, result = base / name, base / f"{name}.pickle"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            content = pickle.dumps(make(folder))
            result.write_bytes(content)
        return folder, pickle.loads(result.read_bytes())
