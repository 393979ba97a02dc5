"""Which of DALI's settings importing it chooses."""

from __future__ import annotations

import os

import pytest

from energon_dali.decode.dali.runtime import device

pytest.importorskip("nvidia.dali")


@pytest.mark.parametrize(("given", "expected"), [(None, "64k"), ("32M", "32M")])
def test_buffers_come_from_the_pool_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.setenv(device.POOL_VARIABLE, given or "")  # restored at the end
    if given is None:
        monkeypatch.delenv(device.POOL_VARIABLE)
    device.load_dali.__wrapped__()
    assert os.environ[device.POOL_VARIABLE] == expected
