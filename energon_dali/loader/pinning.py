"""Page-locked memory for batches on the CPU, so that their copy to the GPU overlaps the training step."""

from __future__ import annotations

from typing import Any

import torch

from energon_dali.errors import ConfigError, DeviceError
from energon_dali.samples.transfer import map_tensors, pin_tensor


def wants_pinning(pin_memory: bool | str, *, before_fork: bool = False) -> bool:
    """Returns whether batches are pinned; "auto" means if CUDA is available.

    Args:
        pin_memory: True, False or "auto".
        before_fork: Whether a process that may use CUDA will be forked from this one. GPUs are then counted by NVML:
            after a question to CUDA, CUDA does not work in forked processes.

    Raises:
        ConfigError: It is neither a bool nor "auto".
        DeviceError: It is True, and there is no CUDA device.
    """
    if not isinstance(pin_memory, bool) and pin_memory != "auto":
        raise ConfigError(f'pin_memory={pin_memory!r} is unknown: give True, False or "auto".')
    if pin_memory is False:
        return False
    available = torch.cuda.device_count() > 0 if before_fork else torch.cuda.is_available()
    if pin_memory is True and not available:
        raise DeviceError('pin_memory=True needs a CUDA device, and torch finds none. Give False or "auto".')
    return available


def pin(value: Any) -> Any:
    """Returns a batch with its CPU tensors in page-locked memory; everything else is unchanged.

    Args:
        value: A batch: a tensor, something with a `pin_memory` method, a dataclass, dict, list or tuple of these.
    """
    if not torch.cuda.is_available():  # GPUs were counted, and CUDA does not work
        return value
    own = getattr(value, "pin_memory", None)
    if callable(own) and not isinstance(value, torch.Tensor):
        return own()
    return map_tensors(value, pin_tensor, method="pin_memory")
