"""InternVL: tiles of the grid whose shape is closest to the image's, and a thumbnail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD, require_one_size
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig

_MOST_TILES = 256
"""Largest min_patches and max_patches."""


@dataclass(frozen=True, kw_only=True)
class InternVL(FrontEnd):
    """Resizes an image to a grid of tiles, and to one more tile, the thumbnail, if the grid has several.

    `layout.grid` is (rows, columns) of tiles. Values: dtype[tiles, 3, height, width], row by row, the thumbnail last.
    """

    tile_size: tuple[int, int]
    """(height, width) of a tile in pixels."""
    tiles: bool = True
    """Whether images are cut into tiles; if not, each becomes one tile ("crop_to_patches")."""
    min_tiles: int = 1
    """Fewest tiles of a grid, without the thumbnail."""
    max_tiles: int = 12
    """Most tiles of a grid, without the thumbnail; 1 or less does not cut images."""
    tile_tokens: int = 256
    """Tokens of a tile ("image_seq_length")."""
    start_image_token: str = "<img>"
    """Comes before the tokens of an image."""
    end_image_token: str = "</img>"
    """Comes after them."""
    resizes: bool = True
    """Whether an image that is not cut is resized to a tile."""
    image_token: str = "<IMG_CONTEXT>"

    family: ClassVar[str] = "internvl"
    processors: ClassVar[tuple[str, ...]] = ("GotOcr2ImageProcessor",)
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        size = config.take_size("size", {"height": 384, "width": 384}, square=True)
        tile_size = config.height_and_width("size", size)
        outer = config.outer
        around = outer.get("processor_class")
        if around not in (None, "InternVLProcessor"):
            raise config.error(
                f"the text of processor_class={around} is not covered, only that of InternVLProcessor. Give its "
                "image_processor if you expand the text yourself"
            )
        # InternVL's processor cuts images whatever its image processor says.
        tiles = config.take_flag("crop_to_patches", False) or around is not None
        return cls(
            **config.take_conversion(CLIP_MEAN, CLIP_STD, "bicubic"),
            tile_size=tile_size,
            tiles=tiles,
            min_tiles=config.take_integer("min_patches", 1, most=_MOST_TILES),
            max_tiles=config.take_integer("max_patches", 12, most=_MOST_TILES),
            tile_tokens=config.outer_integer("image_seq_length", 256, least=1),
            resizes=config.take_flag("do_resize", True),
            **config.take_texts(cls, "image_token", "start_image_token", "end_image_token"),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        tile_height, tile_width = self.tile_size
        if not self.tiles or self.max_tiles <= 1:
            whole = View(tile_height, tile_width) if self.resizes else View(height, width)
            return ImageLayout(height, width, (whole,), self.tile_tokens + 2, (1, 1), num_markers=2)
        grid = _choose_grid(height, width, tile_height * tile_width, self.min_tiles, self.max_tiles)
        rows, columns = grid
        views = [View(tile_height * rows, tile_width * columns, tile=self.tile_size)]
        if rows * columns > 1:
            views.append(View(tile_height, tile_width))
        tiles = rows * columns + len(views) - 1
        return ImageLayout(height, width, tuple(views), tiles * self.tile_tokens + 2, grid, num_markers=2)

    def image_text(self, layout: ImageLayout) -> str:
        return f"{self.start_image_token}{self.image_token * layout.num_features}{self.end_image_token}"

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        require_one_size(images)
        return {"num_patches": [image.rows for image in images]}


@lru_cache(maxsize=64)
def _grids(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """Returns (rows, columns) of all grids within a range of tiles: by tiles, then by columns."""
    grids = [
        (rows, columns)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if fewest <= rows * columns <= most
    ]
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))


@lru_cache(maxsize=4096)
def _choose_grid(height: int, width: int, tile_area: int, fewest: int, most: int) -> tuple[int, int]:
    """Returns (rows, columns) of the grid whose aspect ratio is closest to the image's, as GOT-OCR2's processor does.

    Of equally close grids a later one, with more tiles, wins if the image has more than half of its pixels.
    """
    aspect_ratio = width / height
    best, best_distance = (1, 1), float("inf")
    for rows, columns in _grids(fewest, most):
        distance = abs(aspect_ratio - columns / rows)
        if distance < best_distance:
            best, best_distance = (rows, columns), distance
        elif distance == best_distance and width * height > 0.5 * tile_area * rows * columns:
            best = (rows, columns)
    return best
