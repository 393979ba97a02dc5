"""InternVL, GOT-OCR2, Aya Vision: tiles of the grid whose shape is closest to the image's, and a thumbnail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD, require_one_size
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig

MOST_TILES = 256
"""Largest min_patches and max_patches."""


@dataclass(frozen=True, kw_only=True)
class TileGrid(FrontEnd):
    """Resizes an image to a grid of tiles, and to one more tile, the thumbnail, if the grid has several.

    `layout.grid` is (rows, columns) of tiles. Values: dtype[tiles, 3, height, width], row by row, the thumbnail last or
    first.
    """

    tile_size: tuple[int, int]
    """(height, width) of a tile in pixels."""
    tiles: bool = True
    """Whether images are cut into tiles; if not, each becomes one tile ("crop_to_patches")."""
    min_tiles: int = 1
    """Fewest tiles of a grid, without the thumbnail."""
    max_tiles: int = 12
    """Most tiles of a grid, without the thumbnail; 1 or less does not cut images."""
    resizes: bool = True
    """Whether an image that is not cut is resized to a tile."""

    thumbnail_first: ClassVar[bool] = False
    """Whether the thumbnail is before the tiles."""
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Returns (rows, columns) of the tiles of an image."""
        tile_height, tile_width = self.tile_size
        return closest_grid(height, width, tile_height * tile_width, self.min_tiles, self.max_tiles)

    def tiled(self, height: int, width: int) -> tuple[tuple[View, ...], tuple[int, int]]:
        """Returns the views of an image and its (rows, columns) of tiles."""
        tile = View(*self.tile_size)
        if not self.tiles or self.max_tiles <= 1:
            return (tile if self.resizes else View(height, width),), (1, 1)
        rows, columns = self.grid(height, width)
        grid = View(tile.height * rows, tile.width * columns, tile=self.tile_size)
        if rows * columns == 1:
            return (grid,), (1, 1)
        return (tile, grid) if self.thumbnail_first else (grid, tile), (rows, columns)

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        require_one_size(images)
        return {"num_patches": [image.rows for image in images]}


def take_tile_fields(config: ProcessorConfig, side: int, *, crops: bool = False) -> dict[str, Any]:
    """Returns the fields of `TileGrid`, and those of `take_conversion`.

    Args:
        config: Of the processor.
        side: Default of size, in both directions.
        crops: Default of crop_to_patches.

    Raises:
        ConfigError: A value is not supported.
    """
    size = config.take_size("size", {"height": side, "width": side}, square=True)
    return {
        **config.take_conversion(CLIP_MEAN, CLIP_STD, "bicubic"),
        "tile_size": config.height_and_width("size", size),
        "tiles": config.take_flag("crop_to_patches", crops),
        "min_tiles": config.take_integer("min_patches", 1, most=MOST_TILES),
        "max_tiles": config.take_integer("max_patches", 12, most=MOST_TILES),
        "resizes": config.take_flag("do_resize", True),
    }


