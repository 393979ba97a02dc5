"""Page-locked memory for batches on the CPU, so that their copy to the GPU runs beside the training step."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from energon_dali.errors import ConfigError, DeviceError


def wants_pinning(pin_memory: bool | str) -> bool:
    """Returns whether batches are to be pinned; "auto" means wherever CUDA is available.

    Raises:
        ConfigError: It is neither a bool nor "auto".
        DeviceError: It is True, and there is no CUDA device.
    """
    if pin_memory == "auto":
        return torch.cuda.is_available()
    if not isinstance(pin_memory, bool):
        raise ConfigError(f'pin_memory={pin_memory!r} is unknown: give True, False or "auto".')
    if pin_memory and not torch.cuda.is_available():
        raise DeviceError('pin_memory=True needs a CUDA device, and torch finds none. Give False or "auto".')
    return pin_memory


def pin(value: Any) -> Any:
    """Returns a batch with its CPU tensors in page-locked memory; tensors on the GPU stay as they are.

    Args:
        value: A batch: a tensor, something with a `pin_memory` method, a dataclass, dict, list or tuple of these.
    """
    if isinstance(value, torch.Tensor):
        return value.pin_memory() if value.device.type == "cpu" else value
    own = getattr(value, "pin_memory", None)
    if callable(own):
        return own()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {item.name: pin(getattr(value, item.name)) for item in dataclasses.fields(value) if item.init}
        return dataclasses.replace(value, **changes)
    if isinstance(value, dict):
        return type(value)((name, pin(inner)) for name, inner in value.items())
    if isinstance(value, tuple):
        pinned = [pin(inner) for inner in value]
        return type(value)(*pinned) if hasattr(value, "_fields") else tuple(pinned)
    if isinstance(value, list):
        return [pin(inner) for inner in value]
    return value
