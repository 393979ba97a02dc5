"""Stacks images of different sizes to one padded batch, and normalises, mirrors and transposes them in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch

from ..backend import backend_for
from ..normalization import Dtype, Normalization, coefficients_for, normalize_levels, values_on

__all__ = ["Dtype", "Layout", "Normalization", "pad_stack"]

Layout = Literal["HWC", "CHW"]


def views_in_hwc(images: Sequence[torch.Tensor], layout: Layout) -> list[torch.Tensor]:
    """Returns views uint8[..., H, W, C] of images or clips in either layout; nothing is copied.

    Args:
        images: n >= 1 tensors uint8[..., H, W, C] or uint8[..., C, H, W] with 3 or 4 axes, all of one device, rank and
            number of channels; any strides, so that crops need no copy.
        layout: "HWC" or "CHW": the last three axes of the images.

    Raises:
        ValueError: There are none, the layout is unknown, an image is not uint8 or has another rank, or the images
            differ in device, rank or number of channels.
    """
    if layout not in get_args(Layout):
        raise ValueError(f"{layout = }: allowed are {', '.join(get_args(Layout))}.")
    if not images:
        raise ValueError("No images were given: give at least one, which decides device and number of channels.")
    views = [image.movedim(-3, -1) if layout == "CHW" and image.ndim >= 3 else image for image in images]
    first = views[0]
    for index, view in enumerate(views):
        given = f"image {index} has shape {tuple(images[index].shape)}, {view.dtype}, on {view.device}"
        if view.dtype != torch.uint8 or view.ndim not in (3, 4):
            raise ValueError(f"{given}: images must be uint8 with the axes {layout}, clips with a frame axis before.")
        if view.ndim != first.ndim or view.device != first.device or view.shape[-1] != first.shape[-1]:
            raise ValueError(
                f"{given}, the first one {tuple(images[0].shape)} on {first.device}, read as {layout}: all must have "
                "the same device, rank and number of channels."
            )
    return views


def pad_stack_reference(
    images: Sequence[torch.Tensor], flips: Sequence[bool], coefficients: torch.Tensor | None, result: torch.Tensor
) -> None:
    """Writes each image, mirrored and normalised, to the upper left of its part of the result, and zeros to the rest.

    This is the specification of the kernel, and what runs where Triton does not.

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
