"""The specification of `color_quantize` in plain PyTorch, which also runs on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 22
"""Distances that are computed at a time: 16 MiB."""


def color_quantize_reference(pixels: torch.Tensor, coefficients: torch.Tensor, result: torch.Tensor) -> None:
    """Writes the index of the nearest colour of each pixel, the lowest among equally near ones.

    All sums are integers below 2**24, so their order does not matter.

    Args:
        pixels: uint8[P, 3].
        coefficients: float32[K, 4] of `Palette.coefficients`, on the device of the pixels.
        result: int16[P] or int32[P].
    """
    import torch

    step = max(_CHUNK // coefficients.shape[0], 1)
    for start in range(0, pixels.shape[0], step):
        part = pixels[start : start + step].to(torch.float32) - 128  # float32[step, 3]
        # Not a matrix product: a setting of the process may make its precision lower than float32.
        distances = coefficients[:, 3] + part[:, :1] * coefficients[:, 0]  # float32[step, K]
        distances.addcmul_(part[:, 1:2], coefficients[:, 1])
        distances.addcmul_(part[:, 2:3], coefficients[:, 2])
        result[start : start + step] = distances.argmin(dim=1)
