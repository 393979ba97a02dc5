"""What a front end made of an image or video, put back together by its layout: views, tiles and patches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import View
from energon_dali.view.pixels import MAX_IMAGES, Normalisation, ShownImage, join_patches, show_image


def vision_images(vision: VisionInput, values: npt.NDArray[Any]) -> list[ShownImage]:
    """Returns the views that a model sees of an image, or of the frames of a video.

    Args:
        vision: What the decoder gave.
        values: Its values, on the CPU: tiles (..., 3, H, W), or patches (N, D) in the order of the front end.
    """
    normalisation = undo_of(vision)
    found: list[ShownImage] = []
    if values.ndim >= 4 and values.shape[-3] in (1, 3):
        tiles = values.reshape(-1, *values.shape[-3:]).transpose(0, 2, 3, 1)
        for image, note in _views(tiles, vision.layout.views):
            found.append(show_image(image, note, normalisation))
            if len(found) == MAX_IMAGES:
                break
        return found
    grid = vision.layout.grid
    if values.ndim == 2 and len(grid) in (2, 3):
        frames, rows, columns = grid if len(grid) == 3 else (1, *grid)
        if frames * rows * columns <= len(values):
            patches = np.asarray(values[: frames * rows * columns], np.float32)
            found += [
                show_image(image, note, normalisation) for image, note in join_patches(patches, frames, rows, columns)
            ]
    return found


def undo_of(vision: VisionInput) -> Normalisation | None:
    """Returns mean and standard deviation, of values from 0 to 1, that the front end applies; None if it does not."""
    pixels = vision.front_end.values
    if str(vision.values.dtype) == "torch.uint8":
        return None
    scale = 1.0 if pixels.rescale is None else pixels.rescale * 255
    mean, std = pixels.mean or (0.0,), pixels.std or (1.0,)
    return tuple(value / scale for value in mean), tuple(value / scale for value in std)


def _views(tiles: npt.NDArray[Any], views: tuple[View, ...]) -> Iterator[tuple[npt.NDArray[Any], str]]:
    """Yields (image, how it was made) of the emitted views, frame after frame; of single tiles if they do not fit."""
    emitted = [view for view in views if view.emitted]
    per_frame = sum(view.num_tiles for view in emitted)
    fits = per_frame and len(tiles) % per_frame == 0
    if not fits or any(view.tile_size != tiles.shape[1:3] for view in emitted):
        yield from ((tile, "") for tile in tiles)
        return
    for first in range(0, len(tiles), per_frame):
        start = first
        for view in emitted:
            (height, width), (tile_height, tile_width) = view.canvas_size, view.tile_size
            rows, columns = height // tile_height, width // tile_width
            part = tiles[start : start + rows * columns]
            start += rows * columns
            if rows * columns == 1:
                yield part[0], ""
                continue
            whole = part.reshape(rows, columns, tile_height, tile_width, -1).swapaxes(1, 2)
            yield whole.reshape(height, width, -1), f"{rows} x {columns} tiles put together"
