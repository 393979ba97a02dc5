"""Images as sequences: a pixel is the number of its palette colour, an image its pixels row by row.

Images are drawn pixel by pixel, each from the distribution that the model gives for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from energon_dali.errors import ConfigError
from energon_dali.kernels.color_quantize import UNITS_PER_LEVEL, Palette, color_quantize


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


def draw_pixels(
    backbone: torch.nn.Module, known: torch.Tensor, length: int, *, seed: int, temperature: float = 1.0
) -> torch.Tensor:
    """Returns sequences int64[length, B] that begin with the known pixels, on their device.

    The same seed gives the same images. The model is in evaluation mode meanwhile and back in its mode afterwards,
    and no global random state is used. With a model that has `start` and `extend`, as GPT2 has, a pixel costs one
    position; else the whole sequence so far.

    Args:
        backbone: Gives logits float[T, B, colours] of tokens int64[T, B], each from those before it.
        known: int64[n, B], 0 <= n <= length; n = 0 draws whole images.
        length: Pixels of an image.
        seed: Of the draws.
        temperature: Below 1 likelier colours, above 1 unlikelier ones.

    Raises:
        ConfigError: temperature is not above 0, or more pixels are known than there are.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature={temperature}: it divides and must be above 0. 1.0 draws as the model says.")
    if len(known) > length:
        raise ConfigError(
            f"{len(known)} pixels are known, of images with {length}. Sequences come first: known is int64[n, B]."
        )
    generator = torch.Generator().manual_seed(seed)
    count = known.shape[1]
    draws = torch.rand(count, length, generator=generator).to(known.device).t()
    tokens = torch.cat([known, known.new_zeros(length - len(known), count)])
    mode = backbone.training
    backbone.eval()
    try:
        with torch.inference_mode(), _one_thread(known.device):
            _fill(backbone, tokens, len(known), draws, temperature)
    finally:
        backbone.train(mode)
    return tokens


def _fill(backbone: Any, tokens: torch.Tensor, first: int, draws: torch.Tensor, temperature: float) -> None:
    has_cache = hasattr(backbone, "start") and hasattr(backbone, "extend")
    cache = backbone.start(tokens.shape[1]) if has_cache else None
    for position in range(len(tokens)):
        if cache is not None:
            logits = backbone.extend(tokens[position - 1] if position else None, cache)
        elif position >= first:
            logits = backbone(tokens[: position + 1])[position]
        if position >= first:
            tokens[position] = _choose(logits / temperature, draws[position])


def _choose(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Returns int64[B]: the first number at which the summed probabilities reach beyond the draw."""
    sums = logits.float().softmax(dim=-1).cumsum(dim=-1)
    return (sums <= draws[:, None]).sum(dim=-1).clamp_(max=logits.shape[-1] - 1)


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU: each step is so small that threads would wait for each other for longer than they work."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
