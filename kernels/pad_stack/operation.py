"""The operation that callers use: checks its arguments, and runs the kernel on a GPU and the reference elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from ..backend import backend_for
from ..normalization import Dtype, Normalization, coefficients_for, values_on
from ..ragged_images import Layout, views_in_hwc
from .reference import pad_stack_reference

if TYPE_CHECKING:
    import torch

_MAX_PIXELS = 2**31 - 2048
"""Most pixels of an image of the batch, because the kernel counts in 32 bits; less one block."""


def pad_stack(
    images: Sequence[torch.Tensor],
    *,
    dtype: Dtype = "uint8",
    normalization: Normalization | None = None,
    layout: Layout = "CHW",
    input_layout: Layout = "HWC",
    flips: Sequence[bool] | None = None,
    size: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Returns images of different sizes as one batch, with zeros below and to the right; always a new tensor.

    Runs on the current CUDA stream of the images' device and does not wait for it. On a GPU it is one Triton kernel,
    where Triton is installed. Every backend returns the same bits.

    Args:
        images: n >= 1 uint8 images with values 0..255, of any strides, on one device.
        dtype: Type of the result.
        normalization: The map from levels to floats; level / 255 if None. Padding is zero after it.
        layout: "CHW" returns [n, C, H, W], "HWC" returns [n, H, W, C].
        input_layout: Layout of the images.
        flips: Which images are mirrored, left to right; None for none.
        size: Height and width of the result, in pixels; if None, those of the highest and of the widest image.

    Raises:
        ValueError: There are no images, they are not uint8 or have not 3 axes, or differ in device or channels; dtype
            or layout is unknown; bytes cannot be normalised; flips are not one per image; or the size is smaller than
            an image or larger than 2**31 pixels.
    """
    import torch

    views = views_in_hwc(images, input_layout)
    first = views[0]
    channels = first.shape[-1]
    if first.ndim != 3:
        raise ValueError(f"The first image has shape {tuple(images[0].shape)}: give images of 3 axes, not clips.")
    if layout not in get_args(Layout):
        raise ValueError(f"{layout = }: allowed are {', '.join(get_args(Layout))}.")
    if flips is None:
        flips = [False] * len(views)
    if len(flips) != len(views):
        raise ValueError(f"{len(flips) = } for {len(views)} images: give one per image, or None to mirror none.")
    height, width = _size_of(views, size)
    coefficients = coefficients_for(dtype, normalization, channels)
    shape = (len(views), channels, height, width) if layout == "CHW" else (len(views), height, width, channels)
    batch = torch.empty(shape, dtype=getattr(torch, dtype), device=first.device)
    in_hwc = batch.movedim(1, -1) if layout == "CHW" else batch
    if backend_for("pad_stack", first.device) == "reference":
        placed = None if coefficients is None else coefficients.to(first.device)
        pad_stack_reference(views, flips, placed, in_hwc)
        return batch
    from .kernel import pad_stack_triton

    values = None if dtype == "uint8" else values_on(first.device, dtype, normalization, channels)
    with torch.cuda.device(first.device):
        pad_stack_triton(views, flips, values, in_hwc)
    return batch


def _size_of(views: Sequence[torch.Tensor], size: tuple[int, int] | None) -> tuple[int, int]:
    height, width = max(view.shape[0] for view in views), max(view.shape[1] for view in views)
    wanted = (height, width) if size is None else (size[0], size[1])
    if wanted[0] < height or wanted[1] < width or wanted[0] * wanted[1] > _MAX_PIXELS:
        raise ValueError(
            f"{size = } for images of up to {height} x {width}: give at least that, and at most {_MAX_PIXELS} pixels."
        )
    return wanted
