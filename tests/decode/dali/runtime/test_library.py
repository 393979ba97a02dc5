"""Which of DALI's settings importing it chooses."""

from __future__ import annotations

import os

import pytest

from energon_dali.decode.dali.runtime import library

pytest.importorskip("nvidia.dali")


@pytest.mark.parametrize(("given", "expected"), [(None, "64k"), ("32M", "32M")])
def test_buffers_come_from_the_pool_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.setenv(library.POOL_VARIABLE, given or "")  # restored at the end
    if given is None:
        monkeypatch.delenv(library.POOL_VARIABLE)
    library.load_dali.__wrapped__()
    assert os.environ[library.POOL_VARIABLE] == expected
