"""Cuts a canvas of bytes into tiles or patches; nothing is converted yet, so this moves as few bytes as possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from energon_dali.decode.front_ends.layout import View
from energon_dali.decode.front_ends.resampling import Pixels

if TYPE_CHECKING:
    import torch


def placed(pixels: Pixels, view: View, fill: tuple[int, int, int]) -> torch.Tensor:
    """Returns the canvas of a view: uint8[3, H, W], or uint8[n, 3, H, W] of images of one size; contiguous."""
    planes = pixels.planes()
    height, width = view.canvas_size
    if (height, width) == (view.height, view.width) and view.position == (0, 0):
        return planes
    import torch

    shape = (*planes.shape[:-2], height, width)
    if len(set(fill)) == 1:
        canvas = torch.full(shape, fill[0], dtype=torch.uint8, device=planes.device)
    else:
        canvas = torch.empty(shape, dtype=torch.uint8, device=planes.device)
        for plane, level in zip(canvas.unbind(-3), fill, strict=True):  # a tensor of three would be copied to a GPU
            plane.fill_(level)
    top, left = view.position
    rows = slice(max(0, top), min(height, top + view.height))
    columns = slice(max(0, left), min(width, left + view.width))
    inside = (..., slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left))
    canvas[..., rows, columns] = planes[inside]
    return canvas


def clear_outside(tiles: torch.Tensor, view: View) -> None:
    """Sets what is outside the view to zero, in the tiles [n, 3, height, width] of its canvas."""
    height, width = view.tile_size
    columns = view.canvas_size[1] // width
    top, left = view.position
    for number in range(len(tiles)):
        tile_top, tile_left = number // columns * height, number % columns * width
        first_row, last_row = (min(max(edge - tile_top, 0), height) for edge in (top, top + view.height))
        first, last = (min(max(edge - tile_left, 0), width) for edge in (left, left + view.width))
        tile = tiles[number]
        tile[:, :first_row] = 0
        tile[:, last_row:] = 0
        tile[:, :, :first] = 0
        tile[:, :, last:] = 0


def cut_tiles(planes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Returns the tiles of a canvas, row by row; with an axis before those of the canvas, of several.

    Args:
        planes: uint8[..., 3, rows * height, columns * width].
        height: Pixels of a tile.
        width: Likewise.

    Returns:
        uint8[..., rows * columns, 3, height * width]; a view if there is one tile.
    """
    cut = _grid(planes, height, width)
    rows, columns, channels = cut.shape[-5:-2]
    return cut.reshape(*cut.shape[:-5], rows * columns, channels, height * width)


def cut_all_tiles(canvases: Iterable[tuple[View, torch.Tensor]]) -> torch.Tensor:
    """Returns the tiles of all canvases of an image in turn, each written into its place once.

    Args:
        canvases: At least one view and its canvas, uint8[..., 3, H, W]. Their tiles have one size.

    Returns:
        uint8[..., tiles, 3, height * width]; a view if there is one tile.
    """
    given = list(canvases)
    if len(given) == 1:
        return cut_tiles(given[0][1], *given[0][0].tile_size)
    grids = [_grid(canvas, *view.tile_size) for view, canvas in given]
    counts = [grid.shape[-5] * grid.shape[-4] for grid in grids]
    several, tile = grids[0].shape[:-5], grids[0].shape[-3:]
    tiles = grids[0].new_empty((*several, sum(counts), *tile))
    for grid, part in zip(grids, tiles.split(counts, len(several)), strict=True):  # type: ignore[no-untyped-call]
        part.view(grid.shape).copy_(grid)
    return tiles.flatten(-2)


def _grid(planes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Returns a view of a canvas as its tiles: uint8[..., rows, columns, 3, height, width]."""
    several, channels = planes.shape[:-3], planes.shape[-3]
    rows, columns = planes.shape[-2] // height, planes.shape[-1] // width
    cut = planes.reshape(*several, channels, rows, height, columns, width)
    return cut.movedim((-4, -2), (-5, -4))


def cut_patches(planes: torch.Tensor, patch: int, merge: int = 1) -> torch.Tensor:
    """Returns the square patches of a canvas, those that a model merges next to each other.

    Args:
        planes: uint8[3, H, W]; H and W are multiples of patch * merge.
        patch: Pixels of a side.
        merge: Patches per side of a block. Blocks follow each other row by row, and so do the patches of a block.

    Returns:
        uint8[H / patch * W / patch, 3, patch * patch].
    """
    channels, height, width = planes.shape
    rows, columns = height // patch, width // patch
    if planes.is_cuda:
        from energon_dali.kernels.merge_patches import merge_patches

        made: torch.Tensor = merge_patches(planes[None, None], (patch, patch), merge_size=merge)
        return made.view(-1, channels, patch * patch)
    import torch

    # One row of a patch is one item of numpy, which copies it at once. torch would copy byte by byte.
    items = np.ascontiguousarray(planes.numpy()).view(f"V{patch}")
    grid_of_rows = items.reshape(channels, rows // merge, merge, patch, columns // merge, merge)
    cut = np.ascontiguousarray(grid_of_rows.transpose(1, 4, 2, 5, 0, 3)).view(np.uint8)
    return torch.from_numpy(cut.reshape(rows * columns, channels, patch * patch))


def cut_pixel_patches(pixels: torch.Tensor, patch: int) -> torch.Tensor:
    """Returns the square patches of a canvas, row by row, with the channel of each pixel last.

    Args:
        pixels: uint8[3, H, W], fastest in memory [H, W, 3]; H and W are multiples of `patch`.
        patch: Pixels of a side.

    Returns:
        uint8[H / patch * W / patch, patch * patch, 3].
    """
    channels, height, width = pixels.shape
    rows, columns = height // patch, width // patch
    grid = pixels.permute(1, 2, 0).reshape(rows, patch, columns, patch * channels)
    return grid.permute(0, 2, 1, 3).reshape(rows * columns, patch * patch, channels)
