"""The operation that callers use: checks its arguments, and runs the kernel on a GPU and the reference elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..backend import backend_for
from ..normalization import Dtype, Normalization, coefficients_for, values_on
from ..ragged_images import Layout, views_in_hwc
from .patches import Grid, Patches, token_starts
from .reference import patchify_reference

if TYPE_CHECKING:
    import torch

_MAX_IMAGES = 65535
"""Most images of one call, because they are the second axis of a launch."""
_MAX_TOKENS = 2**31 - 1
"""Most tokens of one call, because cu_seqlens has 32 bits."""


def patchify(
    images: Sequence[torch.Tensor],
    patch_size: int,
    *,
    frames_per_patch: int = 1,
    dtype: Dtype = "float32",
    normalization: Normalization | None = None,
    input_layout: Layout = "HWC",
) -> Patches:
    """Returns the patches of images or clips of different sizes, packed one after the other; always new tensors.

    A patch that extends over the edge is filled with zeros, after normalisation. One that extends over the end of a
    clip repeats the last frame, so an image with `frames_per_patch=2` is a clip of two equal frames. Runs on the
    current CUDA stream of the images' device and does not wait for it. On a GPU it is one Triton kernel, where Triton
    is installed. Every backend returns the same bits.

    Args:
        images: n >= 1 uint8 images, or clips with a frame axis before, of any strides, on one device.
        patch_size: Pixels along each side of a patch.
        frames_per_patch: Frames of a patch.
        dtype: Type of the tokens.
        normalization: The map from levels to floats; level / 255 if None.
        input_layout: Layout of the images, or of the frames of clips.

    Raises:
        ValueError: There are no images or more than 65535, they are not uint8 images or clips, differ in device, rank
            or channels; a layout or dtype is unknown; bytes cannot be normalised; a patch has no size; or there are
            2**31 tokens or more.
    """
    import torch

    views = views_in_hwc(images, input_layout)
    if patch_size < 1 or frames_per_patch < 1:
        raise ValueError(f"{patch_size = }, {frames_per_patch = }: a patch must have at least one pixel and one frame.")
    device, channels = views[0].device, views[0].shape[-1]
    coefficients = coefficients_for(dtype, normalization, channels)
    grids = tuple(Grid.of(view, patch_size, frames_per_patch) for view in views)
    starts = token_starts(grids)
    if len(views) > _MAX_IMAGES or starts[-1] > _MAX_TOKENS:
        raise ValueError(
            f"{len(views)} images with {starts[-1]} tokens: at most {_MAX_IMAGES} and {_MAX_TOKENS} in one call. Call "
            "it for parts of them."
        )
    length = channels * frames_per_patch * patch_size**2
    tokens = torch.empty((starts[-1], length), dtype=getattr(torch, dtype), device=device)
    positions = torch.empty((starts[-1], 3), dtype=torch.int32, device=device)
    clips = [view if view.ndim == 4 else view[None] for view in views]
    if backend_for("patchify", device) == "reference":
        placed = None if coefficients is None else coefficients.to(device)
        patchify_reference(clips, patch_size, frames_per_patch, placed, tokens, positions)
        cu_seqlens = torch.tensor(starts, dtype=torch.int32, device=device)
    else:
        from .kernel import patchify_triton

        values = None if dtype == "uint8" else values_on(device, dtype, normalization, channels)
        with torch.cuda.device(device):
            cu_seqlens = patchify_triton(clips, patch_size, frames_per_patch, values, tokens, positions)
    return Patches(tokens, positions, cu_seqlens, max(grid.tokens for grid in grids), grids)
