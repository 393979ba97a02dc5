"""Rows of small pictures with their names, as one picture."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from PIL import Image, ImageDraw

_SIDE_PX = 96
"""Height of a picture in the grid, about."""
_GAP_PX = 4
_NAME_PX = 76
_PAPER = (255, 255, 255)
_INK = (32, 32, 32)


def picture_grid(rows: Mapping[str, torch.Tensor]) -> Image.Image:
    """Returns the grid, RGB: one row per name, each picture magnified by a whole factor, its pixels as squares.

    Args:
        rows: uint8[N, 3, H, W] each, on any device; H and W are those of the first row.
    """
    height, width = next(iter(rows.values())).shape[-2:]
    scale = max(1, _SIDE_PX // height)
    step_x, step_y = width * scale + _GAP_PX, height * scale + _GAP_PX
    columns = max(len(row) for row in rows.values())
    grid = Image.new("RGB", (_NAME_PX + columns * step_x, _GAP_PX + len(rows) * step_y), _PAPER)
    pen = ImageDraw.Draw(grid)
    for number, (name, pictures) in enumerate(rows.items()):
        top = _GAP_PX + number * step_y
        pen.text((_GAP_PX, top + height * scale // 2 - 6), name, fill=_INK)
        for column, pixels in enumerate(pictures.permute(0, 2, 3, 1).cpu().numpy()):
            picture = Image.fromarray(pixels).resize((width * scale, height * scale), Image.Resampling.NEAREST)
            grid.paste(picture, (_NAME_PX + column * step_x, top))
    return grid
