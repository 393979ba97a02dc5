"""The operation that callers use: checks its arguments, and runs the kernel on a GPU and the reference elsewhere."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal, get_args

from ..backend import backend_for
from .palette import Palette
from .reference import color_quantize_reference

if TYPE_CHECKING:
    import torch

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
    import torch

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
    import torch

    return torch.from_numpy(palette.coefficients()).to(device)
