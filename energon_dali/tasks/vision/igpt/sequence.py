"""Between images and sequences: a pixel is the number of its palette colour, an image its pixels row by row."""

from __future__ import annotations

import torch

from energon_dali.errors import ConfigError
from energon_dali.kernels.color_quantize import Palette, color_quantize
from energon_dali.kernels.color_quantize.palette import UNITS_PER_LEVEL


def quantize(x: torch.Tensor, centroids: Palette | torch.Tensor) -> torch.Tensor:
    """Returns the number of the nearest colour of each pixel: integers [B, H, W], new, on the device of the images.

    Args:
        x: uint8[B, 3, H, W], levels 0..255; or float[B, C, H, W] in the units of `centroids`, as transforms make them.
        centroids: The palette; or float[K, C]. For uint8 images these are levels 0..255, rounded to eighths.

    Raises:
        ConfigError: The images are not of such a shape and dtype, or the centroids have other channels.
    """
    if x.ndim == 4 and x.is_floating_point():
        if isinstance(centroids, Palette):
            raise ConfigError(
                f"quantize was given images of {x.dtype} and a palette in eighths of levels 0..255. Give images "
                "uint8[B, 3, H, W], or centroids float[K, 3] in the units of the images."
            )
        if centroids.ndim != 2 or centroids.shape[1] != x.shape[1]:
            raise ConfigError(
                f"quantize was given {x.shape = } and {centroids.shape = }. Centroids are float[K, C], with the C "
                "channels of images float[B, C, H, W]."
            )
        pixels = x.permute(0, 2, 3, 1)
        colors = centroids.detach().to(x.device, x.dtype)
        # |p - c|^2 without |p|^2, which is the same for all colours; no tensor of pixels times colours times channels.
        distances = (colors * colors).sum(dim=1) - 2 * (pixels @ colors.t())
        nearest: torch.Tensor = distances.argmin(dim=-1)
        return nearest
    if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] != 3:
        raise ConfigError(
            f"quantize was given {x.shape = }, {x.dtype = }. It takes images uint8[B, 3, H, W], as "
            'image_decode="torchrgb8" gives them, or float[B, C, H, W].'
        )
    palette = centroids if isinstance(centroids, Palette) else Palette.from_levels(centroids.detach().cpu().numpy())
    indices: torch.Tensor = color_quantize(x.permute(0, 2, 3, 1).contiguous(), palette)
    return indices


def _to_sequence(x: torch.Tensor) -> torch.Tensor:
    """Returns int64[H * W, B]: the pixels of images int[B, H, W] row by row, sequences first, as models read them."""
    return x.flatten(1).t().contiguous().long()


def to_images(tokens: torch.Tensor, palette: Palette, height: int, width: int) -> torch.Tensor:
    """Returns the images of sequences: uint8[B, 3, height, width], each pixel in its palette colour.

    Args:
        tokens: int64[height * width, B].
        palette: The colours; they are rounded to whole levels.
        height: In pixels.
        width: In pixels.
    """
    units = torch.tensor(palette.units, device=tokens.device)
    levels = ((units + UNITS_PER_LEVEL // 2) // UNITS_PER_LEVEL).clamp_(0, 255).to(torch.uint8)  # uint8[K, 3]
    images: torch.Tensor = levels[tokens.t()].reshape(-1, height, width, 3).permute(0, 3, 1, 2)
    return images
