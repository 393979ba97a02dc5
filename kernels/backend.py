"""Which code an operation runs on: the Triton kernel on a GPU where Triton is installed, the reference elsewhere."""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Backend = Literal["triton", "reference"]

_LOG = logging.getLogger(__name__)


def backend_for(operation: str, device: torch.device) -> Backend:
    """Returns what an operation runs on, and says it in the log (level debug), once for each operation and device.

    Args:
        operation: Name of the operation, for the log.
        device: Where its tensors are.
    """
    return _choice(operation, device.type)


@functools.cache
def _choice(operation: str, device_type: str) -> Backend:
    has_triton = importlib.util.find_spec("triton") is not None
    backend: Backend = "triton" if device_type == "cuda" and has_triton else "reference"
    reason = "" if backend == "triton" or device_type != "cuda" else ", as Triton is not installed"
    _LOG.debug("%s on %s runs on the %s backend%s", operation, device_type, backend, reason)
    return backend
