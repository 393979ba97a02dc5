"""Converts the frames of hardware decoders, in NV12, to RGB with the colours that a file declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from energon_dali.av.colour import ColourFacts


def nv12_to_rgb(frames: torch.Tensor, colours: ColourFacts) -> torch.Tensor:
    """Returns frames in RGB, computed on their device, on its current CUDA stream; the host does not wait.

    Each chroma sample is used for two by two pixels, as PyAV's fast conversion does.

    Args:
        frames: uint8[n, 3 H / 2, W]: H rows of luma, then H / 2 rows of interleaved Cb and Cr.
        colours: Matrix and range of the file.

    Returns:
        uint8[n, H, W, 3], contiguous.
    """
    import torch

    from energon_dali.kernels.color_matrix import rgb_of_ycbcr

    assert colours.matrix != "rgb", "NV12 is YCbCr"
    height = frames.shape[1] * 2 // 3
    luma = frames[:, :height].to(torch.float32)  # float32[n, H, W]
    # float32[n, H / 2, W / 2, 2]
    chroma = frames[:, height:].reshape(len(frames), height // 2, -1, 2).to(torch.float32)
    matrix = rgb_of_ycbcr(colours.matrix, colours.full_range)
    result = torch.empty(*luma.shape, 3, dtype=torch.uint8, device=frames.device)
    for channel, (of_luma, of_blue, of_red, offset) in enumerate(matrix):
        difference = chroma[..., 0] * of_blue + chroma[..., 1] * of_red + offset  # float32[n, H / 2, W / 2]
        difference = difference.repeat_interleave(2, 1).repeat_interleave(2, 2)
        result[..., channel] = (luma * of_luma + difference).round_().clamp_(0, 255).to(torch.uint8)
    return result
