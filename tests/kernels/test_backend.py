"""What an operation runs on is chosen by the device, and said once."""

from __future__ import annotations

import logging

import pytest
import torch
from energon_dali.kernels.backend import backend_for


def test_the_backend_is_chosen_by_device_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="energon_dali.kernels.backend"):
        assert backend_for("an_operation_of_this_test", torch.device("cpu")) == "reference"
        assert backend_for("an_operation_of_this_test", torch.device("cpu")) == "reference"
    assert caplog.messages == ["an_operation_of_this_test on cpu runs on the reference backend"]
