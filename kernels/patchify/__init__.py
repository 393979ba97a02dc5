"""Cuts images of different sizes, or clips, into the packed patch tokens of native-resolution vision models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch

from ..backend import backend_for
from ..normalization import Dtype, Normalization, coefficients_for, normalize_levels, values_on
from ..pad_stack import Layout, views_in_hwc

__all__ = ["Dtype", "Grid", "Layout", "Normalization", "Patches", "patchify"]


class Grid(NamedTuple):
    """The number of patches of an image or a clip along each axis."""

    times: int
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        """Total number of patches."""
        return self.times * self.rows * self.columns

    @classmethod
    def of(cls, view: torch.Tensor, patch_size: int, frames_per_patch: int) -> Grid:
        """Returns the grid of an image uint8[H, W, C] or a clip uint8[F, H, W, C]; partial patches count.

        Args:
            view: The image or clip; an image is a clip of one frame.
            patch_size: Pixels along each side of a patch.
            frames_per_patch: Frames of a patch.
        """
        frames = view.shape[0] if view.ndim == 4 else 1
        height, width = view.shape[-3:-1]
        return cls(-(-frames // frames_per_patch), -(-height // patch_size), -(-width // patch_size))


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """The patches of several images or clips, one after the other: in time, then by row, then by column."""

    tokens: torch.Tensor
    """dtype[S, C * T * P * P]: patches of T frames and P x P pixels, in the order channel, frame, y, x. The weights of
    a convolution have the same order: `tokens @ conv.weight.flatten(1).T` is the output of Conv2d or Conv3d."""

    positions: torch.Tensor
    """int32[S, 3]: time, row and column of each patch in its image or clip, in patches."""

    cu_seqlens: torch.Tensor
    """int32[n + 1]: the start of each image and the end of the last one, for variable-length attention."""

    max_seqlen: int
    """Tokens of the longest image or clip."""

    grids: tuple[Grid, ...]
    """One per image, on the host."""

    def __repr__(self) -> str:
        shape, dtype, device = tuple(self.tokens.shape), self.tokens.dtype, self.tokens.device
        return f"Patches(tokens={shape} {dtype} on {device}, max_seqlen={self.max_seqlen}, grids={self.grids})"


def token_starts(grids: Sequence[Grid]) -> list[int]:
    """Returns n + 1 integers: the first token of each image, and the number of all tokens.

    Args:
        grids: One per image.
    """
    return [0, *accumulate(grid.tokens for grid in grids)]


def patchify_reference(
    clips: Sequence[torch.Tensor],
    patch_size: int,
    frames_per_patch: int,
    coefficients: torch.Tensor | None,
    tokens: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Writes patches and positions of each clip, with zeros outside the edge and the last frame repeated at the end.

    This is the specification of the kernel, and what runs where Triton does not.

    Args:
        clips: uint8[F, H, W, C].
        patch_size: Pixels P along each side of a patch.
        frames_per_patch: Frames T of a patch.
        coefficients: float32[2, C] on the device of the clips, or None for bytes.
        tokens: dtype[S, C * T * P * P], contiguous.
        positions: int32[S, 3], contiguous.
    """
    start = 0
    for clip in clips:
        grid = Grid.of(clip, patch_size, frames_per_patch)
        frames, height, width, channels = clip.shape
        if not grid.tokens:
            continue
        shown = torch.arange(grid.times * frames_per_patch, device=clip.device).clamp_(max=frames - 1)
        values = clip if coefficients is None else normalize_levels(clip, coefficients, tokens.dtype)
        whole = tokens.new_zeros((len(shown), grid.rows * patch_size, grid.columns * patch_size, channels))
        whole[:, :height, :width] = values[shown]
        cut = whole.view(
            grid.times, frames_per_patch, grid.rows, patch_size, grid.columns, patch_size, channels
        )  # [times, T, rows, P, columns, P, C]
        end = start + grid.tokens
        tokens[start:end] = cut.permute(0, 2, 4, 6, 1, 3, 5).reshape(grid.tokens, -1)
        axes = [torch.arange(length, dtype=torch.int32, device=clip.device) for length in grid]
        positions[start:end] = torch.cartesian_prod(*axes)
        start = end


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
            cu_seqlens = patchify_triton(clips, grids, patch_size, frames_per_patch, values, tokens, positions)
    return Patches(tokens, positions, cu_seqlens, max(grid.tokens for grid in grids), grids)
