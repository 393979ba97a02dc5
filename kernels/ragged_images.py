"""Checks images or clips of different sizes and memory layouts, and views them in the layout of the operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import torch

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
    import torch

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
