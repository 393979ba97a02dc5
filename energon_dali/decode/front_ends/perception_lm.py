"""Perception LM: a thumbnail, and tiles of the grid whose shape suits an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.internvl import MOST_TILES
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.mllama import by_shape
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_SIDE, ProcessorConfig


@dataclass(frozen=True, kw_only=True)
class PerceptionLM(FrontEnd):
    """Resizes an image to one tile, and to a grid of tiles. `layout.grid` is (rows, columns) of tiles.

    Values: dtype[1 + tiles, 3, tile_size, tile_size], the thumbnail first. `batch_vision` returns them per image if all
    have as many tiles; if not, as those of one image, which the model takes likewise.
    """

    tile_size: int = 448
    """Pixels of a tile's side."""
    max_tiles: int = 36
    """Most tiles of a grid, without the thumbnail."""
    tiles: bool = True
    """Whether there are tiles next to the thumbnail (vision_input_type="thumb+tile")."""
    patch_size: int = 14
    """Pixels of a patch's side in the vision tower."""
    pooling_ratio: int = 2
    """Patches per side that become one token."""
    image_token: str = "<|image|>"

    family: ClassVar[str] = "perception_lm"
    processors: ClassVar[tuple[str, ...]] = ("PerceptionLMImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"size"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_resize", True, "images that are not resized are not tiles")
        kind = config.take("vision_input_type", "thumb+tile")
        if not isinstance(kind, str):
            raise config.invalid("vision_input_type", kind, 'a text, such as "thumb+tile"')
        return cls(
            **config.take_conversion(HALF, HALF, "bicubic"),
            tile_size=config.take_integer("tile_size", 448, most=LARGEST_SIDE),
            max_tiles=config.take_integer("max_num_tiles", 36, most=MOST_TILES),
            tiles=kind == "thumb+tile",
            patch_size=config.outer_integer("patch_size", 14, least=1),
            pooling_ratio=config.outer_integer("pooling_ratio", 2, least=1),
            image_token=config.outer_text("image_token", cls.image_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        side = self.tile_size
        views: tuple[View, ...] = (View(side, side),)
        grid = (0, 0)
        if self.tiles:
            columns, rows = _choose(width, height, side, self.max_tiles)
            views = (*views, View(rows * side, columns * side, tile=(side, side)))
            grid = (rows, columns)
        tokens = (side // self.patch_size // self.pooling_ratio) ** 2 * (1 + grid[0] * grid[1])
        return ImageLayout(height, width, views, tokens, grid)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        images = [image for sample in samples for image in sample]
        values: Any = self.concatenated(images)
        alike = len({image.rows for image in images}) == 1
        return {"pixel_values": values.view(len(images) if alike else 1, -1, *values.shape[1:])}


@lru_cache(maxsize=4096)
def _choose(width: int, height: int, tile: int, most: int) -> tuple[int, int]:
    """Returns (columns, rows) of the grid in which an image is largest of those that hold it at its own size, else of
    the grid whose shape is closest to it.
    """
    if most == 1:
        return 1, 1
    best: tuple[int, int] | None = None
    best_length: float = 0
    for columns, rows in (grid for same in by_shape(most).values() for grid in same):
        if columns * tile < width or rows * tile < height:
            continue
        length = _fitted(width, height, columns * tile, rows * tile)
        if best is None or length >= best_length:
            best, best_length = (columns, rows), length
    return best or _closest(width / height, most)


def _fitted(width: int, height: int, wide: int, tall: int) -> float:
    """Returns the length that grids are compared by: of the shorter side of an image that is fitted into a canvas."""
    ratio = width / height
    scale = min(wide / width, tall / height)
    if ratio > 1.0:
        return math.floor(scale * width / ratio)
    new_height = scale * height
    return new_height if ratio >= 1.0 else math.floor(new_height * ratio)


def _closest(ratio: float, most: int) -> tuple[int, int]:
    """Returns (columns, rows) of the largest grid of the shape that is closest to a ratio, and not beyond it."""
    shapes = by_shape(most)
    if ratio >= 1:
        closest = min((shape for shape in shapes if shape <= ratio), key=lambda shape: abs(shape - ratio))
        return max(shapes[closest], key=lambda grid: grid[0])
    closest = min((shape for shape in shapes if shape > ratio), key=lambda shape: abs(1 / shape - 1 / ratio))
    return max(shapes[closest], key=lambda grid: grid[1])
