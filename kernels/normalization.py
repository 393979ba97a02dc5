"""Converts levels of 0..255 to floats: one formula for every operation and backend, with the same bits on all."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

Dtype = Literal["uint8", "float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Normalization:
    """The map (level * scale - mean) / std, with one mean and std for all channels or one for each.

    It is computed in float32 as (level - mean / scale) / (std / scale), where both quotients are rounded once. A
    compiler cannot fuse a difference and a division, so all backends round alike. Without mean and std it is
    level / 255.

    Raises:
        ValueError: A std or the scale is not above zero.
    """

    mean: float | tuple[float, ...] = 0.0
    """In units of the scaled level."""

    std: float | tuple[float, ...] = 1.0
    """In units of the scaled level, above zero."""

    scale: float = 1 / 255
    """Factor by which a level is first multiplied, above zero."""

    def __post_init__(self) -> None:
        stds = self.std if isinstance(self.std, tuple) else (self.std,)
        if not self.scale > 0 or not all(std > 0 for std in stds):
            raise ValueError(f"{self}: std and scale must be above zero.")

    def coefficients(self, channels: int) -> torch.Tensor:
        """Returns float32[2, channels] on the CPU: the values to subtract from a level, and those to divide it by.

        Args:
            channels: Number of channels of the images.

        Raises:
            ValueError: Mean or std has another number of channels.
        """
        shift, divisor = (
            [value / self.scale for value in _per_channel(name, values, channels)]
            for name, values in (("mean", self.mean), ("std", self.std))
        )
        return torch.tensor([shift, divisor], dtype=torch.float32)


def _per_channel(name: str, values: float | tuple[float, ...], channels: int) -> Sequence[float]:
    if not isinstance(values, tuple):
        return [values] * channels
    if len(values) != channels:
        raise ValueError(f"{name}={values} for images of {channels} channels: give one number, or one per channel.")
    return values


def coefficients_for(dtype: Dtype, normalization: Normalization | None, channels: int) -> torch.Tensor | None:
    """Returns float32[2, channels] on the CPU, or None if the result is bytes.

    Args:
        dtype: Type of the result.
        normalization: The caller's choice; None is level / 255 in floats.
        channels: Number of channels of the images.

    Raises:
        ValueError: The dtype is unknown, bytes cannot be normalised, or the numbers of channels differ.
    """
    if dtype not in get_args(Dtype):
        raise ValueError(f"{dtype = }: allowed are {', '.join(get_args(Dtype))}.")
    if dtype != "uint8":
        return (normalization or Normalization()).coefficients(channels)
    if normalization is not None:
        raise ValueError(f"{dtype = } cannot have normalised values ({normalization}): ask for a floating dtype.")
    return None


def normalize_levels(levels: torch.Tensor, coefficients: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns (levels - coefficients[0]) / coefficients[1], rounded to float32 and then to `dtype`; a new tensor.

    Args:
        levels: uint8[..., C].
        coefficients: float32[2, C], on the device of the levels.
        dtype: A floating type.
    """
    return ((levels.to(torch.float32) - coefficients[0]) / coefficients[1]).to(dtype)


def divide_levels(levels: torch.Tensor, divisor: float, dtype: torch.dtype) -> torch.Tensor:
    """Returns levels / divisor, rounded to float32 and then to `dtype`; a new tensor.

    Where the divisor is a Python number, torch on CUDA multiplies by its reciprocal, which differs for half of the
    levels of 255. A tensor on the device is a true divisor.

    Args:
        levels: uint8[...].
        divisor: Not zero.
        dtype: A floating type.
    """
    on_the_device = torch.full((1,), divisor, dtype=torch.float32, device=levels.device)
    return (levels.to(torch.float32) / on_the_device).to(dtype)


def values_of_levels(coefficients: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns dtype[C, 256]: the value of each level in each channel.

    Looking a value up costs a kernel less than computing it, and cannot round differently.

    Args:
        coefficients: float32[2, C].
        dtype: A floating type.
    """
    levels = torch.arange(256, dtype=torch.uint8, device=coefficients.device)[:, None]
    return normalize_levels(levels, coefficients, dtype).T.contiguous()


@functools.lru_cache(maxsize=64)
def values_on(device: torch.device, dtype: Dtype, normalization: Normalization | None, channels: int) -> torch.Tensor:
    """Returns dtype[C, 256] of `values_of_levels` on a device; the first call with these arguments waits for the copy.

    Args:
        device: The device.
        dtype: A floating type.
        normalization: The caller's choice; None is level / 255.
        channels: Number of channels of the images.
    """
    coefficients = (normalization or Normalization()).coefficients(channels)
    return values_of_levels(coefficients, getattr(torch, dtype)).to(device)


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor's bits as integers of the same size, which kernels copy without interpreting them.

    Args:
        tensor: Has elements of 1, 2 or 4 bytes.
    """
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
