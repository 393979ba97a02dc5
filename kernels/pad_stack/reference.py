"""The specification of `pad_stack` in plain PyTorch, which also runs on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..normalization import normalize_levels

if TYPE_CHECKING:
    import torch


def pad_stack_reference(
    images: Sequence[torch.Tensor], flips: Sequence[bool], coefficients: torch.Tensor | None, result: torch.Tensor
) -> None:
    """Writes each image, mirrored and normalised, to the upper left of its part of the result, and zeros to the rest.

    Args:
        images: uint8[h, w, C], each at most [H, W, C].
        flips: Whether to mirror each image left to right, before it is padded.
        coefficients: float32[2, C] on the device of the images, or None for bytes.
        result: dtype[N, H, W, C], of any strides.
    """
    for image, flip, place in zip(images, flips, result, strict=True):
        height, width, _ = image.shape
        levels = image.flip(1) if flip else image
        inside = place[:height, :width]
        inside.copy_(levels if coefficients is None else normalize_levels(levels, coefficients, result.dtype))
        place[height:] = 0
        place[:height, width:] = 0
