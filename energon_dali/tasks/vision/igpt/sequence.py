"""Between pictures and sequences: a pixel is the number of its palette colour, a picture its pixels row by row."""

from __future__ import annotations

import torch

from energon_dali.errors import ConfigError
from energon_dali.kernels.color_quantize import Palette, color_quantize
from energon_dali.kernels.color_quantize.palette import UNITS_PER_LEVEL


def quantize(x: torch.Tensor, centroids: Palette | torch.Tensor) -> torch.Tensor:
    """Returns the number of the nearest colour of each pixel: int32[B, H, W]; a new tensor, on the pictures' device.

    Args:
        x: uint8[B, 3, H, W], values 0..255.
        centroids: The palette; or float[K, 3] in levels 0..255, which are rounded to eighths.

    Raises:
        ConfigError: The pictures are not of that shape and dtype.
    """
    if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] != 3:
        raise ConfigError(
            f"quantize was given {x.shape = }, {x.dtype = }. It takes pictures uint8[B, 3, H, W]: decode with "
            'image_decode="torchrgb8".'
        )
    palette = centroids if isinstance(centroids, Palette) else Palette.from_levels(centroids.detach().cpu().numpy())
    indices: torch.Tensor = color_quantize(x.permute(0, 2, 3, 1).contiguous(), palette)
    return indices


def _to_sequence(x: torch.Tensor) -> torch.Tensor:
    """Returns int64[B, H * W]: the pixels of pictures int[B, H, W] row by row, as models read them."""
    return x.flatten(1).long()


def to_pictures(tokens: torch.Tensor, palette: Palette, height: int, width: int) -> torch.Tensor:
    """Returns the pictures of sequences: uint8[B, 3, height, width], each pixel in its palette colour.

    Args:
        tokens: int64[B, height * width].
        palette: The colours; they are rounded to whole levels.
        height: In pixels.
        width: In pixels.
    """
    units = torch.tensor(palette.units, device=tokens.device)
    levels = ((units + UNITS_PER_LEVEL // 2) // UNITS_PER_LEVEL).clamp_(0, 255).to(torch.uint8)  # uint8[K, 3]
    pictures: torch.Tensor = levels[tokens].view(-1, height, width, 3).permute(0, 3, 1, 2)
    return pictures