@dataclass(frozen=True, kw_only=True)
class InternVL(TileGrid):
    """Tiles, and a thumbnail after them, with the tokens of an image between two markers."""

    tile_tokens: int = 256
    """Tokens of a tile ("image_seq_length")."""
    start_image_token: str = "<img>"
    """Comes before the tokens of an image."""
    end_image_token: str = "</img>"
    """Comes after them."""
    image_token: str = "<IMG_CONTEXT>"

    family: ClassVar[str] = "internvl"
    processors: ClassVar[tuple[str, ...]] = ("GotOcr2ImageProcessor",)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        around = config.take_around("InternVLProcessor", "QianfanOCRProcessor")
        fields = take_tile_fields(config, 384)
        # InternVL's processor cuts images whatever its image processor says.
        fields["tiles"] = fields["tiles"] or around is not None
        return cls(
            **fields,
            tile_tokens=config.outer_integer("image_seq_length", 256, least=1),
            **config.take_texts(cls, "image_token", "start_image_token", "end_image_token"),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        views, grid = self.tiled(height, width)
        tiles = sum(view.num_tiles for view in views)
        return ImageLayout(height, width, views, tiles * self.tile_tokens + 2, grid, num_markers=2)

    def image_text(self, layout: ImageLayout) -> str:
        return f"{self.start_image_token}{self.image_token * layout.num_features}{self.end_image_token}"


@dataclass(frozen=True, kw_only=True)
class GotOcr2(TileGrid):
    """GOT-OCR2: tiles as InternVL's where the caller says so (`tiles=True`), and a text without markers."""

    tile_tokens: int = 256
    """Tokens of a tile ("num_image_tokens")."""
    image_token: str = "<imgpad>"

    family: ClassVar[str] = "got_ocr2"
    processors: ClassVar[tuple[str, ...]] = ("GotOcr2ImageProcessor",)
    around: ClassVar[tuple[str, ...]] = ("GotOcr2Processor",)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        # The processor passes these, whatever its image processor says.
        fields = {**take_tile_fields(config, 384), "tiles": False, "min_tiles": 1, "max_tiles": 12}
        return cls(**fields, tile_tokens=config.outer_integer("num_image_tokens", 256, least=1))

    def layout(self, width: int, height: int) -> ImageLayout:
        views, grid = self.tiled(height, width)
        return ImageLayout(height, width, views, sum(view.num_tiles for view in views) * self.tile_tokens, grid)


@dataclass(frozen=True, kw_only=True)
class AyaVision(TileGrid):
    """Aya Vision: tiles as InternVL's, each with a marker before its tokens."""

    tile_tokens: int = 169
    """Tokens of a tile: the square of img_size / patch_size."""
    image_token: str = "<image>"
    """Placeholder of an image in the text."""
    feature_token: str = "<|IMG_PATCH|>"
    """Placeholder of a feature in the expanded text."""
    start_token: str = "<|START_OF_IMG|>"
    """Text before the first tile."""
    end_token: str = "<|END_OF_IMG|>"
    """Text after the last one."""
    tile_token: str = "TILE"
    """Text before a tile, with its number after it."""
    tile_global_token: str = "TILE_GLOBAL"
    """Text before the tile that shows the whole image."""

    family: ClassVar[str] = "aya_vision"
    processors: ClassVar[tuple[str, ...]] = ("GotOcr2ImageProcessor",)
    around: ClassVar[tuple[str, ...]] = ("AyaVisionProcessor",)
    separate_placeholder: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        patch = config.outer_integer("patch_size", 28, least=1) * config.outer_integer("downsample_factor", 1, least=1)
        return cls(
            **{**take_tile_fields(config, 384), "tiles": True},  # as the processor passes it
            tile_tokens=(config.outer_integer("img_size", 364, least=1) // patch) ** 2,
            feature_token=config.outer_text("img_patch_token", cls.feature_token),
            start_token=config.outer_text("start_of_img_token", cls.start_token),
            end_token=config.outer_text("end_of_img_token", cls.end_token),
            **config.take_texts(cls, "image_token", "tile_token", "tile_global_token"),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        views, grid = self.tiled(height, width)
        tiles = sum(view.num_tiles for view in views)
        return ImageLayout(height, width, views, tiles * (self.tile_tokens + 1) + 2, grid, num_markers=tiles + 2)

    def image_text(self, layout: ImageLayout) -> str:
        tokens = self.feature_token * self.tile_tokens
        tiles = [f"{self.tile_token}_{number}" for number in range(1, layout.num_tiles)] + [self.tile_global_token]
        return self.start_token + "".join(tile + tokens for tile in tiles) + self.end_token


@lru_cache(maxsize=64)
def grids(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """Returns (rows, columns) of all grids within a range of tiles: by tiles, then by columns."""
    found = [
        (rows, columns)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if fewest <= rows * columns <= most
    ]
    return tuple(sorted(found, key=lambda grid: grid[0] * grid[1]))


@lru_cache(maxsize=4096)
def closest_grid(height: int, width: int, tile_area: int, fewest: int, most: int) -> tuple[int, int]:
    """Returns (rows, columns) of the grid whose aspect ratio is closest to an image's, as GOT-OCR2's processor does."""
    by_columns = [(columns, rows) for rows, columns in grids(fewest, most)]
    columns, rows = closest_of(by_columns, width, height, tile_area)
    return rows, columns


@lru_cache(maxsize=64)
def grids_of_a_set(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """Returns (columns, rows) of all grids within a range of tiles, by tiles.

    Those with equally many are in the order of a set, as in the processors of Phi-4 and LFM2-VL.
    """
    found = {
        (columns, rows)
        for count in range(fewest, most + 1)
        for columns in range(1, count + 1)
        for rows in range(1, count + 1)
        if fewest <= columns * rows <= most
    }
    return tuple(sorted(found, key=lambda grid: grid[0] * grid[1]))


def closest_of(grids: Iterable[tuple[int, int]], width: int, height: int, tile_area: int) -> tuple[int, int]:
    """Returns (columns, rows) of the grid whose aspect ratio is closest to an image's.

    Of equally close grids a later one wins if the image has more than half of its pixels.

    Args:
        grids: (columns, rows) of each.
        width: Of the image in pixels.
        height: Likewise.
        tile_area: Pixels of a tile.
    """
    aspect_ratio = width / height
    best, best_distance = (1, 1), float("inf")
    for columns, rows in grids:
        distance = abs(aspect_ratio - columns / rows)
        if distance < best_distance:
            best, best_distance = (columns, rows), distance
        elif distance == best_distance and width * height > 0.5 * tile_area * rows * columns:
            best = (columns, rows)
    return best
