"""What all tests share: hypothesis is the same on every machine, and no test finds what another left behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes single examples slow; that is no failure. A fixed seed makes two runs of one commit the same.
settings.register_profile(
    "house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def _outside_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks come from a test's own arguments, not from where the tests were started."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Lets garbage of one module warn there, not in the next."""
    yield
    gc.collect()
