"""Cuts frames of one size into patches, in the order in which a model merges them, and looks up their values."""

from __future__ import annotations

import math

import torch

from ..backend import backend_for

__all__ = ["merge_patches"]


def merge_patches_reference(
    frames: torch.Tensor,
    patch: tuple[int, int],
    merge_size: int,
    frames_per_patch: int,
    values: torch.Tensor | None,
    channels_last: bool,
) -> torch.Tensor:
    """Returns the patches of `merge_patches`; the arguments are the same.

    This is the specification of the kernel, and what runs where Triton does not.
    """
    images, count, channels, height, width = frames.shape
    times = -(-count // frames_per_patch)
    rows, columns = height // patch[0] // merge_size, width // patch[1] // merge_size
    if times * frames_per_patch > count:
        last = frames[:, -1:].expand(-1, times * frames_per_patch - count, -1, -1, -1)
        frames = torch.cat([frames, last], dim=1)
    cut = frames.reshape(
        images, times, frames_per_patch, channels, rows, merge_size, patch[0], columns, merge_size, patch[1]
    )
    # [images, times, rows, columns, row and column in a block, then the values of a patch]
    order = (2, 6, 9, 3) if channels_last else (3, 2, 6, 9)
    cut = cut.permute(0, 1, 4, 7, 5, 8, *order)
    pixels = patch[0] * patch[1]
    shape = (frames_per_patch, pixels, channels) if channels_last else (channels, frames_per_patch, pixels)
    bytes_ = cut.reshape(images, times, rows * columns * merge_size**2, *shape)
    if values is None:
        return bytes_.contiguous()
    number = torch.arange(channels, dtype=torch.int32, device=frames.device)
    return values[number if channels_last else number[:, None, None], bytes_.int()]


def merge_patches(
    frames: torch.Tensor,
    patch: tuple[int, int],
    *,
    merge_size: int = 1,
    frames_per_patch: int = 1,
    values: torch.Tensor | None = None,
    channels_last: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the patches of images or clips of one size, as bytes or as their values.

    Blocks of `merge_size` x `merge_size` patches follow each other row by row, and so do the patches of a block. Runs
    on the current CUDA stream of the frames' device and does not wait for it. On a GPU it is one Triton kernel, where
    Triton is installed. Every backend returns the same bits: values are looked up, not computed.

    Args:
        frames: uint8[n, frames, C, H, W] of any strides.
        patch: (height, width) of a patch in pixels; H and W are multiples of it times `merge_size`.
        merge_size: Patches per side of a block.
        frames_per_patch: Frames T of a patch. After the last frame it is repeated.
        values: dtype[C, 256], contiguous, on the device of the frames: the value of each byte. None leaves bytes.
        channels_last: Whether the fastest axis of a patch is the channel.
        out: Where to write them: contiguous, of the dtype, with as many elements. None makes a new tensor.

    Returns:
        dtype[n, ceil(frames / T), patches of a frame, C, T, height * width], or [..., T, height * width, C].

    Raises:
        ValueError: The frames are not uint8 of five axes, the sizes do not divide them, or the values or `out` do not
            fit.
    """
    if frames.dtype != torch.uint8 or frames.ndim != 5 or 0 in frames.shape[1:]:
        raise ValueError(f"{frames.shape = }, {frames.dtype = }: frames must be uint8[n, frames, C, H, W].")
    channels, height, width = frames.shape[2:]
    if min(*patch, merge_size, frames_per_patch) < 1:
        raise ValueError(f"{patch = }, {merge_size = }, {frames_per_patch = }: each must be at least 1.")
    if height % (patch[0] * merge_size) or width % (patch[1] * merge_size):
        raise ValueError(
            f"{frames.shape = }, {patch = }, {merge_size = }: both sides must be multiples of a block's. Resize or pad "
            "the frames."
        )
    if values is not None and (values.shape != (channels, 256) or not values.is_contiguous()):
        raise ValueError(f"{values.shape = }: the values must be a contiguous dtype[{channels}, 256].")
    times = -(-frames.shape[1] // frames_per_patch)
    count, pixels = height * width // (patch[0] * patch[1]), patch[0] * patch[1]
    inner = (frames_per_patch, pixels, channels) if channels_last else (channels, frames_per_patch, pixels)
    shape = (frames.shape[0], times, count, *inner)
    dtype = torch.uint8 if values is None else values.dtype
    if out is not None and (out.dtype != dtype or not out.is_contiguous() or out.numel() != math.prod(shape)):
        raise ValueError(f"{out.shape = }, {out.dtype = }: out must be contiguous, {dtype}, and as large as {shape}.")
    if backend_for("merge_patches", frames.device) == "reference":
        made = merge_patches_reference(frames, patch, merge_size, frames_per_patch, values, channels_last)
        return made if out is None else out.view(shape).copy_(made)
    from .kernel import merge_patches_triton

    result = torch.empty(shape, dtype=dtype, device=frames.device) if out is None else out.view(shape)
    with torch.cuda.device(frames.device):
        merge_patches_triton(frames, patch, merge_size, frames_per_patch, values, channels_last, result)
    return result
