"""Chooses what an operation runs on: the Triton kernel on a GPU where Triton works, the reference elsewhere.

An operation is a folder: its arguments, results and reference in `__init__.py`, and `kernel.py`, which needs Triton.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import Literal

import torch

Backend = Literal["triton", "reference"]

_LOG = logging.getLogger(__name__)


@functools.cache
def backend_for(operation: str, device: torch.device) -> Backend:
    """Returns what an operation runs on, and logs it at level DEBUG, once for each operation and device.

    If Triton is installed but cannot run on this machine, this logs one warning and does not try again.

    Args:
        operation: Name of the operation, for the log.
        device: Where its tensors are.
    """
    why = why_no_triton() if device.type == "cuda" else ""
    backend: Backend = "triton" if device.type == "cuda" and not why else "reference"
    _LOG.debug("%s on %s runs on the %s backend%s", operation, device, backend, f", as {why}" if why else "")
    return backend


@functools.cache
def why_no_triton() -> str:
    """Returns why kernels cannot run on the GPU of this machine; "" if they can.

    Torch installs Triton, but not the C compiler and the Python headers with which Triton builds its link to the driver
    when it is first used.
    """
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    try:
        from triton.runtime import driver

        driver.active.get_current_device()
    except Exception as error:  # a compiler's exit status, its absence, no driver found, a broken installation, ...
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        _LOG.warning(
            "Triton is installed but does not work here (%s): the kernels run as plain PyTorch, slower. Triton needs a "
            "C compiler and the Python headers (apt-get install gcc python3-dev); `energon-dali doctor` tests it.",
            reason,
        )
        return f"Triton does not work here ({reason})"
    return ""


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a small CPU tensor on a device. The copy is from pinned memory, so the host does not wait for it.

    Args:
        tensor: On the CPU.
        device: The device.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
