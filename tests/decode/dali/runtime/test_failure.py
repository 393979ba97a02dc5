"""A device that fails is never taken for a bad image."""

from __future__ import annotations

import pytest

from energon_dali.decode.dali.runtime import failure
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.dali.runtime.failure import first_line, raise_if_device_failed
from energon_dali.errors import DeviceFailedError

NAMED = (
    "Error in CPU operator `nvidia.dali.fn.decoders.image`,\n\nencountered:\n\nFailed to decode sample #{} : \nCurrent"
)


def test_a_gpu_that_does_not_compute_any_more_is_not_a_bad_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI then blames the first image of each run; PIL would decode them all, and nobody would know."""
    monkeypatch.setattr(failure, "device_works", lambda device: device.kind == "cpu")
    error = RuntimeError(NAMED.format(0))
    with pytest.raises(DeviceFailedError, match="No sample caused this"):
        raise_if_device_failed(error, Device("gpu", 0))
    raise_if_device_failed(error, Device("cpu"))


def test_first_line_is_what_matters() -> None:
    assert first_line(RuntimeError(NAMED.format(3))) == "Failed to decode sample #3 :"
    assert first_line(RuntimeError("")) == "RuntimeError"
