"""Images and frames at their own size, padded to whole blocks of patches within a budget, as GLM-5 has them."""

from __future__ import annotations

import math

from energon_dali.decode.front_ends.layout import View


def whole_blocks(
    frames: int, height: int, width: int, temporal: int, block: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Returns (height, width) of the canvas of frames, rounded up to blocks, with all its pixels within a range.

    The rule is that of GLM-5's processors in transformers; the arguments are those of `smart_resize_frames`.
    """

    def up(side: float) -> int:
        return math.ceil(side / block) * block

    count = max(temporal, round(frames / temporal) * temporal)
    rows, columns = up(height), up(width)
    if count * rows * columns < min_pixels:
        scale = math.sqrt(min_pixels / (frames * height * width))
        rows, columns = up(max(1, math.ceil(height * scale))), up(max(1, math.ceil(width * scale)))
    if count * rows * columns <= max_pixels:
        return rows, columns
    low, high, best = 1, height, (block, block)
    while low <= high:
        middle = (low + high) // 2
        canvas = up(middle), up(max(1, math.floor(width * middle / height)))
        if count * canvas[0] * canvas[1] <= max_pixels:
            best, low = canvas, middle + 1
        else:
            high = middle - 1
    return best


def view_in_blocks(canvas: tuple[int, int], height: int, width: int, frames: int, min_pixels: int) -> View:
    """Returns an image in the corner of its canvas: enlarged only if it has fewer pixels than there must be.

    Args:
        canvas: (height, width) that `whole_blocks` returned.
        height: Of the image in pixels.
        width: Likewise.
        frames: Frames of the video.
        min_pixels: Fewest pixels of all frames.
    """
    scale = min(canvas[0] / height, canvas[1] / width)
    if frames * height * width >= min_pixels:
        scale = min(1.0, scale)
    rows, columns = (
        max(1, min(most, math.floor(side * scale))) for most, side in zip(canvas, (height, width), strict=True)
    )
    return View(rows, columns, canvas=canvas)
