"""Llama 4: tiles of the canvas that an image fits best, and the whole image; values as bfloat16 computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.mllama import by_shape
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_SIDE, ProcessorConfig

if TYPE_CHECKING:
    from energon_dali.decode.spec import ImageDtype

_MOST_TILES = 64
"""Largest max_patches."""


@dataclass(frozen=True, kw_only=True)
class Llama4(FrontEnd):
    """Fits an image into a canvas of tiles, with black at the right and at the bottom; a tile of all of it follows.

    `layout.grid` is (rows, columns) of tiles; an image of one tile is not followed by another. Values:
    dtype[tiles, 3, tile_size, tile_size], row by row.
    """

    tile_size: int = 336
    """Pixels of a tile's side."""
    max_tiles: int = 16
    """Most tiles of a canvas ("max_patches")."""
    enlarges: bool = False
    """Whether images are enlarged to the largest canvas that they fit, and not at most to a tile
    ("resize_to_max_canvas")."""
    patch_size: int = 14
    """Pixels of a patch's side in the vision encoder."""
    downsample_ratio: int = 4
    """Patches that become one token."""
    image_token: str = "<|image|>"
    """Placeholder of an image in the text. In the expanded text it is before the last tile's features."""
    feature_token: str = "<|patch|>"
    """Placeholder of a feature in the expanded text."""

    family: ClassVar[str] = "llama4"
    processors: ClassVar[tuple[str, ...]] = ("Llama4ImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    separate_placeholder: ClassVar[bool] = True
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_resize", True, "Llama 4's processor always resizes")
        side = config.take_square("size", 336)
        ratio = config.outer_number("pixel_shuffle_ratio", 0.5, least=0.05, most=1)
        conversion = config.take_conversion(HALF, HALF, "bilinear")
        values = conversion["values"]
        if values.mean is not None:
            if values.rescale is None:
                raise config.error("do_normalize=True needs do_rescale=True: the processor normalises no bytes")
            conversion["values"] = replace(values, arithmetic="bfloat16")
        return cls(
            **conversion,
            tile_size=side,
            max_tiles=config.take_integer("max_patches", 16, most=_MOST_TILES),
            enlarges=config.take_flag("resize_to_max_canvas", False),
            patch_size=config.outer_integer("patch_size", 14, least=1, most=LARGEST_SIDE),
            downsample_ratio=config.outer_integer("downsample_ratio", round(1.0 / ratio**2), least=1),
            image_token=config.outer_text("fake_image_token", cls.image_token),
        )

    def own_dtype(self) -> ImageDtype:
        return "bfloat16" if self.values.arithmetic == "bfloat16" else super().own_dtype()

    def layout(self, width: int, height: int) -> ImageLayout:
        side = self.tile_size
        rows, columns = _choose_canvas(height, width, side, self.max_tiles, self.enlarges)
        canvas = (rows * side, columns * side)
        fitted = _fit(height, width, canvas, None if self.enlarges else side)
        views: tuple[View, ...] = (View(*fitted, canvas=canvas, tile=(side, side)),)
        markers = 3
        if rows * columns > 1:
            views = (*views, View(side, side))
            markers += rows * columns  # a separator after each tile
        tiles = sum(view.num_tiles for view in views)
        tokens = tiles * self._tile_tokens + markers
        return ImageLayout(height, width, views, tokens, (rows, columns), num_markers=markers)

    @property
    def _tile_tokens(self) -> int:
        return (self.tile_size // self.patch_size) ** 2 // self.downsample_ratio

    def image_text(self, layout: ImageLayout) -> str:
        rows, columns = layout.grid
        tile = self.feature_token * self._tile_tokens
        row = "<|tile_x_separator|>".join([tile] * columns) + "<|tile_y_separator|>"
        tiles = row * rows if rows * columns > 1 else ""
        return f"<|image_start|>{tiles}<|image|>{tile}<|image_end|>"

    def kept_placeholders(self, layout: ImageLayout) -> int:
        return 1

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        return {"aspect_ratios": [image.layout.grid for image in images]}


@lru_cache(maxsize=4096)
def _choose_canvas(height: int, width: int, tile: int, most: int, enlarges: bool) -> tuple[int, int]:
    """Returns (rows, columns) of the canvas in which an image is least enlarged (or most, if `enlarges`), else least
    reduced. Of canvases that are equal in this, in the processor's float32, the smallest wins.
    """
    canvases = [grid for same in by_shape(most).values() for grid in same]
    tall, wide = np.float32(height), np.float32(width)
    scales = [min(np.float32(rows * tile) / tall, np.float32(columns * tile) / wide) for rows, columns in canvases]
    enlarging = [scale for scale in scales if scale >= 1]
    wanted = (max if enlarges else min)(enlarging) if enlarging else max(scales)
    equal = [grid for grid, scale in zip(canvases, scales, strict=True) if scale == wanted]
    return min(equal, key=lambda grid: grid[0] * grid[1])


def _fit(height: int, width: int, canvas: tuple[int, int], most: int | None) -> tuple[int, int]:
    """Returns (height, width) of an image on a canvas.

    Args:
        height: Of the image.
        width: Likewise.
        canvas: (height, width), in which it is as large as possible.
        most: Side to which a smaller image is enlarged at most; None does not limit it.
    """
    tall, scale_y = _limit(height, canvas[0], most)
    wide, scale_x = _limit(width, canvas[1], most)
    if scale_x < scale_y:
        return max(1, min(math.floor(height * scale_x), tall)), wide
    return tall, max(1, min(math.floor(width * scale_y), wide))


def _limit(length: int, limit: int, most: int | None) -> tuple[int, float]:
    """Returns the longest a side may become, and how many times as long as it is: in float32 where the canvas decides,
    as in the processor, where sides of canvases are tensors.
    """
    wanted = limit + 1 if most is None else max(length, most)
    if limit < wanted:
        return limit, np.float32(limit) / np.float32(length)
    return wanted, wanted / length
