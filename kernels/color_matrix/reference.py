"""The specification of `convert_colors` in plain PyTorch, which also runs on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .matrix import FRACTION_BITS

if TYPE_CHECKING:
    import torch


def convert_colors_reference(
    frames: torch.Tensor, coefficients: torch.Tensor, dtype: torch.dtype, channels_first: bool
) -> torch.Tensor:
    """Returns the frames with new colours, dtype and layout; a new tensor.

    A level is floor((weights . RGB + offset) / 2**14 + 1/2), clipped to 0..255. A float is level / 255, rounded to
    float32 and then to `dtype`, as if the bytes were converted.

    Args:
        frames: uint8[N, F, H, W, 3].
        coefficients: int32[N, 3, 4] in units of 2**-14, on the device of the frames.
        dtype: torch.uint8 or a floating type.
        channels_first: Whether the result is [N, F, 3, H, W] instead of [N, F, H, W, 3].
    """
    import torch

    wide = frames.to(torch.int32)  # int32[N, F, H, W, 3]
    half = 1 << (FRACTION_BITS - 1)
    channels = []
    for channel in range(3):
        weights = coefficients[:, channel, :, None, None, None]  # int32[N, 4, 1, 1, 1]
        total = wide[..., 0] * weights[:, 0] + wide[..., 1] * weights[:, 1] + wide[..., 2] * weights[:, 2]
        channels.append(((total + weights[:, 3] + half) >> FRACTION_BITS).clamp_(0, 255).to(torch.uint8))
    levels = torch.stack(channels, dim=2 if channels_first else 4)
    return levels if dtype == torch.uint8 else (levels.to(torch.float32) / 255).to(dtype)
