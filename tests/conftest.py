"""Setup of all tests: hypothesis is the same on every machine, and tests do not affect each other."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# No deadline: on a busy machine single examples are slow. A fixed seed makes two runs of a commit equal.
settings.register_profile(
    "house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def _outside_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are set by the arguments of a test, not by the environment of the test run."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Makes garbage of a module warn in that module, not in the next one."""
    yield
    gc.collect()
