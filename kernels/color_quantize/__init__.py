"""Replaces each pixel by the nearest of K palette colours: the tokens of models that draw with a palette."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ..backend import backend_for

__all__ = ["IndexDtype", "Palette", "color_quantize"]

UNITS_PER_LEVEL = 8
"""Palette colours are multiples of an eighth of a level. Counted from 128, a channel of a pixel or of a colour is at
most 1,024 units, and |colour|**2 - 2 * colour . pixel at most 3 * 1024**2 + 6 * 1024**2 < 2**24, like each of its
partial sums. So float32 holds it exactly, and every backend finds the same colour."""
_MIDDLE = 128


@dataclass(frozen=True, slots=True)
class Palette:
    """K colours, each a multiple of an eighth of a level per channel.

    Raises:
        ValueError: There are no colours or more than 32768, or one does not have three channels within 0..255.
    """

    units: tuple[tuple[int, int, int], ...]
    """Red, green and blue of each colour, in eighths of a level."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.units) <= 32768:
            raise ValueError(f"A palette of {len(self.units)} colours: give 1 to 32768, which an int16 can index.")
        most = 255 * UNITS_PER_LEVEL
        for index, color in enumerate(self.units):
            if len(color) != 3 or not all(0 <= unit <= most for unit in color):
                raise ValueError(f"Colour {index} is {color}: give three channels of 0 to {most} eighths of a level.")

    @classmethod
    def from_levels(cls, levels: Sequence[Sequence[float]] | NDArray[np.floating] | NDArray[np.integer]) -> Palette:
        """Returns the palette of colours in levels, rounded to eighths of a level.

        Because of the rounding, the colour that is found may be up to 0.22 levels (the square root of 3, over 8)
        farther from a pixel than the nearest one.

        Args:
            levels: float[K, 3] in 0..255. Clusters c in -1..1, such as ImageGPT's, are (c + 1) * 127.5.

        Raises:
            ValueError: The shape is another, a number is not finite, or a colour is outside 0..255.
        """
        colors = np.asarray(levels, np.float64)
        if colors.ndim != 2 or colors.shape[1] != 3 or not np.isfinite(colors).all():
            raise ValueError(f"levels of shape {colors.shape}: a palette is [K, 3], finite numbers in 0..255.")
        units = np.rint(colors * UNITS_PER_LEVEL).astype(np.int64)
        return cls(tuple((int(red), int(green), int(blue)) for red, green, blue in units.tolist()))

    def coefficients(self) -> NDArray[np.float32]:
        """Returns float32[K, 4] with integer values: a distance is the first three times the pixel, plus the fourth.

        Pixels are in levels above 128. The distance is squared, in units, without the square of the pixel, which is the
        same for all colours.
        """
        centered = np.array(self.units, np.int64) - _MIDDLE * UNITS_PER_LEVEL  # int64[K, 3]
        squares = (centered**2).sum(axis=1, keepdims=True)
        return np.concatenate([-2 * UNITS_PER_LEVEL * centered, squares], axis=1).astype(np.float32)


_CHUNK = 1 << 22
"""Distances that are computed at a time: 16 MiB."""


def color_quantize_reference(pixels: torch.Tensor, coefficients: torch.Tensor, result: torch.Tensor) -> None:
    """Writes the index of the nearest colour of each pixel, the lowest among equally near ones.

    This is the specification of the kernel, and what runs where Triton does not.

    All sums are integers below 2**24, so their order does not matter.

    Args:
        pixels: uint8[P, 3].
        coefficients: float32[K, 4] of `Palette.coefficients`, on the device of the pixels.
        result: int16[P] or int32[P].
    """
    step = max(_CHUNK // coefficients.shape[0], 1)
    for start in range(0, pixels.shape[0], step):
        part = pixels[start : start + step].to(torch.float32) - 128  # float32[step, 3]
        # Not a matrix product: a setting of the process may make its precision lower than float32.
        distances = coefficients[:, 3] + part[:, :1] * coefficients[:, 0]  # float32[step, K]
        distances.addcmul_(part[:, 1:2], coefficients[:, 1])
        distances.addcmul_(part[:, 2:3], coefficients[:, 2])
        result[start : start + step] = distances.argmin(dim=1)


IndexDtype = Literal["int16", "int32"]


def color_quantize(images: torch.Tensor, palette: Palette, *, dtype: IndexDtype = "int32") -> torch.Tensor:
    """Returns the index of the nearest palette colour of each pixel, the lowest among equally near; a new tensor.

    Distances are Euclidean, in RGB. Runs on the current CUDA stream of the images' device and does not wait for it,
    except in the first call with a palette on a device, which copies the palette. On a GPU it is a Triton kernel, where
    Triton is installed. Every backend returns the same numbers.

    Args:
        images: uint8[..., 3], values 0..255, contiguous.
        palette: The colours.
        dtype: Type of the result.

    Returns:
        int16[...] or int32[...]: the shape of the images without the channels.

    Raises:
        ValueError: The images have another dtype, number of channels or memory layout, or dtype is unknown.
    """
    if images.dtype != torch.uint8 or images.ndim < 1 or images.shape[-1] != 3 or not images.is_contiguous():
        raise ValueError(
            f"{images.shape = }, {images.dtype = }, {images.stride() = }: images must be a contiguous uint8[..., 3]. "
            "Move the channels to the end and call contiguous()."
        )
    if dtype not in get_args(IndexDtype):
        raise ValueError(f"{dtype = }: allowed are {', '.join(get_args(IndexDtype))}.")
    pixels = images.reshape(-1, 3)
    result = torch.empty(images.shape[:-1], dtype=getattr(torch, dtype), device=images.device)
    coefficients = _coefficients_on(palette, images.device)
    if backend_for("color_quantize", images.device) == "reference":
        color_quantize_reference(pixels, coefficients, result.view(-1))
        return result
    from .kernel import color_quantize_triton

    with torch.cuda.device(images.device):
        color_quantize_triton(pixels, coefficients, result.view(-1))
    return result


@functools.lru_cache(maxsize=8)
def _coefficients_on(palette: Palette, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(palette.coefficients()).to(device)
