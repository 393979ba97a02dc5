"""Cohere 2 Vision (Command A Vision): tiles of the grid that an image fits best, and a thumbnail."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.internvl import TileGrid, grids, take_tile_fields
from energon_dali.decode.front_ends.layout import ImageLayout
from energon_dali.decode.front_ends.processor_config import ProcessorConfig


@dataclass(frozen=True, kw_only=True)
class Cohere2Vision(TileGrid):
    """Tiles of the grid in which an image is least enlarged, else least reduced, and a thumbnail after them."""

    patch_size: int = 16
    """Square root of the tokens of a tile."""
    image_token: str = "<|IMG_PATCH|>"
    start_token: str = "<|START_OF_IMG|>"
    """Text before the first tile."""
    end_token: str = "<|END_OF_IMG|>"
    """Text after the last one."""
    line_break_token: str = "<|IMG_LINE_BREAK|>"
    """Text after each tile."""

    family: ClassVar[str] = "cohere2_vision"
    processors: ClassVar[tuple[str, ...]] = ("Cohere2VisionImageProcessor",)
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        return cls(
            **take_tile_fields(config, 512, crops=True),
            patch_size=config.take_integer("patch_size", 16),
            image_token=config.outer_text("image_token", cls.image_token),
            start_token=config.outer_text("boi_token", cls.start_token),
            end_token=config.outer_text("eoi_token", cls.end_token),
            line_break_token=config.outer_text("img_line_break_token", cls.line_break_token),
        )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        return _fitting_grid(height, width, self.tile_size[0], self.max_tiles)

    def layout(self, width: int, height: int) -> ImageLayout:
        views, grid = self.tiled(height, width)
        tiles = sum(view.num_tiles for view in views)
        return ImageLayout(height, width, views, tiles * (self.patch_size**2 + 1) + 2, grid, num_markers=tiles + 2)

    def image_text(self, layout: ImageLayout) -> str:
        tile = self.image_token * self.patch_size**2 + self.line_break_token
        return self.start_token + tile * layout.num_tiles + self.end_token

    def patches_of(self, height: int, width: int) -> int:
        return (height // self.encoder_patch) * (width // self.encoder_patch)


@lru_cache(maxsize=4096)
def _fitting_grid(height: int, width: int, tile: int, most: int) -> tuple[int, int]:
    """Returns (rows, columns) of the grid in which an image is least enlarged, else least reduced.

    Of grids that are equal in this the one with fewer tiles wins, then the one with fewer columns.
    """
    candidates = sorted(
        ((columns, rows) for rows, columns in grids(1, most)), key=lambda grid: (grid[0] * grid[1], grid)
    )
    fits = [(min(columns * tile / width, rows * tile / height), (rows, columns)) for columns, rows in candidates]
    enlarging = [fit for fit in fits if fit[0] >= 1]
    if enlarging:
        return min(enlarging, key=lambda fit: fit[0])[1]
    return max(fits, key=lambda fit: fit[0])[1]
